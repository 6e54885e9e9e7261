"""Reducing an RDD by key, with fewer exchanges than PySpark.

PySpark combines in every partition, exchanges, and combines again, whatever the number of
partitions. With a single partition everything is already in one place: one local combine is the
whole reduction, and the batch needs one task instead of two stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.core.rdd import Partitioner, portable_hash
from pyspark.resultiterable import ResultIterable

from tidemill.spark.rdds.batch_parallelism import default_partitions
from tidemill.spark.rdds.record_chain import steps_of
from tidemill.tasks.combine_step import LISTS, CombineLocally, Combiner


def combine_by_key(
    rdd: RDD[Any],
    combiner: Combiner,
    num_partitions: int | None,
    partition_func: Callable[[Any], int] = portable_hash,
) -> RDD[Any]:
    """Return ``rdd.combineByKey``; ``num_partitions`` of None is chosen by :func:`reduce_partitions`."""
    partitions = rdd.getNumPartitions()
    target = reduce_partitions(partitions, num_partitions, rdd.ctx)
    if partitions == 0:
        # Reduced to nothing, but not to no partition: a count of the result is 0, as in PySpark.
        return rdd.ctx.parallelize([], target)
    memory_mb = rdd._memory_limit()
    beginning, steps = steps_of(rdd)
    combine = CombineLocally(combiner, memory_mb * 0.9, steps)
    # An RDD that is partitioned by key stays so, unless a step in between has changed the keys.
    local = beginning.mapPartitionsWithIndex(combine, rdd.partitioner is not None)
    if partitions == 1:
        # One partition is trivially partitioned by key: then PySpark leaves out an exchange into one.
        local.partitioner = Partitioner(1, partition_func)
    exchanged = local.partitionBy(target, partition_func)
    if exchanged is local:
        return local
    return exchanged.mapPartitionsWithIndex(
        CombineLocally(combiner.of_combiners(), memory_mb), True
    )


def group_by_key(rdd: RDD[Any], num_partitions: int | None) -> RDD[Any]:
    """Return ``rdd.groupByKey``, without an exchange if everything is in one partition already."""
    partitions = rdd.getNumPartitions()
    target = reduce_partitions(partitions, num_partitions, rdd.ctx)
    if partitions == target == 1:
        return combine_by_key(rdd, LISTS, 1).mapValues(ResultIterable)
    return rdd.groupByKey(target)


def place_by_key(
    rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
) -> RDD[Any]:
    """Return ``rdd.partitionBy``, without an exchange from one partition to one."""
    if rdd.getNumPartitions() == num_partitions == 1:
        return rdd
    return rdd.partitionBy(num_partitions, partition_func)


def reduce_partitions(
    partitions: int, num_partitions: int | None, spark_context: SparkContext
) -> int:
    """Return how many partitions a reduction gives: ``num_partitions`` if the user chose it; otherwise
    one for none or one, and for more the parallelism of the batch."""
    if num_partitions is not None:
        return num_partitions
    return 1 if partitions < 2 else default_partitions(spark_context)


def compute_fully(rdd: RDD[Any]) -> None:
    """Compute all of a persisted RDD. Only the JVM iterates over the result: no second Python task."""
    rdd._jrdd.count()
