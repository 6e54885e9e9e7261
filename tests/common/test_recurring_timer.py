from __future__ import annotations

import queue
import threading

import pytest

from tests.waiting import DEADLINE_S
from tidemill.common.clock import ManualClock
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.errors import StopTimeoutError


def test_ticks_at_every_multiple_of_the_period() -> None:
    clock = ManualClock(2500)
    ticks: queue.Queue[int] = queue.Queue()
    timer = RecurringTimer(clock, 1000, ticks.put, "test")
    assert timer.start() == 3000
    clock.advance(500)
    assert ticks.get(timeout=DEADLINE_S) == 3000
    for time_ms in (4000, 5000, 6000):
        clock.advance(1000)
        assert ticks.get(timeout=DEADLINE_S) == time_ms
    timer.stop()
    clock.advance(10_000)
    assert ticks.empty()


def test_one_call_stands_for_all_the_times_that_have_passed() -> None:
    clock = ManualClock()
    ticks: queue.Queue[int] = queue.Queue()
    timer = RecurringTimer(clock, 1000, ticks.put, "test")
    clock.advance(56 * 365 * 86_400_000 + 1)  # before it starts, and again while it waits
    assert timer.start(3000) == 3000
    assert ticks.get(timeout=DEADLINE_S) == 56 * 365 * 86_400_000
    clock.advance(86_400_000)
    assert ticks.get(timeout=DEADLINE_S) == 56 * 365 * 86_400_000 + 86_400_000
    timer.stop()
    assert ticks.empty()


def test_first_time_is_never_now() -> None:
    assert RecurringTimer(ManualClock(2000), 1000, print, "test").first_time_ms() == 3000


def test_a_failing_callback_does_not_end_the_ticking(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    ticks: queue.Queue[int] = queue.Queue()

    def fail_first(time_ms: int) -> None:
        ticks.put(time_ms)
        if time_ms == 10:
            raise OSError("disk on fire")

    timer = RecurringTimer(clock, 10, fail_first, "test")
    timer.start()
    for time_ms in (10, 20):
        clock.advance(10)
        assert ticks.get(timeout=DEADLINE_S) == time_ms
    timer.stop()
    assert "disk on fire" in caplog.text


def test_stop_is_idempotent_and_allowed_before_start_and_in_the_callback() -> None:
    RecurringTimer(ManualClock(), 10, print, "never started").stop()
    clock = ManualClock()
    stopped = threading.Event()

    def stop_itself(_: int) -> None:
        timer.stop()
        stopped.set()

    timer = RecurringTimer(clock, 10, stop_itself, "test")
    timer.start()
    clock.advance(10)
    assert stopped.wait(DEADLINE_S)
    timer.stop()
    timer.stop()


def test_stop_reports_a_callback_that_hangs() -> None:
    clock = ManualClock()
    entered, release = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        entered.set()
        release.wait(DEADLINE_S)

    timer = RecurringTimer(clock, 10, hang, "stuck")
    timer.start()
    clock.advance(10)
    assert entered.wait(DEADLINE_S)
    with pytest.raises(StopTimeoutError, match="stuck"):
        timer.stop(timeout_s=0.01)
    release.set()
    timer.stop()


def test_a_period_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        RecurringTimer(ManualClock(), 0, print, "test")
