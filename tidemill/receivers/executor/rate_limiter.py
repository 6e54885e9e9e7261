"""Limiting the rate of a receiver."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from tidemill.common.clock import FOREVER_MS, Clock, never

SLICE_MS = 80
"""Admit a piece of many records in slices of at most this duration, so that no block is far too large."""

CATCH_UP_MS = 20
"""How much of a late wake-up is made up for. Waiting threads wake up late: by up to a millisecond, because
the clock counts milliseconds, and by more on a busy machine. Without this, single records could never come
faster than one a millisecond."""

_NOTHING = 1e-6  # of a record: the error of floating point


class RateLimiter:
    """Makes the caller wait so that at most ``rate`` records a second come in. Thread-safe.

    The records of a call are a debt, which is paid off at the current rate; the next call waits until the
    debt is paid. So the first call never waits, an interrupted call owes nothing, and a pause is not saved up
    for a burst, except for ``CATCH_UP_MS`` of it. In any period, at most ``rate`` x period records come in,
    and one slice of ``SLICE_MS + CATCH_UP_MS``.

    ``max_rate`` is the user's limit (``spark.streaming.receiver.maxRate``); the driver can only lower it,
    with :meth:`update`.
    """

    def __init__(
        self, clock: Clock, max_rate: float | None = None, initial_rate: float | None = None
    ) -> None:
        self._clock = clock
        self._max_rate = max_rate
        self._lock = threading.Lock()
        self._rate = self._bounded(initial_rate)
        self._rate_version = 0
        self._owed = 0.0  # in records; below 0, that many may be caught up
        self._paid_till_ms = clock.now_ms()

    @property
    def rate(self) -> float | None:
        """The limit in records a second, or None without a limit."""
        return self._rate

    def update(self, rate: float | None, version: int = 0) -> None:
        """Set the driver's new limit. It holds at once, also for threads that wait already.

        Ignore a limit that is older than the one that holds.
        """
        with self._lock:
            if version >= self._rate_version:
                self._pay()
                self._rate = self._bounded(rate)
                self._rate_version = version
        self._clock.interrupt_waiters()

    def slice_size(self, records: int) -> int:
        """Return how many of ``records`` may be admitted at once."""
        rate = self._rate
        return records if rate is None else max(1, min(records, int(rate * SLICE_MS / 1000)))

    def acquire(self, records: int, interrupted: Callable[[], bool] = never) -> bool:
        """Wait until ``records`` may come in. Return False if ``interrupted`` becomes true first."""
        while True:
            with self._lock:
                now_ms = self._pay()
                rate = self._rate
                if rate is None or self._owed <= _NOTHING:
                    self._owed += records
                    return True
                free_ms = now_ms + math.ceil(self._owed * 1000 / rate) if rate else FOREVER_MS
            if not self._wait_till(free_ms, rate, interrupted):
                return False

    def _wait_till(self, time_ms: int, rate: float, interrupted: Callable[[], bool]) -> bool:
        """Wait for a time, or for another rate. Return False if interrupted."""
        self._clock.wait_till(time_ms, lambda: interrupted() or self._rate != rate)
        return not interrupted()

    def _pay(self) -> int:
        """Reduce the debt by the time since the last call, and return the time now."""
        now_ms = self._clock.now_ms()
        if self._rate is None:
            self._owed = 0.0
        else:
            paid = (now_ms - self._paid_till_ms) * self._rate / 1000
            self._owed = max(self._owed - paid, -self._rate * CATCH_UP_MS / 1000)
        self._paid_till_ms = now_ms
        return now_ms

    def _bounded(self, rate: float | None) -> float | None:
        if rate is None:
            return self._max_rate
        rate = max(rate, 0.0)
        return rate if self._max_rate is None else min(rate, self._max_rate)
