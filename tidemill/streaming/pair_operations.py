"""Operations on streams of pairs ``(key, value)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.core.rdd import RDD, portable_hash

from tidemill.spark.rdds.combine import combine_by_key, group_by_key, reduce_partitions
from tidemill.streaming.graph.transformations import combine_nodes, per_rdd, per_record
from tidemill.streaming.stream_handle import StreamHandle, StreamT
from tidemill.streaming.util import chosen_partitions
from tidemill.tasks.combine_step import Combiner
from tidemill.tasks.record_steps import FlatMapValues, MapValues


class PairOperations(StreamHandle[StreamT]):
    """The operations of a DStream whose records are pairs.

    Where ``numPartitions`` is left out, a batch that lies in one partition is reduced there, without
    an exchange, and a larger one is spread over ``spark.default.parallelism`` partitions.
    """

    def mapValues(self, f: Callable[[Any], Any]) -> StreamT:
        """Apply ``f`` to each value; keys and partitioning stay."""
        return self._stream(per_record(self._node, MapValues(f), True))

    def flatMapValues(self, f: Callable[[Any], Iterable[Any]]) -> StreamT:
        """Make a pair of each item of ``f`` of each value; keys and partitioning stay."""
        return self._stream(per_record(self._node, FlatMapValues(f), True))

    def reduceByKey(
        self, func: Callable[[Any, Any], Any], numPartitions: int | None = None
    ) -> StreamT:
        """Reduce the values of each key in a batch by ``func``."""
        return self._combined(Combiner.reducing(func), numPartitions)

    def combineByKey(
        self,
        createCombiner: Callable[[Any], Any],
        mergeValue: Callable[[Any, Any], Any],
        mergeCombiners: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
    ) -> StreamT:
        """Combine the values of each key in a batch into a value of another type."""
        return self._combined(Combiner(createCombiner, mergeValue, mergeCombiners), numPartitions)

    def _combined(self, combiner: Combiner, partitions: int | None) -> StreamT:
        chosen = chosen_partitions(partitions)
        return self._stream(per_rdd(self._node, lambda rdd: combine_by_key(rdd, combiner, chosen)))

    def groupByKey(self, numPartitions: int | None = None) -> StreamT:
        """Collect all values of each key in a batch."""
        chosen = chosen_partitions(numPartitions)
        return self._stream(per_rdd(self._node, lambda rdd: group_by_key(rdd, chosen)))

    def partitionBy(
        self, numPartitions: int, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> StreamT:
        """Place each pair by ``partitionFunc`` of its key."""
        chosen = chosen_partitions(numPartitions)
        return self._stream(per_rdd(self._node, lambda rdd: rdd.partitionBy(chosen, partitionFunc)))

    def cogroup(self, other: StreamHandle[Any], numPartitions: int | None = None) -> StreamT:
        """Give for each key of either stream its values here and its values there."""
        return self._with_other("cogroup", other, numPartitions)

    def join(self, other: StreamHandle[Any], numPartitions: int | None = None) -> StreamT:
        """Give ``(key, (value here, value there))`` for each pair of values of a key."""
        return self._with_other("join", other, numPartitions)

    def leftOuterJoin(self, other: StreamHandle[Any], numPartitions: int | None = None) -> StreamT:
        """Join as :meth:`join`, with None for the other side where a key is only here."""
        return self._with_other("leftOuterJoin", other, numPartitions)

    def rightOuterJoin(self, other: StreamHandle[Any], numPartitions: int | None = None) -> StreamT:
        """Join as :meth:`join`, with None for this side where a key is only there."""
        return self._with_other("rightOuterJoin", other, numPartitions)

    def fullOuterJoin(self, other: StreamHandle[Any], numPartitions: int | None = None) -> StreamT:
        """Join as :meth:`join`, with None for the side that lacks the key."""
        return self._with_other("fullOuterJoin", other, numPartitions)

    def _with_other(
        self, method: str, other: StreamHandle[Any], num_partitions: int | None
    ) -> StreamT:
        """Call ``rdd.method(other's rdd)`` in each batch."""
        chosen = chosen_partitions(num_partitions)

        def combine(_: int, a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
            widest = max(a.getNumPartitions(), b.getNumPartitions())
            partitions = reduce_partitions(widest, chosen, a.ctx)
            combined: RDD[Any] = getattr(a, method)(b, partitions)
            return combined

        return self._stream(combine_nodes(self._node, other._node, combine))
