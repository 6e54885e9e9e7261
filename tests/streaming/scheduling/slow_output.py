"""What a slow output operation shares with its test."""

from __future__ import annotations

from tidemill.common.clock import ManualClock


class Slow:
    """Whose time a slow output operation takes."""

    clock: ManualClock
