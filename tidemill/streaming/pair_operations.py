"""Operations on streams of pairs ``(key, value)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyspark.core.rdd import RDD, portable_hash

from tidemill.errors import ProgramError
from tidemill.spark.rdds.combine import combine_by_key, group_by_key, reduce_partitions
from tidemill.state.keys import stable_hash
from tidemill.streaming.graph.map_with_state import MapWithState
from tidemill.streaming.graph.stateful_node import StatefulNode, initial_rdd
from tidemill.streaming.graph.update_state import UpdateState
from tidemill.streaming.state_spec import StateSpec
from tidemill.tasks.combine_step import Combiner
from tidemill.tasks.record_steps import FlatMapValues, MapValues, RecordStep

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.streaming.dstream import DStream, MapWithStateDStream
    from tidemill.streaming.graph.node import DStreamNode


class PairOperations:
    """What a DStream can do when its records are pairs.

    Where ``numPartitions`` is left out, a batch that lies in one partition is reduced there, without
    an exchange, and a larger one is spread over ``spark.default.parallelism`` partitions.
    """

    if TYPE_CHECKING:

        def _per_record(self, step: RecordStep, preserves: bool) -> DStream[Any]: ...

        def _per_rdd(self, func: Callable[[RDD[Any]], RDD[Any]]) -> DStream[Any]: ...

        def _join_streams(self, other: DStream[Any], func: Any) -> DStream[Any]: ...

        def _stream_of(self, node: DStreamNode) -> DStream[Any]: ...

        def _stream_with_state(self, node: StatefulNode) -> MapWithStateDStream: ...

        _node: DStreamNode
        _sc: SparkContext

    def mapValues(self, f: Callable[[Any], Any]) -> DStream[Any]:
        """``f`` of each value; keys and partitioning stay."""
        return self._per_record(MapValues(f), True)

    def flatMapValues(self, f: Callable[[Any], Iterable[Any]]) -> DStream[Any]:
        """A pair for each item of ``f`` of each value; keys and partitioning stay."""
        return self._per_record(FlatMapValues(f), True)

    def reduceByKey(
        self, func: Callable[[Any, Any], Any], numPartitions: int | None = None
    ) -> DStream[Any]:
        """The values of each key in a batch, reduced by ``func``."""
        return self._per_rdd(
            lambda rdd: combine_by_key(rdd, Combiner.reducing(func), numPartitions)
        )

    def combineByKey(
        self,
        createCombiner: Callable[[Any], Any],
        mergeValue: Callable[[Any, Any], Any],
        mergeCombiners: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
    ) -> DStream[Any]:
        """The values of each key in a batch, combined into a value of another type."""
        combiner = Combiner(createCombiner, mergeValue, mergeCombiners)
        return self._per_rdd(lambda rdd: combine_by_key(rdd, combiner, numPartitions))

    def groupByKey(self, numPartitions: int | None = None) -> DStream[Any]:
        """All values of each key in a batch."""
        return self._per_rdd(lambda rdd: group_by_key(rdd, numPartitions))

    def partitionBy(
        self, numPartitions: int, partitionFunc: Callable[[Any], int] = portable_hash
    ) -> DStream[Any]:
        """The same pairs, placed by ``partitionFunc`` of their keys."""
        return self._per_rdd(lambda rdd: rdd.partitionBy(numPartitions, partitionFunc))

    def cogroup(self, other: DStream[Any], numPartitions: int | None = None) -> DStream[Any]:
        """For each key of either stream: its values here and its values there."""
        return self._with_other("cogroup", other, numPartitions)

    def join(self, other: DStream[Any], numPartitions: int | None = None) -> DStream[Any]:
        """``(key, (value here, value there))`` for each pair of values of a key."""
        return self._with_other("join", other, numPartitions)

    def leftOuterJoin(self, other: DStream[Any], numPartitions: int | None = None) -> DStream[Any]:
        """As :meth:`join`, with None for the other side where a key is only here."""
        return self._with_other("leftOuterJoin", other, numPartitions)

    def rightOuterJoin(self, other: DStream[Any], numPartitions: int | None = None) -> DStream[Any]:
        """As :meth:`join`, with None for this side where a key is only there."""
        return self._with_other("rightOuterJoin", other, numPartitions)

    def fullOuterJoin(self, other: DStream[Any], numPartitions: int | None = None) -> DStream[Any]:
        """As :meth:`join`, with None for the side that lacks the key."""
        return self._with_other("fullOuterJoin", other, numPartitions)

    def updateStateByKey(
        self,
        updateFunc: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        initialRDD: RDD[Any] | Iterable[Any] | None = None,
        partitionFunc: Callable[[Any], int] = stable_hash,
    ) -> DStream[Any]:
        """A state for each key that lives from batch to batch.

        In every batch ``updateFunc(new values, state or None)`` is called for each key that has new
        values or a state; what it returns is the key's new state, and None ends it. The stream has
        the states of all keys. Needs a checkpoint directory.
        """
        if not callable(updateFunc):
            raise ProgramError(f"updateStateByKey needs a function, not {updateFunc!r}")
        node = StatefulNode(
            self._node,
            UpdateState(updateFunc),
            _state_partitions(self._sc, numPartitions),
            partitionFunc,
            initial_rdd(self._sc, initialRDD, "initialRDD"),
        )
        return self._stream_of(node)

    def mapWithState(self, spec: StateSpec) -> MapWithStateDStream:
        """``spec``'s function of each pair and of the state of its key, which lives from batch to batch.

        Costs in proportion to the pairs of a batch and the keys that time out, not to all keys. Needs a
        checkpoint directory.
        """
        if not isinstance(spec, StateSpec):
            raise ProgramError(f"mapWithState needs a StateSpec, not {type(spec).__name__}")
        node = StatefulNode(
            self._node,
            MapWithState(spec._function, spec._timeout_ms),
            _state_partitions(self._sc, spec._num_partitions),
            spec._partition_func,
            initial_rdd(self._sc, spec._initial, "initialState"),
        )
        return self._stream_with_state(node)

    def _with_other(
        self, method: str, other: DStream[Any], num_partitions: int | None
    ) -> DStream[Any]:
        """``rdd.method(other's rdd)`` of each batch."""

        def combine(_: Any, a: RDD[Any], b: RDD[Any]) -> RDD[Any]:
            widest = max(a.getNumPartitions(), b.getNumPartitions())
            partitions = reduce_partitions(widest, num_partitions, a.ctx)
            return getattr(a, method)(b, partitions) if partitions else a

        return self._join_streams(other, combine)


def _state_partitions(spark_context: SparkContext, asked_for: int | None) -> int:
    if asked_for is None:
        return spark_context.defaultParallelism
    if isinstance(asked_for, bool) or not isinstance(asked_for, int) or asked_for < 1:
        raise ProgramError(f"numPartitions must be at least 1, not {asked_for!r}")
    return asked_for
