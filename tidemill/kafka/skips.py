"""Counts offsets that tasks skip because their records are gone, for a reader that allows that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from tidemill.kafka.partitions import Positions, TopicPartition

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

Skips = dict[tuple[str, int, int], int]
"""How many offsets were skipped, by topic, partition and the first of them."""


class SkipsParam(AccumulatorParam[Skips]):
    """Merges reports. A task that runs twice skips the same offsets twice: they count once."""

    def zero(self, value: Skips) -> Skips:
        return {}

    def addInPlace(self, value1: Skips, value2: Skips) -> Skips:
        for key, count in value2.items():
            value1.setdefault(key, count)
        return value1


def new_skips(spark_context: SparkContext) -> Accumulator[Skips]:
    return spark_context.accumulator({}, SkipsParam())


def take_skips_between(skips: Accumulator[Skips], starts: Positions, ends: Positions) -> int:
    """Return how many offsets of some ranges were skipped since the last call."""
    found = 0
    for key in list(skips.value):  # a copy, as below
        part = TopicPartition(*key[:2])
        if starts.get(part, 0) <= key[2] < ends.get(part, 0):
            found += skips.value.pop(key, 0)
    return found


def take_skips(skips: Accumulator[Skips]) -> int:
    """Return how many offsets were skipped since the last call."""
    # A copy first: PySpark's thread adds the reports of tasks that end at this very moment.
    return sum(skips.value.pop(key, 0) for key in list(skips.value))
