from __future__ import annotations

import threading

import pytest

from tests.waiting import DEADLINE_S
from tidemill.common.clock import FOREVER_MS, ManualClock, SystemClock


def test_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(500)
    assert clock.now_ms() == 500
    clock.advance(250)
    assert clock.now_ms() == 750
    clock.set_to(1000)
    assert clock.now_ms() == 1000


def test_manual_clock_does_not_go_back() -> None:
    clock = ManualClock(500)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="does not go back"):
        clock.set_to(499)


def test_a_waiter_wakes_when_its_time_has_come() -> None:
    clock = ManualClock()
    reached = threading.Event()

    def wait() -> None:
        assert clock.wait_till(1000)
        reached.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    clock.advance(999)
    assert not reached.wait(0.05)
    clock.advance(1)
    assert reached.wait(DEADLINE_S)
    waiter.join(DEADLINE_S)


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()])
def test_an_interrupted_waiter_says_so(clock: ManualClock | SystemClock) -> None:
    interrupted = threading.Event()
    answers = []
    target_ms = clock.now_ms() + 3_600_000
    waiter = threading.Thread(
        target=lambda: answers.append(clock.wait_till(target_ms, interrupted.is_set)), daemon=True
    )
    waiter.start()
    interrupted.set()
    clock.interrupt_waiters()
    waiter.join(DEADLINE_S)
    assert answers == [False]


class FakeTime:
    def __init__(self) -> None:
        self.wall_ms = 10_000_000
        self.monotonic_ms = 5_000

    def clock(self, logs_jumps: bool = False) -> SystemClock:
        return SystemClock(
            lambda: self.wall_ms * 1_000_000, lambda: self.monotonic_ms * 1_000_000, logs_jumps
        )

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


def test_system_clock_shows_the_wall_clock() -> None:
    time = FakeTime()
    clock = time.clock()
    assert clock.now_ms() == 10_000_000
    time.pass_ms(1234)
    assert clock.now_ms() == 10_001_234


def test_system_clock_set_back_an_hour_goes_on_and_meets_the_wall_clock_again() -> None:
    time = FakeTime()
    clock = time.clock()
    time.pass_ms(1000)
    assert clock.now_ms() == 10_001_000
    time.wall_ms -= 3_600_000
    assert clock.now_ms() == 10_001_000
    time.pass_ms(500)
    assert clock.now_ms() == 10_001_500
    time.wall_ms += 3_600_000 + 20
    assert clock.now_ms() == 10_001_520


def test_system_clock_follows_a_jump_forward() -> None:
    time = FakeTime()
    clock = time.clock()
    time.wall_ms += 60_000
    assert clock.now_ms() == 10_060_000
    time.pass_ms(1)
    assert clock.now_ms() == 10_060_001


def test_the_log_says_when_somebody_has_set_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    clock = time.clock(logs_jumps=True)
    for _ in range(100):  # adjusted, little by little
        time.pass_ms(1000)
        time.wall_ms += 1
        clock.now_ms()
    assert caplog.messages == []
    for jump_ms in (86_400_000, -86_400_000):
        time.wall_ms += jump_ms
        for _ in range(3):
            time.pass_ms(1000)
            clock.now_ms()
    forward, back = caplog.messages
    assert "86400.0 s forward" in forward
    assert "set back by 86400.0 s" in back


def test_a_stream_that_was_ahead_of_the_clock_goes_on_from_there() -> None:
    wall, monotonic = [3_600_000], [0]
    clock = SystemClock(lambda: wall[0] * 1_000_000, lambda: monotonic[0] * 1_000_000)
    clock.start_after(7_200_000)  # its last batch, by a clock that has been set back since
    assert clock.now_ms() == 7_200_000
    assert clock.wall_ms() == 3_600_000
    wall[0], monotonic[0] = wall[0] + 500, 500
    assert clock.now_ms() == 7_200_500
    clock.start_after(1_000)
    assert clock.now_ms() == 7_200_500
    wall[0], monotonic[0] = 7_300_000, 600  # the clock has been put right
    assert clock.now_ms() == 7_300_000


def test_a_manual_clock_that_is_ahead_keeps_its_distance() -> None:
    clock = ManualClock(1_000)
    clock.start_after(5_000)
    clock.advance(10)
    assert (clock.now_ms(), clock.wall_ms()) == (5_010, 1_010)


def test_one_can_wait_for_what_never_comes() -> None:
    """It works on the machine's clock too, on which no thread can sleep for more than 292 years at once."""
    clock = SystemClock()
    looked, stopped = threading.Event(), threading.Event()
    answers: list[bool] = []

    def is_stopped() -> bool:
        looked.set()
        return stopped.is_set()

    waiter = threading.Thread(
        target=lambda: answers.append(clock.wait_till(FOREVER_MS, is_stopped)), daemon=True
    )
    waiter.start()
    assert looked.wait(DEADLINE_S)
    stopped.set()
    clock.interrupt_waiters()
    waiter.join(DEADLINE_S)
    assert answers == [False]
