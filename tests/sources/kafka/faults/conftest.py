from __future__ import annotations

import os

# An hour of kills: make test-faults.
collect_ignore = [] if os.environ.get("TIDEMILL_ALL_FAULTS") == "1" else ["test_all_faults.py"]
