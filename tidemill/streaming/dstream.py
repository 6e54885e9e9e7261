"""The DStream API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from operator import add
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from pyspark import RDD, StorageLevel

from tidemill.common.times import duration_ms, to_ms
from tidemill.errors import ProgramError
from tidemill.spark.rdds.combine import combine_by_key
from tidemill.spark.rdds.record_chain import apply_step
from tidemill.spark.session.failures import is_file_already_there
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.graph.stateful_node import StatefulNode, StateSnapshotsNode
from tidemill.streaming.graph.stateless_nodes import OutputNode, TransformedNode
from tidemill.streaming.pair_operations import PairOperations
from tidemill.streaming.util import TransformFunction, rddToFileName, with_time
from tidemill.streaming.window_operations import WindowOperations
from tidemill.tasks.combine_step import Combiner
from tidemill.tasks.record_steps import (
    CountRecords,
    CountValues,
    FilterRecords,
    FlatMapRecords,
    MapPartition,
    MapRecords,
    RecordStep,
)

if TYPE_CHECKING:
    from tidemill.streaming.context import StreamingContext

__all__ = ["DStream"]

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")


class DStream(PairOperations, WindowOperations, Generic[T_co]):
    """A sequence of RDDs, one for each batch, and the operations on all of them.

    A program never makes one: it gets it from a :class:`StreamingContext` or from an operation on
    another DStream. Nothing runs before an output operation (``pprint``, ``foreachRDD``,
    ``saveAsTextFiles``) asks for it and the context is started.

    Operations on streams of pairs are in ``pair_operations.py``, those over windows in
    ``window_operations.py``.
    """

    def __init__(
        self, jdstream: DStreamNode, ssc: StreamingContext, jrdd_deserializer: Any = None
    ) -> None:
        # The parameters have PySpark's names; here the first is a node of our own graph, and RDDs
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

    def context(self) -> StreamingContext:
        """The context this stream belongs to."""
        return self._ssc

    # -- record by record ----------------------------------------------------------------------

    def map(
        self: DStream[T], f: Callable[[T], U], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """``f`` of each record."""
        return self._per_record(MapRecords(f), preservesPartitioning)

    def flatMap(
        self: DStream[T], f: Callable[[T], Iterable[U]], preservesPartitioning: bool = False
    ) -> DStream[U]:
        """All items of ``f`` of each record."""
        return self._per_record(FlatMapRecords(f), preservesPartitioning)

    def filter(self: DStream[T], f: Callable[[T], bool]) -> DStream[T]:
        """The records for which ``f`` is true."""
        return self._per_record(FilterRecords(f), True)

    # -- partition by partition ----------------------------------------------------------------

    def mapPartitions(
        self: DStream[T],
        f: Callable[[Iterable[T]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """``f`` of an iterator over each partition."""
        return self.mapPartitionsWithIndex(lambda _, records: f(records), preservesPartitioning)

    def mapPartitionsWithIndex(
        self: DStream[T],
        f: Callable[[int, Iterable[T]], Iterable[U]],
        preservesPartitioning: bool = False,
    ) -> DStream[U]:
        """``f`` of the number of each partition and an iterator over it."""
        return self._per_partition(MapPartition(f), preservesPartitioning)

    def glom(self: DStream[T]) -> DStream[list[T]]:
        """Each partition as one list."""
        return self.mapPartitions(lambda records: [list(records)])

    def repartition(self: DStream[T], numPartitions: int) -> DStream[T]:
        """The same records in ``numPartitions`` partitions."""
        return self._per_rdd(lambda rdd: rdd.repartition(numPartitions))

    # -- batch by batch ------------------------------------------------------------------------

    def count(self) -> DStream[int]:
        """One record for each batch: how many there are."""
        return self._per_partition(CountRecords()).reduceByKey(add, 1).map(lambda pair: pair[1])

    def countByValue(self: DStream[T]) -> DStream[tuple[T, int]]:
        """Each distinct record with the number of times it occurs in the batch."""

        def count(rdd: RDD[T]) -> RDD[Any]:
            counted = rdd.mapPartitionsWithIndex(CountValues(rdd._memory_limit() * 0.9))
            return combine_by_key(counted, Combiner.reducing(add), None)

        return self._per_rdd(count)

    def reduce(self: DStream[T], func: Callable[[T, T], T]) -> DStream[T]:
        """One record for each batch that has any: all of them reduced by ``func``."""
        keyed = self.map(lambda record: (None, record))
        return keyed.reduceByKey(func, 1).map(lambda pair: pair[1])

    def transform(
        self: DStream[T],
        func: Callable[[RDD[T]], RDD[U]] | Callable[[datetime, RDD[T]], RDD[U]],
    ) -> TransformedDStream[U]:
        """Any function of each batch's RDD, or of the batch time and the RDD.

        ``func`` runs on the driver when a batch is made, before its output operations.
        """
        return TransformedDStream(self, func)

    def transformWith(
        self: DStream[T],
        func: Callable[[RDD[T], RDD[U]], RDD[V]] | Callable[[datetime, RDD[T], RDD[U]], RDD[V]],
        other: DStream[U],
        keepSerializer: bool = False,
    ) -> DStream[V]:
        """Any function of this stream's and another stream's RDD, or of the time and both."""
        timed = with_time(func, 2, "transformWith")
        return self._join_streams(other, timed)

    def union(self, other: DStream[U]) -> DStream[Any]:
        """All records of both streams."""
        if other._node.slide_ms != self._node.slide_ms:
            raise ProgramError("the two DStream should have same slide duration")
        return self.transformWith(lambda a, b: a.union(b), other)

    # -- storage -------------------------------------------------------------------------------

    def setName(self: DStream[T], name: str) -> DStream[T]:
        """Give an input, or a stream with state, the name under which its checkpoint knows it.

        Without one it has a number. A name stays right when a new version of the program has more
        streams, or has them in another order: ``getOrCreate(..., upgrade=True)`` goes by names.
        """
        self._node.graph.refuse_change_after_start()
        if not isinstance(name, str) or not name:
            raise ProgramError(f"the name of a stream must be a text, not {name!r}")
        if name in (".", "..") or len(quote(name, safe="")) > 200:
            raise ProgramError(
                f"{name!r:.100} cannot be the name of a stream: it names a folder, too"
            )
        self._node.name = name
        return self

    def cache(self: DStream[T]) -> DStream[T]:
        """Keep each batch's RDD in memory for as long as the stream can need it."""
        return self.persist(StorageLevel.MEMORY_ONLY)

    def persist(self: DStream[T], storageLevel: StorageLevel) -> DStream[T]:
        """Keep each batch's RDD at a storage level for as long as the stream can need it."""
        self._node.graph.refuse_change_after_start()
        self.is_cached = True
        self._node.storage_level = storageLevel
        return self

    def checkpoint(self: DStream[T], interval: float) -> DStream[T]:
        """Write the RDDs of every ``interval`` seconds to the context's checkpoint directory."""
        self._node.graph.refuse_change_after_start()
        self.is_checkpointed = True
        self._node.checkpoint_ms = duration_ms(interval, "the checkpoint interval")
        return self

    def slice(self, begin: datetime | float, end: datetime | float) -> list[RDD[Any]]:
        """The RDDs of the batches from ``begin`` to ``end``, both included and rounded down.

        Only those that are still remembered: see :meth:`StreamingContext.remember`.
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
        OutputNode(self._node, lambda time_ms, rdd: function.call(time_ms, [rdd]))

    def pprint(self, num: int = 10) -> None:
        """Print the first ``num`` records of each batch."""

        def take_and_print(time: datetime, rdd: RDD[Any]) -> None:
            taken = rdd.take(num + 1)
            rule = "-" * 43
            more = ["..."] if len(taken) > num else []
            # One call, so that several streams that print at once do not mix their lines.
            print("\n".join([rule, f"Time: {time}", rule, *map(str, taken[:num]), *more, ""]))

        self.foreachRDD(take_and_print)

    def saveAsTextFiles(self, prefix: str, suffix: str | None = None) -> None:
        """Write each batch as text to the directory ``prefix-<milliseconds>[.suffix]``."""

        def save(time: datetime, rdd: RDD[Any]) -> None:
            try:
                rdd.saveAsTextFile(rddToFileName(prefix, suffix, time))
            except Exception as error:
                # The batch has been written before: it is being run a second time.
                if not is_file_already_there(error):
                    raise

        self.foreachRDD(save)

    # -- how operations are made ---------------------------------------------------------------

    def _per_record(self, step: RecordStep, preserves: bool) -> DStream[Any]:
        return self._per_rdd(lambda rdd: apply_step(rdd, step, preserves))

    def _per_partition(
        self, func: Callable[[int, Iterable[Any]], Iterable[Any]], preserves: bool = False
    ) -> DStream[Any]:
        return self._per_rdd(lambda rdd: rdd.mapPartitionsWithIndex(func, preserves))

    def _per_rdd(self, func: Callable[[RDD[Any]], RDD[Any]]) -> DStream[Any]:
        return DStream(TransformedNode([self._node], lambda _, rdd: func(rdd)), self._ssc)

    def _stream_of(self, node: DStreamNode) -> DStream[Any]:
        return DStream(node, self._ssc)

    def _stream_with_state(self, node: StatefulNode) -> MapWithStateDStream:
        return MapWithStateDStream(node, self._ssc)

    def _join_streams(self, other: DStream[Any], func: Callable[..., Any]) -> DStream[Any]:
        """A stream of ``func(time, rdd, other's rdd)``."""
        if other._node.graph is not self._node.graph:
            raise ProgramError("two DStreams of different StreamingContexts cannot be combined")
        if other._node.slide_ms != self._node.slide_ms:
            raise ProgramError(
                f"the DStreams have different slide durations, {self._node.slide_ms} ms and "
                f"{other._node.slide_ms} ms: give them the same with window()"
            )
        function = TransformFunction(self._sc, func)
        node = TransformedNode(
            [self._node, other._node], lambda time_ms, a, b: function.call(time_ms, [a, b])
        )
        return DStream(node, self._ssc)


class TransformedDStream(DStream[U]):
    """A DStream that a function of RDDs makes from another one."""

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
    """What ``mapWithState`` returns: its function's results, and a way to all states."""

    _node: StatefulNode

    def stateSnapshots(self) -> DStream[tuple[Any, Any]]:
        """All keys and their states after each batch. Costs in proportion to all keys."""
        return DStream(StateSnapshotsNode(self._node), self._ssc)
