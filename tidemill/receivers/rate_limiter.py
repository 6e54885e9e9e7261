"""How many records a receiver may take in, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidemill.common.clock import Clock, never

SLICE_S = 0.1
"""A piece of many records is admitted in slices of at most this long, so that no block is far too large."""


class RateLimiter:
    """Makes the caller wait so that no more than ``rate`` records a second come through.

    The records of a call are paid for by the next one: the first never waits, and a pause is not saved
    up for a burst. ``max_rate`` is what the user allows (``spark.streaming.receiver.maxRate``); what the
    driver asks for with :meth:`update` can only be lower.
    """

    def __init__(
        self, clock: Clock, max_rate: float | None = None, initial_rate: float | None = None
    ) -> None:
        self._clock = clock
        self._max_rate = max_rate
        self._lock = threading.Lock()
        self._rate = self._bounded(initial_rate)
        self._free_at_ms = 0.0

    @property
    def rate(self) -> float | None:
        """Records a second, or None without a limit."""
        return self._rate

    def update(self, rate: float | None) -> None:
        """The driver's new limit. Who waits now waits by it from the next slice on."""
        with self._lock:
            self._rate = self._bounded(rate)

    def slice_size(self, records: int) -> int:
        """How many of ``records`` may be admitted at once."""
        rate = self._rate
        return records if rate is None else max(1, min(records, int(rate * SLICE_S)))

    def acquire(self, records: int, interrupted: Callable[[], bool] = never) -> bool:
        """Wait until ``records`` may come in. False if ``interrupted`` became true first."""
        with self._lock:
            rate = self._rate
            if rate is None:
                return True
            now_ms = self._clock.now_ms()
            start_ms = max(self._free_at_ms, float(now_ms))
            self._free_at_ms = start_ms + records * 1000 / rate
        return start_ms <= now_ms or self._clock.wait_till(int(-(-start_ms // 1)), interrupted)

    def _bounded(self, rate: float | None) -> float | None:
        if rate is None:
            return self._max_rate
        return rate if self._max_rate is None else min(rate, self._max_rate)
