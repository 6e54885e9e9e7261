from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import IllegalArgumentException

from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import UsageError
from tidemill.sql.execution.triggers import (
    AvailableNow,
    Once,
    ProcessingTime,
    Trigger,
    interval_ms,
    run_on_trigger,
)
from tidemill.testing import ManualClock


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("5 seconds", 5000),
        ("0 seconds", 0),
        ("1 second", 1000),
        ("  10   SECONDS ", 10_000),
        ("interval 2 minutes", 120_000),
        ("1 minute 30 seconds", 90_000),
        ("1.5 seconds", 1500),
        (".25 second", 250),
        ("500 milliseconds", 500),
        ("2500 microseconds", 2),
        ("1 week 1 day 1 hour", 694_800_000),
        ("2 minutes -30 seconds", 90_000),
    ],
)
def test_intervals_are_read_as_spark_reads_them(text: str, expected_ms: int) -> None:
    assert interval_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("5 bananas", "'bananas' is no unit of time"),
        ("5", "is not an interval"),
        ("seconds", "is not an interval, at 'seconds'"),
        ("5seconds", "is not an interval"),
        ("interval", "is not an interval"),
        ("-5 seconds", "cannot be negative"),
        ("1 month", "no fixed length"),
        ("1.5 minutes", "only seconds may have a fraction"),
    ],
)
def test_what_is_no_interval_is_refused_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        interval_ms(text)
    assert isinstance(refused.value, IllegalArgumentException)


@given(st.integers(0, 10**7), st.sampled_from(["microsecond", "second", "minute", "hour"]))
def test_spark_reads_the_same(number: int, unit: str) -> None:
    us = {"microsecond": 1, "second": 10**6, "minute": 6 * 10**7, "hour": 36 * 10**8}[unit]
    assert interval_ms(f"{number} {unit}s") == number * us // 1000


class Runs:
    """Records when batches run, lets each take a given time, and stops after a number of them."""

    def __init__(self, clock: ManualClock, took_ms: list[int]) -> None:
        self.clock = clock
        self.took_ms = took_ms
        self.began_ms: list[int] = []

    def __call__(self) -> bool:
        self.began_ms.append(self.clock.now_ms())
        self.clock.advance(self.took_ms[len(self.began_ms) - 1])
        return len(self.began_ms) < len(self.took_ms)


def run(trigger: Trigger, clock: ManualClock, runs: Runs) -> list[int]:
    """Moves the clock in steps of 10 ms while the trigger waits."""
    ended = threading.Event()

    def body() -> None:
        run_on_trigger(trigger, clock, runs)
        ended.set()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def moved() -> bool:
        if not ended.is_set():
            clock.advance(0)
        return ended.is_set()

    wait_for(moved, "the trigger to end")
    thread.join()
    return runs.began_ms


def test_without_an_interval_batches_follow_each_other() -> None:
    clock = ManualClock(5)
    assert run(ProcessingTime(0), clock, Runs(clock, [10, 0, 7, 1])) == [5, 15, 15, 22]


def test_batches_that_are_late_follow_at_once_and_the_next_is_on_time_again() -> None:
    clock = ManualClock(1000)
    # The first ends at 1250, after its boundary (1100), so the second begins at once; its boundary is 1300.
    runs = Runs(clock, [250, 60, 0])
    assert run(ProcessingTime(100), clock, runs) == [1000, 1250, 1310]


def test_batches_begin_at_multiples_of_the_interval() -> None:
    clock = ManualClock(1030)
    began: list[int] = []
    waiting = threading.Semaphore(0)

    def batch() -> bool:
        began.append(clock.now_ms())
        waiting.release()
        return len(began) < 3

    thread = threading.Thread(
        target=run_on_trigger, args=(ProcessingTime(100), clock, batch), daemon=True
    )
    thread.start()
    for time_ms in (1100, 1200):
        waiting.acquire()
        clock.set_to(time_ms)
    thread.join(DEADLINE_S)
    assert began == [1030, 1100, 1200]


def test_once_is_one_batch_and_available_now_all_there_are() -> None:
    clock = ManualClock()
    assert len(run(Once(), clock, Runs(clock, [0, 0, 0]))) == 1
    assert len(run(AvailableNow(), clock, Runs(clock, [0, 0, 0]))) == 3


def test_a_trigger_that_waits_can_be_stopped() -> None:
    clock = ManualClock(1)
    stopping = threading.Event()
    began = threading.Event()

    def batch() -> bool:
        began.set()
        return True

    thread = threading.Thread(
        target=run_on_trigger, args=(ProcessingTime(1000), clock, batch, stopping.is_set)
    )
    thread.start()
    assert began.wait(DEADLINE_S)
    stopping.set()
    wait_for(lambda: clock.interrupt_waiters() or not thread.is_alive(), "the trigger to end")


def test_batches_that_take_too_long_are_said_once_and_not_for_the_first_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings(*took_ms: int) -> list[str]:
        caplog.clear()
        clock = ManualClock(0)
        run(ProcessingTime(100), clock, Runs(clock, [*took_ms, 0]))
        return [record.getMessage() for record in caplog.records]

    assert warnings(900) == []
    assert warnings(900, 100, 200, 300) == [
        "a batch took 200 ms and the trigger's interval is 100 ms: batches come later than they should"
    ]
