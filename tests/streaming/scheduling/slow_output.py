"""The clock that a slow output operation shares with its test."""

from __future__ import annotations

from tidemill.common.clock import ManualClock


class Slow:
    """Holds the clock that a slow output operation advances."""

    clock: ManualClock
