"""How many records a receiver may take in, and when."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from tidemill.common.clock import FOREVER_MS, Clock, never

SLICE_MS = 80
"""A piece of many records is admitted in slices of at most this long, so that no block is far too large."""

CATCH_UP_MS = 20
"""Who waits wakes up late: by up to a millisecond on a clock of milliseconds, by more on a busy machine.
So much of it is made up for; otherwise single records could never be faster than one a millisecond."""

_NOTHING = 1e-6  # of a record: what is left over by floating point


class RateLimiter:
    """Makes the caller wait so that no more than ``rate`` records a second come through.

    What a call takes in is a debt, which is paid off at the rate of the moment; the next call waits until
    nothing is owed. So the first never waits, a call that is interrupted owes nothing, and a pause is not
    saved up for a burst, except ``CATCH_UP_MS`` of it. In any time, at most ``rate`` x that time comes in,
    and one slice of ``SLICE_MS + CATCH_UP_MS``.

    ``max_rate`` is what the user allows (``spark.streaming.receiver.maxRate``); what the driver asks for
    with :meth:`update` can only be lower. Safe for threads.
    """

    def __init__(
        self, clock: Clock, max_rate: float | None = None, initial_rate: float | None = None
    ) -> None:
        self._clock = clock
        self._max_rate = max_rate
        self._lock = threading.Lock()
        self._rate = self._bounded(initial_rate)
        self._owed = 0.0  # records; below 0 is what may be caught up
        self._paid_till_ms = clock.now_ms()

    @property
    def rate(self) -> float | None:
        """Records a second, or None without a limit."""
        return self._rate

    def update(self, rate: float | None) -> None:
        """The driver's new limit. It holds at once, also for who waits already."""
        with self._lock:
            self._pay()
            self._rate = self._bounded(rate)
        self._clock.interrupt_waiters()

    def slice_size(self, records: int) -> int:
        """How many of ``records`` may be admitted at once."""
        rate = self._rate
        return records if rate is None else max(1, min(records, int(rate * SLICE_MS / 1000)))

    def acquire(self, records: int, interrupted: Callable[[], bool] = never) -> bool:
        """Wait until ``records`` may come in. False if ``interrupted`` became true first."""
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
        """True when it may be time: the time has come, or the rate is another."""
        self._clock.wait_till(time_ms, lambda: interrupted() or self._rate != rate)
        return not interrupted()

    def _pay(self) -> int:
        """Pay off what the time since the last call is good for, and say what time it is."""
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
