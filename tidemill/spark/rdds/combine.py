"""Reducing by key: fewer exchanges than PySpark, and a faster loop inside the task.

PySpark combines in every partition, exchanges, and combines again, whatever the number of
partitions. With a single partition everything is already in one place: one local combine is the
whole reduction, and the batch needs one task instead of two stages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner, portable_hash
from pyspark.resultiterable import ResultIterable
from pyspark.shuffle import Aggregator, ExternalMerger

from tidemill.tasks.fused_loop import compiled_loop
from tidemill.tasks.records import RecordStep, steps_of
from tidemill.tasks.worker import tune_worker, used_memory_mb

Pairs = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Combiner:
    """How values become a combined value. ``create`` is None where a value already is one."""

    create: Callable[[Any], Any] | None
    merge_value: Callable[[Any, Any], Any]
    merge_combiners: Callable[[Any, Any], Any]

    @classmethod
    def reducing(cls, func: Callable[[Any, Any], Any]) -> Combiner:
        return cls(None, func, func)

    def of_combiners(self) -> Combiner:
        """The same, for input that has been combined once already."""
        return Combiner.reducing(self.merge_combiners)


class CombineLocally:
    """``mapPartitionsWithIndex`` function: combines by key what some steps make of a partition.

    When the worker has used up ``memory_mb``, PySpark's merger takes over, which spills to disk.
    """

    # Between two looks at the memory the loop does nothing but its work. Records, not pairs: a
    # flatMap before the combine step may make many pairs of a record.
    CHECK_EVERY = 5_000

    def __init__(
        self, combiner: Combiner, memory_mb: float, steps: Sequence[RecordStep] = ()
    ) -> None:
        self._combiner = combiner
        self._memory_mb = memory_mb
        self._steps = tuple(steps)

    def __call__(self, _: int, records: Iterable[Any]) -> Pairs:
        tune_worker()
        loop = compiled_loop(tuple(step.kind for step in self._steps))
        functions = [step.func for step in self._steps]
        create, merge = self._combiner.create, self._combiner.merge_value
        records = iter(records)
        combined: dict[Any, Any] = {}
        try:
            for first in records:
                some = chain((first,), islice(records, self.CHECK_EVERY))
                loop(some, combined, create, merge, *functions)
                if used_memory_mb() > self._memory_mb:
                    return self._combine_on_disk(combined, records)
        except StopIteration as error:
            # Let through, it would look like the end of the data to whoever iterates over this.
            raise RuntimeError("a function of the stream raised StopIteration") from error
        return iter(combined.items())

    def _combine_on_disk(self, combined: dict[Any, Any], records: Iterable[Any]) -> Pairs:
        for step in self._steps:
            records = step.apply(step.func, records)
        create = self._combiner.create or _same
        merger: ExternalMerger[Any, Any, Any] = ExternalMerger(
            Aggregator(create, self._combiner.merge_value, self._combiner.merge_combiners),
            self._memory_mb,
        )
        merger.data = combined
        merger.mergeValues(records)
        return merger.items()


def _same(value: Any) -> Any:
    return value


def combine_by_key(
    rdd: RDD[Any],
    combiner: Combiner,
    num_partitions: int | None,
    partition_func: Callable[[Any], int] = portable_hash,
) -> RDD[Any]:
    """``rdd.combineByKey``; without a number of partitions, as many as the input is worth."""
    partitions = rdd.getNumPartitions()
    target = reduce_partitions(partitions, num_partitions, rdd.ctx)
    if target == 0:
        return rdd
    memory_mb = rdd._memory_limit()
    beginning, steps = steps_of(rdd)
    combine = CombineLocally(combiner, memory_mb * 0.9, steps)
    # Whoever has partitioned by key keeps that, unless a step on the way has changed the keys.
    local = beginning.mapPartitionsWithIndex(combine, rdd.partitioner is not None)
    if partitions == 1:
        # One partition is partitioned by key, trivially: PySpark leaves out an exchange into one.
        local.partitioner = Partitioner(1, partition_func)
    exchanged = local.partitionBy(target, partition_func)
    if exchanged is local:
        return local
    return exchanged.mapPartitionsWithIndex(
        CombineLocally(combiner.of_combiners(), memory_mb), True
    )


def place_by_key(
    rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
) -> RDD[Any]:
    """``rdd.partitionBy``, without an exchange where there is one partition before and after."""
    if rdd.getNumPartitions() == num_partitions == 1:
        return rdd
    return rdd.partitionBy(num_partitions, partition_func)


def compute_fully(rdd: RDD[Any]) -> None:
    """Compute all of a persisted RDD. The JVM alone goes over the result: no second Python task."""
    rdd._jrdd.count()


def group_by_key(rdd: RDD[Any], num_partitions: int | None) -> RDD[Any]:
    """``rdd.groupByKey``, without an exchange where everything is in one partition already."""
    partitions = rdd.getNumPartitions()
    target = reduce_partitions(partitions, num_partitions, rdd.ctx)
    if partitions == target == 1:
        return combine_by_key(rdd, LISTS, 1).mapValues(ResultIterable)
    return rdd.groupByKey(target) if target else rdd


def reduce_partitions(
    partitions: int, num_partitions: int | None, spark_context: SparkContext
) -> int:
    """How many partitions a reduction gives: what the user asked for; else none for none, one for
    one, and the default parallelism for more."""
    if num_partitions is not None:
        return num_partitions
    return partitions if partitions < 2 else spark_context.defaultParallelism


def _list_of(value: Any) -> list[Any]:
    return [value]


def _append(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


LISTS = Combiner(_list_of, _append, operator.add)
"""All values of a key."""
