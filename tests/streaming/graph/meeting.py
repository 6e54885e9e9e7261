"""What two output operations of a batch share with their test."""

from __future__ import annotations

import threading
from typing import Any


class Meeting:
    """Two outputs of a batch must be there at the same time, or the second waits in vain."""

    barrier = threading.Barrier(2)
    met: list[Any] = []
