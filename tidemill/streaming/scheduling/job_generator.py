"""Every batch interval: plan a batch, and hand it on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.common.recurring_timer import RecurringTimer


@dataclass(frozen=True)
class BatchTimeReached:
    time_ms: int


@dataclass(frozen=True)
class Drain:
    """Everything that was posted before this has been handled."""

    reached: threading.Event


class JobGenerator:
    """One timer, one event loop: ``plan`` is called for every batch time, in order, on one thread.

    A clock that jumps ahead makes up for the batch times in between.
    """

    def __init__(
        self,
        clock: Clock,
        batch_ms: int,
        plan: Callable[[int], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._plan = plan
        self._events: EventLoop[BatchTimeReached | Drain] = EventLoop(
            "job-generator", self._on_event, on_error
        )
        self._timer = RecurringTimer(clock, batch_ms, self._on_batch_time, "batches")

    def next_time_ms(self) -> int:
        """Return the first batch time that the clock has not reached yet."""
        return self._timer.first_time_ms()

    def start(self, first_ms: int) -> None:
        """Begin with the batch of ``first_ms``, which may have passed."""
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

    def stop(self) -> None:
        self._timer.stop()
        self._events.stop()

    def _on_batch_time(self, time_ms: int) -> None:
        self._events.post(BatchTimeReached(time_ms))

    def _on_event(self, event: BatchTimeReached | Drain) -> None:
        match event:
            case BatchTimeReached(time_ms):
                self._plan(time_ms)
            case Drain(reached):
                reached.set()
