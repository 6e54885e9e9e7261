from __future__ import annotations

import os

# Every kill starts Spark anew: make test-long.
collect_ignore = [] if os.environ.get("TIDEMILL_LONG") == "1" else ["test_killed_programs.py"]
