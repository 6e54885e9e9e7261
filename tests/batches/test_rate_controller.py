"""The rate of an input, and what it means for a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.batches.batch import UNLIMITED, AdmissionLimit
from tidemill.batches.rate_controller import FixedRate, RateController, rate_controllers
from tidemill.batches.rate_estimator import PIDRateEstimator


def controller(
    max_rate: float | None = None, initial_rate: float | None = None, min_rate: float = 100.0
) -> RateController:
    return RateController(
        PIDRateEstimator(1000, min_rate_per_s=min_rate), max_rate, initial_rate, lambda rate: None
    )


def records(controller: RateController, interval_ms: int = 1000) -> int | None:
    return controller.limit(interval_ms).max_records


def test_without_any_rate_there_is_no_limit() -> None:
    fresh = controller()
    assert fresh.limit(1000) == UNLIMITED
    static = AdmissionLimit(max_records=7, max_files=2)
    assert fresh.limit(1000, static) == static
    fresh.on_batch(1000, 500, 1000, 0)  # says how fast the stream is, and no rate yet
    assert (fresh.rate_per_s, fresh.limit(1000)) == (None, UNLIMITED)


def test_a_fixed_rate_takes_over_nothing_that_was_learned() -> None:
    fixed = FixedRate(PIDRateEstimator(1000), 5000.0)
    fixed.restore(20.0)
    assert (fixed.rate_per_s, records(fixed)) == (None, 5000)


def test_the_rate_becomes_records_of_an_interval() -> None:
    limited = controller()
    limited.on_batch(1000, 500, 1000, 0)
    limited.on_batch(2000, 250, 1000, 0)
    assert limited.rate_per_s == 250.0
    assert [records(limited, ms) for ms in (1000, 2000, 100, 10, 1)] == [250, 500, 25, 2, 1]


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        (AdmissionLimit(max_records=100), AdmissionLimit(max_records=100)),
        (AdmissionLimit(max_records=900), AdmissionLimit(max_records=250)),
        (AdmissionLimit(max_bytes=9), AdmissionLimit(max_records=250, max_bytes=9)),
    ],
)
def test_a_static_limit_holds_as_well(static: AdmissionLimit, expected: AdmissionLimit) -> None:
    limited = controller()
    limited.restore(250.0)
    assert limited.limit(1000, static) == expected


@pytest.mark.parametrize(
    ("max_rate", "initial_rate", "first"),
    [(None, 300, 300), (200, 300, 200), (300, 200, 200), (200, None, 200)],
)
def test_the_first_batch_is_bounded(
    max_rate: float | None, initial_rate: float | None, first: int
) -> None:
    limited = controller(max_rate, initial_rate)
    assert records(limited) == first
    limited.on_batch(1000, first, 100, 0)
    assert records(limited) == first
    limited.on_batch(2000, 150, 1000, 0)
    assert records(limited) == 150


def test_only_another_rate_is_published() -> None:
    published: list[float] = []
    limited = RateController(PIDRateEstimator(1000), 400, 50, published.append)
    limited.on_batch(1000, 500, 1000, 0)
    assert published == []
    for number, processed in enumerate([250, 250, 0, 300, 900, 999], 2):
        limited.on_batch(number * 1000, processed, 1000, 0)
    assert published == [250.0, 300.0, 400.0]


def test_whoever_is_published_to_may_ask_for_the_limit() -> None:
    limited = controller()
    asked: list[int | None] = []
    limited.publish = lambda rate: asked.append(records(limited))
    limited.restore(250.0)
    assert asked == [250]


batches = st.lists(
    st.tuples(st.integers(0, 100_000), st.integers(0, 5000), st.integers(0, 20_000)), max_size=20
)
rates = st.none() | st.integers(1, 50_000)


@given(batches, rates, rates, st.floats(0.5, 1000), st.integers(1, 10_000))
def test_limits_stay_between_the_minimum_and_the_maximum_and_survive_a_restart(
    batches: list[tuple[int, int, int]],
    max_rate: int | None,
    initial_rate: int | None,
    min_rate: float,
    interval_ms: int,
) -> None:
    limited = controller(max_rate, initial_rate, min_rate)
    first = [rate for rate in (max_rate, initial_rate) if rate is not None]
    for number, (processed, processing_ms, scheduling_ms) in enumerate(batches, 1):
        limit = records(limited, interval_ms)
        if limited.rate_per_s is None:
            assert limit == (max(1, min(first) * interval_ms // 1000) if first else None)
        else:
            assert limit is not None
            assert limit >= min(min_rate, max_rate or min_rate) * interval_ms / 1000 - 1
            if max_rate is not None:
                assert limit <= max(1, max_rate * interval_ms / 1000)
        limited.on_batch(number * 1000, processed, processing_ms, scheduling_ms)

    restarted = controller(max_rate, initial_rate, min_rate)
    if limited.rate_per_s is not None:
        restarted.restore(limited.rate_per_s)
        assert restarted.rate_per_s == limited.rate_per_s
        assert restarted.limit(interval_ms) == limited.limit(interval_ms)


def test_the_next_estimate_builds_on_the_restored_rate() -> None:
    restarted = RateController(PIDRateEstimator(1000, proportional=0.5))
    restarted.restore(400.0)
    restarted.on_batch(1000, 600, 1000, 0)
    assert restarted.rate_per_s == 500.0


def test_a_restored_rate_keeps_to_settings_that_are_new() -> None:
    lower, higher = controller(max_rate=150), controller(min_rate=500)
    lower.restore(400.0)
    higher.restore(400.0)
    assert (lower.rate_per_s, higher.rate_per_s) == (150, 500)


def longest_waits_ms(limited: RateController | None, speed: int, batches: int) -> list[int]:
    """How long each batch of an endless backlog waits, of which 3000 records come with each batch
    where nothing limits them. A batch takes 50 ms, and a second for each ``speed`` records.
    """
    free_at_ms = 0
    over: list[tuple[int, int, int, int]] = []
    waits = []
    for time_ms in range(1000, (batches + 1) * 1000, 1000):
        for done in [done for done in over if done[0] <= time_ms]:
            over.remove(done)
            if limited is not None:
                limited.on_batch(*done)
        taken = 3000 if limited is None else min(3000, records(limited) or 3000)
        waits.append(max(0, free_at_ms - time_ms))
        processing_ms = 50 + taken * 1000 // speed
        free_at_ms = max(free_at_ms, time_ms) + processing_ms
        over.append((free_at_ms, taken, processing_ms, waits[-1]))
    return waits


@pytest.mark.parametrize("speed", [300, 1000, 2500])
def test_a_stream_that_gets_too_much_stops_falling_behind(speed: int) -> None:
    unlimited = longest_waits_ms(None, speed, 100)
    assert unlimited[-1] > 20_000
    limited = longest_waits_ms(controller(initial_rate=200), speed, 100)
    assert max(limited[20:]) <= 1000


def test_controllers_are_made_from_settings_and_only_when_wanted() -> None:
    conf = {
        "spark.streaming.receiver.maxRate": "900",
        "spark.streaming.backpressure.initialRate": "70",
        "spark.streaming.backpressure.pid.minRate": "5",
    }
    assert rate_controllers(conf, 1000, [0, 1]) == {}
    conf["spark.streaming.backpressure.enabled"] = "true"
    made = rate_controllers(conf, 1000, [0, 1])
    assert sorted(made) == [0, 1]
    assert records(made[0]) == 70
    for time_ms, processed in [(1000, 3), (2000, 3)]:
        made[0].on_batch(time_ms, processed, 1000, 0)
    made[1].restore(5000)
    assert (made[0].rate_per_s, made[1].rate_per_s) == (5.0, 900)
