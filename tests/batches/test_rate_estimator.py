"""The rate estimator against numbers computed by hand, and what holds for all numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.batches.rate_estimator import PIDRateEstimator, RateEstimator, rate_estimator
from tidemill.errors import OptionError

# The estimator's arguments; then time, records, processing, scheduling, and the new rate
BY_HAND: dict[str, tuple[Any, list[tuple[int, int, int, int, float | None]]]] = {
    "the default weights, batches of a second": (
        (1000,),
        [
            (1000, 500, 500, 0, None),  # the speed is 1000
            (2000, 800, 1000, 0, 800.0),  # 1000 - (1000 - 800)
            (3500, 1200, 1500, 500, 720.0),  # 800 - (800 - 800) - 0.2 * 500 * 800 / 1000
            (4200, 700, 700, 1000, 800.0),  # 720 - (720 - 1000) - 0.2 * 1000 * 1000 / 1000
            (9000, 30, 1000, 0, 100.0),  # 30, and the minimum is 100
        ],
    ),
    "all weights, batches of two seconds": (
        (2000, 0.5, 0.1, 0.2, 10.0),
        [
            (1000, 400, 1000, 0, None),  # the speed is 400
            (3000, 300, 1000, 0, 340.0),  # 400 - 0.5 * 100 - 0.2 * (100 - 0) / 2
            (4000, 480, 2000, 1000, 278.0),  # 340 - 0.5 * 100 - 0.1 * 120 - 0.2 * 0
            (6000, 378, 1000, 0, 348.0),  # 278 + 0.5 * 100 + 0.2 * 200 / 2
        ],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_rates_computed_by_hand(name: str) -> None:
    arguments, batches = BY_HAND[name]
    estimator = PIDRateEstimator(*arguments)
    for time_ms, records, processing_ms, scheduling_ms, expected in batches:
        rate = estimator.compute(time_ms, records, processing_ms, scheduling_ms)
        assert rate == (None if expected is None else pytest.approx(expected)), time_ms


def test_the_second_batch_gives_the_first_rate() -> None:
    estimator = PIDRateEstimator(20, min_rate_per_s=10)
    assert estimator.compute(0, 10, 10, 0) is None
    assert estimator.compute(10, 10, 10, 0) == 1000.0


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ((2000, 0, 100, 0), "no records"),
        ((2000, 10, 0, 0), "no processing time"),
        ((1000, 10, 10, 0), "the same time"),
        ((999, 10, 10, 0), "an older time"),
    ],
)
def test_a_batch_that_says_nothing_changes_nothing(
    batch: tuple[int, int, int, int], why: str
) -> None:
    estimator, undisturbed = PIDRateEstimator(1000), PIDRateEstimator(1000)
    if why not in ("the same time", "an older time"):
        assert estimator.compute(*batch) is None
    for each in (estimator, undisturbed):
        each.compute(1000, 600, 500, 0)
    assert estimator.compute(*batch) is None
    following = (3000, 900, 500, 300)
    assert estimator.compute(*following) == undisturbed.compute(*following)


batches = st.tuples(
    st.integers(-1, 10_000),  # time since the one before
    st.integers(0, 1_000_000),
    st.integers(0, 60_000),
    st.integers(0, 60_000),
)
weights = st.floats(0, 5)


@given(
    st.lists(batches, max_size=30),
    st.integers(1, 60_000),
    weights,
    weights,
    weights,
    st.floats(0.001, 10_000),
)
def test_an_estimate_is_a_number_and_never_below_the_minimum(
    batches: list[tuple[int, int, int, int]],
    interval_ms: int,
    proportional: float,
    integral: float,
    derivative: float,
    min_rate: float,
) -> None:
    estimator = PIDRateEstimator(interval_ms, proportional, integral, derivative, min_rate)
    time_ms = 0
    for step_ms, records, processing_ms, scheduling_ms in batches:
        time_ms += step_ms
        rate = estimator.compute(time_ms, records, processing_ms, scheduling_ms)
        assert rate is None or (rate >= min_rate and math.isfinite(rate))


@given(
    st.floats(0.1, 1.0),
    st.integers(1, 5000),
    st.integers(200, 20_000),
    st.lists(st.integers(1, 100), min_size=100, max_size=100),
)
def test_the_rate_converges_to_a_constant_speed(
    proportional: float, first_speed: int, speed: int, seconds: list[int]
) -> None:
    estimator = PIDRateEstimator(1000, proportional)
    estimator.compute(0, first_speed, 1000, 0)
    distance = math.inf
    for number, processing_s in enumerate(seconds, 1):
        rate = estimator.compute(number * 1000, speed * processing_s, processing_s * 1000, 0)
        assert rate is not None
        assert abs(rate - speed) <= distance + 1e-6
        distance = abs(rate - speed)
    assert rate == pytest.approx(speed, rel=0.01)


@given(st.integers(200, 20_000), st.integers(1, 10_000))
def test_a_stream_that_is_behind_goes_slower_than_it_can(speed: int, scheduling_ms: int) -> None:
    estimator = PIDRateEstimator(1000)
    estimator.compute(0, speed, 1000, 0)
    rate = estimator.compute(1000, speed, 1000, scheduling_ms)
    assert rate is not None
    assert rate < speed
    assert rate == pytest.approx(max(100, speed - 0.2 * speed * scheduling_ms / 1000))


def test_an_estimator_that_starts_from_a_rate_builds_on_it() -> None:
    estimator = PIDRateEstimator(1000, proportional=0.5, derivative=3.0)
    assert estimator.start_from(400.0) == 400.0
    # There is nothing yet that could have changed, so the derivative has no part in it.
    assert estimator.compute(50_000, 600, 1000, 0) == 500.0


def test_a_rate_to_start_from_is_not_below_the_minimum() -> None:
    assert PIDRateEstimator(1000, min_rate_per_s=50).start_from(3.0) == 50.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_interval_ms": 0}, "batch interval must be above 0 ms, not 0"),
        ({"proportional": -0.1}, "proportional weight must be at least 0, not -0.1"),
        ({"integral": -1}, "integral weight must be at least 0, not -1"),
        ({"derivative": -1}, "derivative weight must be at least 0, not -1"),
        ({"derivative": math.nan}, "derivative weight must be at least 0, not nan"),
        ({"min_rate_per_s": 0}, "minimum rate must be above 0 records per second, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PIDRateEstimator(**{"batch_interval_ms": 1000, **arguments})


def rates(estimator: RateEstimator) -> list[float | None]:
    return [
        estimator.compute(*batch)
        for batch in [(1000, 400, 1000, 0), (3000, 300, 1000, 0), (4000, 480, 2000, 1000)]
    ]


def test_the_settings_are_those_of_spark() -> None:
    assert rates(rate_estimator({}, 2000)) == rates(PIDRateEstimator(2000, 1.0, 0.2, 0.0, 100.0))
    prefix = "spark.streaming.backpressure"
    conf = {
        f"{prefix}.rateEstimator": "pid",
        f"{prefix}.pid.proportional": "0.5",
        f"{prefix}.pid.integral": "0.1",
        f"{prefix}.pid.derived": "0.2",
        f"{prefix}.pid.minRate": "300",
    }
    assert rates(rate_estimator(conf, 2000)) == [None, 340.0, 300.0]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("rateEstimator", "fuzzy", "is 'fuzzy': expected pid"),
        ("pid.proportional", "-1", "is '-1': expected a number of at least 0"),
        ("pid.integral", "much", "is 'much': expected a number"),
        ("pid.derived", "nan", "is 'nan': expected a number"),
        ("pid.minRate", "0", "is '0': expected a number above 0"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(key: str, text: str, message: str) -> None:
    key = f"spark.streaming.backpressure.{key}"
    with pytest.raises(OptionError, match=f"{key} {message}"):
        rate_estimator({key: text}, 1000)
