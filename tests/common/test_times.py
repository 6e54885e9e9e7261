from __future__ import annotations

import math
from datetime import datetime

import pytest

from tidemill.common.times import Time, clock_face, duration_ms, to_datetime, to_ms
from tidemill.errors import UsageError


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1, 1000), (0.5, 500), (0.07, 70), (1.1, 1100), (0.001, 1), (3600, 3_600_000)],
)
def test_seconds_become_whole_milliseconds(seconds: float, expected: int) -> None:
    assert duration_ms(seconds, "it") == expected


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, math.nan, math.inf, "1", None, True])
def test_a_duration_that_makes_no_sense_is_refused_by_name(seconds: object) -> None:
    with pytest.raises(UsageError, match="windowDuration must be"):
        duration_ms(seconds, "windowDuration")  # type: ignore[arg-type]


def test_a_moment_survives_the_way_to_a_datetime_and_back() -> None:
    assert to_ms(to_datetime(1_600_000_000_123)) == 1_600_000_000_123
    assert to_ms(1_600_000_000.5) == 1_600_000_000_500
    assert to_ms(datetime.fromisoformat("2026-01-02T03:04:05.678")) % 1000 == 678


def test_batch_times_answer_as_sparks_do() -> None:
    assert Time(1500).milliseconds() == 1500
    assert str(Time(1500)) == "1500 ms"
    assert clock_face(1500, with_millis=True).endswith(":01.500")
    assert clock_face(1500, with_millis=False).endswith(":01")
