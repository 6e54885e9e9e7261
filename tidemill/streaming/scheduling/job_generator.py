"""Every batch interval: plan a batch, and hand it on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.common.recurring_timer import RecurringTimer


@dataclass(frozen=True)
class BatchTimesReached:
    """The clock shows this batch time. Earlier ones may have passed with it."""

    last_ms: int


@dataclass(frozen=True)
class Drain:
    """Everything that was posted before this has been handled."""

    reached: threading.Event


class JobGenerator:
    """One timer, one event loop: ``plan`` is called for one batch time after the other, on one thread.

    It gets the time and the last batch time that the clock has reached. It returns the next time to plan,
    which is the following one unless batches that were missed are left out.
    """

    def __init__(
        self,
        clock: Clock,
        batch_ms: int,
        plan: Callable[[int, int], int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._plan = plan
        self._next_ms = 0
        self._events: EventLoop[BatchTimesReached | Drain] = EventLoop(
            "job-generator", self._on_event, on_error
        )
        self._timer = RecurringTimer(clock, batch_ms, self._on_batch_time, "batches")

    def next_time_ms(self) -> int:
        """Return the first batch time that the clock has not reached yet."""
        return self._timer.first_time_ms()

    def start(self, first_ms: int) -> None:
        """Begin with the batch of ``first_ms``, which may have passed."""
        self._next_ms = first_ms
        self._events.start()
        self._timer.start(first_ms)

    def stop_timer(self) -> None:
        """Reach no batch time after this."""
        self._timer.stop()

    def drain(self, timeout_s: float) -> bool:
        """Wait until every batch time that was reached is planned. Return False if that took too long."""
        reached = threading.Event()
        return not self._events.post(Drain(reached)) or reached.wait(timeout_s)

    def is_current_thread(self) -> bool:
        return self._events.is_current_thread()

    @property
    def is_stopped(self) -> bool:
        return self._events.is_stopped

    def stop(self) -> None:
        self._timer.stop()
        self._events.stop()

    def _on_batch_time(self, time_ms: int) -> None:
        self._events.post(BatchTimesReached(time_ms))

    def _on_event(self, event: BatchTimesReached | Drain) -> None:
        match event:
            case BatchTimesReached(last_ms):
                while self._next_ms <= last_ms and not self._events.is_stopped:
                    self._next_ms = self._plan(self._next_ms, last_ms)
            case Drain(reached):
                reached.set()
