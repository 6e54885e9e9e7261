from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.receivers.helpers import InThread, SteppingClock, WatchedClock
from tidemill.receivers.executor.rate_limiter import CATCH_UP_MS, SLICE_MS, RateLimiter


@pytest.mark.parametrize(
    ("rate", "calls", "times_ms"),
    [
        (None, [1, 1000, 1], [0, 0, 0]),
        (10, [1, 1, 1, 1], [0, 100, 200, 300]),
        (10, [5, 1, 1], [0, 500, 600]),
        (1000, [1, 1, 1], [0, 1, 2]),
        (2000, [1, 1, 1, 1, 1], [0, 1, 1, 2, 2]),
        (0.5, [1, 1], [0, 2000]),
        (3, [1, 1, 1, 1], [0, 334, 667, 1000]),
    ],
)
def test_each_call_is_paid_for_by_the_next(
    rate: float | None, calls: list[int], times_ms: list[int]
) -> None:
    clock = SteppingClock()
    limiter = RateLimiter(clock, rate)
    admitted = []
    for records in calls:
        assert limiter.acquire(records)
        admitted.append(clock.now_ms())
    assert admitted == times_ms


def test_a_pause_is_not_saved_up_for_a_burst() -> None:
    clock = SteppingClock()
    limiter = RateLimiter(clock, 100)
    clock.advance(3_600_000)
    start_ms = clock.now_ms()
    admitted_at_once = 0
    while clock.now_ms() == start_ms:
        limiter.acquire(1)
        admitted_at_once += clock.now_ms() == start_ms
    assert admitted_at_once == 1 + 100 * CATCH_UP_MS / 1000


@pytest.mark.parametrize(
    ("max_rate", "update", "rate"),
    [
        (None, None, None),
        (None, 50.0, 50.0),
        (100.0, None, 100.0),
        (100.0, 50.0, 50.0),
        (100.0, 100.5, 100.0),
        (100.0, 1e9, 100.0),
        (100.0, -3.0, 0.0),
    ],
)
def test_the_driver_can_only_lower_the_rate(
    max_rate: float | None, update: float | None, rate: float | None
) -> None:
    limiter = RateLimiter(SteppingClock(), max_rate)
    assert limiter.rate == max_rate
    limiter.update(update)
    assert limiter.rate == rate
    assert RateLimiter(SteppingClock(), max_rate, update).rate == rate
    limiter.update(None)
    assert limiter.rate == max_rate


def test_a_new_rate_holds_for_who_waits_already() -> None:
    clock = WatchedClock()
    limiter = RateLimiter(clock, 1000, initial_rate=0.01)
    limiter.acquire(1)
    waiting = InThread(lambda: limiter.acquire(1))
    clock.await_waiter(100_000)
    limiter.update(2)
    clock.await_waiter(500)
    limiter.update(None)
    clock.await_waiter(1)
    clock.advance(1)
    waiting.join()


def test_without_a_limit_nothing_is_owed_later() -> None:
    clock = SteppingClock()
    limiter = RateLimiter(clock)
    limiter.acquire(1_000_000)
    limiter.update(1)
    limiter.acquire(1)
    assert clock.now_ms() == 0


def test_at_a_rate_of_nothing_all_but_the_first_wait_for_a_better_one() -> None:
    clock = WatchedClock()
    limiter = RateLimiter(clock, initial_rate=0)
    assert limiter.slice_size(100) == 1
    limiter.acquire(1)
    waiting = InThread(lambda: limiter.acquire(1))
    clock.await_waiter(1 << 52)
    limiter.update(10)
    clock.await_waiter(100)
    clock.advance(100)
    waiting.join()


def test_who_is_interrupted_owes_nothing() -> None:
    clock = WatchedClock()
    limiter = RateLimiter(clock, 10)
    stopped = False
    answers: list[bool] = []
    limiter.acquire(1)
    waiting = InThread(lambda: answers.append(limiter.acquire(10_000, lambda: stopped)))
    clock.await_waiter(100)
    stopped = True
    clock.interrupt_waiters()
    waiting.join()
    assert answers == [False]
    clock.advance(100)
    assert limiter.acquire(1)  # not after another 10000 records


@pytest.mark.parametrize(
    ("rate", "records", "size"),
    [(None, 9999, 9999), (1000, 9999, 80), (1000, 5, 5), (1, 9999, 1), (0.1, 1, 1)],
)
def test_slices(rate: float | None, records: int, size: int) -> None:
    assert RateLimiter(SteppingClock(), rate).slice_size(records) == size


@given(
    rate=st.floats(0.1, 1e6),
    late_ms=st.integers(0, 50),
    calls=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 500), st.none() | st.floats(0, 2e6)),
        max_size=60,
    ),
)
def test_in_any_window_there_is_no_more_than_the_rate_and_one_slice(
    rate: float, late_ms: int, calls: list[tuple[int, int, float | None]]
) -> None:
    clock = SteppingClock(late_ms=late_ms)
    limiter = RateLimiter(clock, rate)
    admitted: list[tuple[int, int]] = []
    for pause_ms, records, update in calls:
        clock.advance(pause_ms)
        if update is not None:
            limiter.update(max(update, 0.01))
        size = limiter.slice_size(records)
        assert limiter.acquire(size)
        admitted.append((clock.now_ms(), size))
    one_slice = max(1, rate * SLICE_MS / 1000) + rate * CATCH_UP_MS / 1000
    for first, (start_ms, _) in enumerate(admitted):
        total = 0
        for end_ms, size in admitted[first:]:
            total += size
            assert total <= rate * (end_ms - start_ms) / 1000 + one_slice + 1e-3


@given(rate=st.floats(1, 200_000), late_ms=st.integers(0, 10))
def test_the_rate_is_reached_one_by_one(rate: float, late_ms: int) -> None:
    """The clock counts milliseconds, and the thread wakes up late."""
    clock = SteppingClock(late_ms=late_ms)
    limiter = RateLimiter(clock, rate)
    records = min(3000, math.ceil(rate * 10))
    for _ in range(records):
        limiter.acquire(1)
    expected_ms = (records - 1) * 1000 / rate
    assert expected_ms - CATCH_UP_MS <= clock.now_ms() <= expected_ms + 1 + late_ms
