"""A callback at every multiple of a period."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidemill.common.clock import Clock
from tidemill.errors import StopTimeoutError

logger = logging.getLogger(__name__)


class RecurringTimer:
    """Calls ``callback(time_ms)`` on its own thread at each multiple of ``period_ms``.

    ``time_ms`` is the last multiple that the clock has reached. If several have passed, because the callback
    was busy, the process slept or the clock was set forward, there is one call for all of them.
    """

    def __init__(
        self, clock: Clock, period_ms: int, callback: Callable[[int], None], name: str
    ) -> None:
        if period_ms <= 0:
            raise ValueError(f"the period of timer {name} must be positive, not {period_ms} ms")
        self._clock = clock
        self._period_ms = period_ms
        self._callback = callback
        self._name = name
        self._stopped = threading.Event()
        self._next_ms = 0
        self._thread = threading.Thread(
            target=self._run, name=f"tidemill-timer-{name}", daemon=True
        )

    def first_time_ms(self) -> int:
        """Return the earliest multiple of the period that is still to come."""
        return (self._clock.now_ms() // self._period_ms + 1) * self._period_ms

    def start(self, start_ms: int | None = None) -> int:
        """Start ticking at ``start_ms`` (default: :meth:`first_time_ms`) and return that time."""
        first_ms = self._next_ms = self.first_time_ms() if start_ms is None else start_ms
        self._thread.start()
        return first_ms

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop ticking: no callback begins after this returns. Idempotent; the callback may call it too."""
        self._stopped.set()
        self._clock.interrupt_waiters()
        if self._thread.ident is None or self._thread is threading.current_thread():
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StopTimeoutError(
                f"timer {self._name}: its callback is still running after {timeout_s} s"
            )

    def _run(self) -> None:
        while self._clock.wait_till(self._next_ms, self._stopped.is_set):
            passed_ms = self._clock.now_ms() - self._next_ms
            reached_ms = self._next_ms + passed_ms // self._period_ms * self._period_ms
            try:
                self._callback(reached_ms)
            except BaseException:
                # Go on with the next tick: one failed callback must not end the stream silently.
                logger.exception("timer %s: its callback failed at %d ms", self._name, reached_ms)
            self._next_ms = reached_ms + self._period_ms
