"""The DStream API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from operator import add
from typing import Any, TypeVar
from urllib.parse import quote

from pyspark import RDD, StorageLevel

from tidemill.common.times import duration_ms, to_ms
from tidemill.errors import OptionError, ProgramError
from tidemill.spark.rdds.combine import combine_by_key
from tidemill.state.keys import stable_hash
from tidemill.streaming.graph.map_with_state import MapWithState
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.graph.state import (
    StatefulNode,
    StateFunction,
    StateSnapshotsNode,
    initial_rdd,
)
from tidemill.streaming.graph.transformations import (
    TransformedNode,
    combine_nodes,
    per_partition,
    per_rdd,
    per_record,
)
from tidemill.streaming.graph.update_state import UpdateState
from tidemill.streaming.lifecycle import StreamLifecycle
from tidemill.streaming.pair_operations import PairOperations
from tidemill.streaming.pyspark_parts import NotHere, PySparkDStream
from tidemill.streaming.state_spec import StateSpec
from tidemill.streaming.util import (
    TransformFunction,
    require_partitions,
    require_storage_level,
    with_time,
)
from tidemill.streaming.window_operations import WindowOperations
from tidemill.tasks.combine_step import Combiner
from tidemill.tasks.record_steps import (
    CountRecords,
    CountValues,
    FilterRecords,
    FlatMapRecords,
    MapPartition,
    MapRecords,
)

__all__ = ["DStream"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")


class DStream(
    PairOperations["DStream[Any]"], WindowOperations["DStream[Any]"], PySparkDStream[T_co]
):
    """A sequence of RDDs, one for each batch, and the operations on all of them.

    A program never makes one: it gets it from a ``StreamingContext`` or from an operation on another
    DStream. Nothing runs before an output operation (``pprint``, ``foreachRDD``,
    ``saveAsTextFiles``) asks for it and the context is started.

    Operations on streams of pairs are in ``pair_operations.py``, those over windows in
    ``window_operations.py``.
    """

    _jtime = NotHere()
    _validate_window_param = NotHere()

    def __init__(
        self, jdstream: DStreamNode, ssc: StreamLifecycle, jrdd_deserializer: Any = None
    ) -> None:
        # The parameters have PySpark's names. Here the first is a node of our own graph, and RDDs
        # know their own serializers.
        self._node = jdstream
        self._ssc = ssc
        self._sc = ssc._sc
        self.is_cached = False
        self.is_checkpointed = False

    @property
    def _slideDuration(self) -> float:
        """The slide in seconds."""
        return self._node.slide_ms / 1000

    def context(self) -> StreamLifecycle:
        """Return the ``StreamingContext`` of this stream."""
        # Typed by its base: contexts make DStreams, so this module cannot import theirs.
        return self._ssc

    def _stream(self, node: DStreamNode) -> DStream[Any]:
        return DStream(node, self._ssc)

    # -- record by record ----------------------------------------------------------------------

    def map(
        self: DStream[T], f: Callable[[T], U], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Apply ``f`` to each record."""
        return self._stream(per_record(self._node, MapRecords(f), preservesPartitioning))

    def flatMap(
        self: DStream[T], f: Callable[[T], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """Apply ``f`` to each record, and give all items of its results."""
        return self._stream(per_record(self._node, FlatMapRecords(f), preservesPartitioning))

    def filter(self: DStream[T], f: Callable[[T], bool]) -> DStream[T]:
        """Keep the records for which ``f`` is true."""
        return self._stream(per_record(self._node, FilterRecords(f), True))

    # -- partition by partition ----------------------------------------------------------------

    def mapPartitions(
        self: DStream[T],
        f: Callable[[Iterable[T]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """Apply ``f`` to an iterator over each partition."""
        return self.mapPartitionsWithIndex(lambda _, records: f(records), preservesPartitioning)

    def mapPartitionsWithIndex(
        self: DStream[T],
        f: Callable[[int, Iterable[T]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """Apply ``f`` to the number of each partition and an iterator over it."""
        return self._stream(per_partition(self._node, MapPartition(f), preservesPartitioning))

    def glom(self: DStream[T]) -> DStream[list[T]]:
        """Make one list of each partition."""
        return self.mapPartitions(lambda records: [list(records)])

    def repartition(self: DStream[T], numPartitions: int) -> DStream[T]:
        """Spread the records over ``numPartitions`` partitions."""
        number = require_partitions(numPartitions)
        return self._stream(per_rdd(self._node, lambda rdd: rdd.repartition(number)))

    # -- batch by batch ------------------------------------------------------------------------

    def count(self) -> DStream[int]:
        """Count the records of each batch: one number for each."""
        counts = self._stream(per_partition(self._node, CountRecords()))
        return counts.reduceByKey(add, 1).map(lambda pair: pair[1])

    def countByValue(self: DStream[T]) -> DStream[tuple[T, int]]:
        """Count how often each distinct record occurs in the batch."""

        def count(rdd: RDD[T]) -> RDD[Any]:
            counted = rdd.mapPartitionsWithIndex(CountValues(rdd._memory_limit() * 0.9))
            return combine_by_key(counted, Combiner.reducing(add), None)

        return self._stream(per_rdd(self._node, count))

    def reduce(self: DStream[T], func: Callable[[T, T], T]) -> DStream[T]:
        """Reduce all records of each batch by ``func`` to one, or to none if it is empty."""
        keyed = self.map(lambda record: (None, record))
        return keyed.reduceByKey(func, 1).map(lambda pair: pair[1])

    def transform(
        self: DStream[T],
        func: Callable[[RDD[T]], RDD[U]] | Callable[[datetime, RDD[T]], RDD[U]],
    ) -> TransformedDStream[U]:
        """Apply any function to each batch's RDD, or to the batch time and the RDD.

        ``func`` runs on the driver when the jobs of a batch are made, before its output operations.
        """
        return TransformedDStream(self, func)

    def transformWith(
        self: DStream[T],
        func: Callable[[RDD[T], RDD[U]], RDD[V]] | Callable[[datetime, RDD[T], RDD[U]], RDD[V]],
        other: DStream[U],
        keepSerializer: bool = False,
    ) -> DStream[V]:
        """Apply any function to this stream's and another stream's RDD, or to the time and both."""
        function = TransformFunction(self._sc, with_time(func, 2, "transformWith"))
        node = combine_nodes(
            self._node, other._node, lambda time_ms, a, b: function.call(time_ms, [a, b])
        )
        return self._stream(node)

    def union(self, other: DStream[U]) -> DStream[Any]:
        """Give all records of both streams."""
        if other._node.slide_ms != self._node.slide_ms:
            raise ProgramError(
                "the two DStream should have same slide duration", str(other._node.site)
            )
        return self.transformWith(lambda a, b: a.union(b), other)

    # -- state ---------------------------------------------------------------------------------

    def updateStateByKey(
        self,
        updateFunc: Callable[[Any, Any], Any],
        numPartitions: int | None = None,
        initialRDD: RDD[Any] | Iterable[Any] | None = None,
        partitionFunc: Callable[[Any], int] = stable_hash,
    ) -> DStream[Any]:
        """Keep a state for each key of a stream of pairs, from batch to batch.

        In every batch ``updateFunc(new values, state or None)`` is called for each key that has new
        values or a state. It returns the key's new state, or None to end it. The stream has the
        states of all keys. Needs a directory: ``StreamingContext.checkpoint``, or
        ``SparkContext.setCheckpointDir`` for state that ends with the stream.
        """
        if not callable(updateFunc):
            raise OptionError(
                f"updateStateByKey needs a function, not {updateFunc!r}", "updateFunc"
            )
        initial = initial_rdd(self._sc, initialRDD, "initialRDD")
        node = self._stateful(UpdateState(updateFunc), numPartitions, partitionFunc, initial)
        return self._stream(node)

    def mapWithState(self, spec: StateSpec) -> MapWithStateDStream:
        """Apply ``spec``'s function to each pair and the state of its key, which lives on.

        Costs in proportion to the pairs of a batch and the keys that time out, not to all keys. Needs a
        checkpoint directory.
        """
        if not isinstance(spec, StateSpec):
            raise OptionError(f"mapWithState needs a StateSpec, not {type(spec).__name__}", "spec")
        node = self._stateful(
            MapWithState(spec._function, spec._timeout_ms),
            spec._num_partitions,
            spec._partition_func,
            initial_rdd(self._sc, spec._initial, "initialState"),
        )
        return MapWithStateDStream(node, self._ssc)

    def _stateful(
        self,
        function: StateFunction,
        num_partitions: int | None,
        partition_func: Callable[[Any], int],
        initial: RDD[Any] | None,
    ) -> StatefulNode:
        partitions = require_partitions(
            self._sc.defaultParallelism if num_partitions is None else num_partitions
        )
        node = StatefulNode(self._node, function, partitions, partition_func, initial)
        self._ssc._graph.add_stateful(node)
        return node

    # -- storage -------------------------------------------------------------------------------

    def setName(self: DStream[T], name: str) -> DStream[T]:
        """Name an input or a stream with state; its data is in the checkpoint under that name.

        Without a name it has a number. A name stays right when a new version of the program has more
        streams, or has them in another order: ``getOrCreate(..., upgrade=True)`` goes by names.
        """
        self._node.graph.refuse_change_after_start("a stream cannot be named")
        if not isinstance(name, str) or not name:
            raise OptionError(f"the name of a stream must be a text, not {name!r}", "name")
        if name in (".", "..") or len(quote(name, safe="")) > 200:
            raise OptionError(
                f"{name!r:.100} cannot be the name of a stream: it names a folder, too", "name"
            )
        self._node.name = name
        return self

    def cache(self: DStream[T]) -> DStream[T]:
        """Keep each batch's RDD in memory for as long as the stream can need it."""
        return self.persist(StorageLevel.MEMORY_ONLY)

    def persist(self: DStream[T], storageLevel: StorageLevel) -> DStream[T]:
        """Keep each batch's RDD at ``storageLevel`` for as long as the stream can need it."""
        require_storage_level(storageLevel)
        self._node.graph.refuse_change_after_start("the storage level of a stream cannot change")
        self.is_cached = True
        self._node.storage_level = storageLevel
        return self

    def checkpoint(self: DStream[T], interval: float) -> DStream[T]:
        """Write the RDDs of every ``interval`` seconds to the context's checkpoint directory."""
        self._node.graph.refuse_change_after_start(
            "the checkpoint interval of a stream cannot change"
        )
        self.is_checkpointed = True
        self._node.checkpoint_ms = duration_ms(interval, "interval")
        return self

    def slice(self, begin: datetime | float, end: datetime | float) -> list[RDD[Any]]:
        """Return the RDDs of the batches from ``begin`` to ``end``, both included and rounded down.

        RDDs that are no longer remembered are left out: see ``StreamingContext.remember``.
        """
        zero_ms, slide_ms = self._node.zero_ms or 0, self._node.slide_ms
        begin_ms = zero_ms + (to_ms(begin) - zero_ms) // slide_ms * slide_ms
        with self._node.graph.lock:
            return self._node.slice(begin_ms, to_ms(end))

    # -- output --------------------------------------------------------------------------------

    def foreachRDD(
        self: DStream[T],
        func: Callable[[RDD[T]], None] | Callable[[datetime, RDD[T]], None],
    ) -> None:
        """Call ``func`` with each batch's RDD, or with the batch time and the RDD, on the driver."""
        function = TransformFunction(self._sc, with_time(func, 1, "foreachRDD"))
        self._ssc._graph.add_output(self._node, lambda time_ms, rdd: function.call(time_ms, [rdd]))

    def pprint(self, num: int = 10) -> None:
        """Print the first ``num`` records of each batch."""

        def take_and_print(time: datetime, rdd: RDD[Any]) -> None:
            taken = rdd.take(num + 1)
            rule = "-" * 43
            more = ["..."] if len(taken) > num else []
            # One call, so that streams that print at the same time do not mix their lines. Flushed: a batch
            # that is committed has been printed.
            lines = [rule, f"Time: {time}", rule, *map(str, taken[:num]), *more, ""]
            print("\n".join(lines), flush=True)

        self.foreachRDD(take_and_print)

    def saveAsTextFiles(self, prefix: str, suffix: str | None = None) -> None:
        """Write each batch as text to the directory ``prefix-<milliseconds>[.suffix]``.

        A reader finds the directory whole or not at all. A batch that runs again writes its rows unless
        they are all there; a directory of that name that is not its own it replaces.
        """
        self._ssc._graph.add_text_output(self._node, prefix, suffix)


class TransformedDStream(DStream[U]):
    """The DStream that ``transform`` returns."""

    def __init__(
        self,
        prev: DStream[T],
        func: Callable[[RDD[T]], RDD[U]] | Callable[[datetime, RDD[T]], RDD[U]],
    ) -> None:
        self.prev = prev
        self.func = with_time(func, 1, "transform")
        function = TransformFunction(prev._sc, self.func)
        node = TransformedNode([prev._node], lambda time_ms, rdd: function.call(time_ms, [rdd]))
        super().__init__(node, prev._ssc)


class MapWithStateDStream(DStream[Any]):
    """The DStream that ``mapWithState`` returns: its function's results, and a way to all states."""

    _node: StatefulNode

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """Give all keys and their states after each batch. Costs in proportion to all keys."""
        return self._stream(StateSnapshotsNode(self._node))
