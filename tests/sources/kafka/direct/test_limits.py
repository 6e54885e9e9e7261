"""How much of each partition a batch takes, without a broker."""

from __future__ import annotations

import pytest

from tidemill.kafka.partitions import TopicPartition
from tidemill.sources.kafka.direct.limits import PartitionLimits

A, B, C = (TopicPartition("t", number) for number in range(3))


def taken(limits: PartitionLimits, lags: list[int], most: int | None) -> list[int]:
    starts = {part: 10 for part, _ in zip((A, B, C), lags, strict=False)}
    ends = {part: 10 + lag for part, lag in zip(starts, lags, strict=True)}
    return [end - 10 for end in limits.apply(starts, ends, most).values()]


@pytest.mark.parametrize(
    ("limits", "lags", "most", "expected"),
    [
        (PartitionLimits(1000), [900, 100], None, [900, 100]),
        (PartitionLimits(1000), [900, 100], 100, [90, 10]),
        (PartitionLimits(1000), [900, 100, 0], 100, [90, 10, 0]),
        (PartitionLimits(1000, 50), [900, 100], None, [50, 50]),
        (PartitionLimits(1000, 50), [900, 100], 100, [50, 10]),
        (PartitionLimits(2000, 50), [900, 60], None, [100, 60]),
        (PartitionLimits(1000, 50, 20), [900, 100], 100, [50, 20]),
        (PartitionLimits(1000, None, 20), [900, 5], 10, [20, 5]),
        (PartitionLimits(200, 1, 1), [900, 5], 10, [1, 1]),
    ],
)
def test_shares_and_rates(
    limits: PartitionLimits, lags: list[int], most: int | None, expected: list[int]
) -> None:
    assert taken(limits, lags, most) == expected


def test_partitions_that_went_back_stay_as_they_are() -> None:
    limits = PartitionLimits(1000, 5)
    assert limits.apply({A: 7, B: 90}, {A: 3, B: 100}, 4) == {A: 3, B: 94}
