"""The barrier that two output operations of a batch share with their test."""

from __future__ import annotations

import threading
from typing import Any


class Meeting:
    """Proves that two outputs of a batch run at the same time: a single one would wait in vain."""

    barrier = threading.Barrier(2)
    met: list[Any] = []
