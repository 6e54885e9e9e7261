"""Reducing by key over a sliding window, without reading the whole window for every batch.

Each batch is reduced once into a *block*: an RDD with one element in each partition, a dictionary of
the keys that hash to it. The blocks of all batches are partitioned alike, so a window is updated
without an exchange, in one task for each partition::

    state(t - slide)  - blocks that left the window  + blocks that entered it  =  state(t)

The state counts for every key how many blocks of the window hold it. When the last one leaves, the
key is gone: the result equals a plain recomputation of the window, whatever the inverse function
makes of the last value. For the same reason a user's filter is applied to the result, not to the state.

State that is always made from the state before it grows an endless lineage. So every tenth window is
made from its blocks alone, which also keeps rounding errors of an inexact inverse from adding up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import RDD, StorageLevel
from pyspark.core.rdd import portable_hash

from tidemill.spark.rdds.batch_parallelism import default_partitions
from tidemill.spark.rdds.combine import combine_by_key
from tidemill.streaming.graph.node import DStreamNode
from tidemill.tasks.combine_step import Combiner
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import SparkContext

Function = Callable[[Any, Any], Any]


class BlockNode(DStreamNode):
    """Reduces every batch of a stream of pairs by key into one block."""

    def __init__(self, parent: DStreamNode, combiner: Combiner, num_partitions: int | None) -> None:
        super().__init__(parent.graph, parent.slide_ms, [parent])
        self._combiner = combiner
        # Unless the user asked for a number, a small batch has one partition.
        self._requested_partitions = num_partitions
        self.storage_level = StorageLevel.MEMORY_AND_DISK

    def forget_run(self) -> None:
        super().forget_run()
        # The times of batches without records: a long window asks for each many times.
        self._empty_times: set[int] = set()
        # How many partitions the block of a time has.
        self._partitions: dict[int, int] = {}

    def compute(self, time_ms: int) -> RDD[Any] | None:
        (parent,) = self.dependencies
        rdd = None if time_ms in self._empty_times else parent.get_or_compute(time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            self._empty_times.add(time_ms)
            return None
        partitions = self._requested_partitions
        if partitions is None:
            is_large = rdd.getNumPartitions() > 1
            partitions = default_partitions(self.graph.spark_context) if is_large else 1
        self._partitions[time_ms] = partitions
        combined = combine_by_key(rdd, self._combiner, partitions)
        return combined.mapPartitionsWithIndex(_ToBlock(time_ms), preservesPartitioning=True)

    def clear_metadata(self, time_ms: int) -> None:
        super().clear_metadata(time_ms)
        self._empty_times = {
            at_ms for at_ms in self._empty_times if at_ms > time_ms - self.remember_ms
        }
        for at_ms in [at_ms for at_ms in self._partitions if at_ms <= time_ms - self.remember_ms]:
            del self._partitions[at_ms]

    def most_partitions(self, after_ms: int, until_ms: int) -> int:
        """Return the largest number of partitions of the blocks of a window.

        It depends on the batches of the window alone: the window has the same partitions when it is computed
        again after a restart.
        """
        inside = (n for at_ms, n in self._partitions.items() if after_ms < at_ms <= until_ms)
        return max(inside, default=self._requested_partitions or 1)


class ReducedWindowNode(DStreamNode):
    """Reduces the blocks of a window to pairs of key and value."""

    REFRESH_EVERY = 10

    def __init__(
        self,
        blocks: BlockNode,
        merge: Function,
        inverse: Function | None,
        window_ms: int,
        slide_ms: int,
        keep: Callable[[tuple[Any, Any]], Any] | None = None,
    ) -> None:
        super().__init__(blocks.graph, slide_ms, [blocks])
        self._blocks = blocks
        self._merge = merge
        self._inverse = inverse
        self._window_ms = window_ms
        self._keep = keep
        # Windows that do not overlap share no blocks.
        self._is_incremental = inverse is not None and slide_ms < window_ms

    def forget_run(self) -> None:
        super().forget_run()
        self._states: dict[int, RDD[Any]] = {}
        self._since_refresh = 0

    @property
    def looks_back_ms(self) -> int:
        # Blocks that leave a window are needed once more, to take them out of the state.
        return self._window_ms

    def compute(self, time_ms: int) -> RDD[Any] | None:
        window_start_ms = time_ms - self._window_ms
        before = self._states.get(time_ms - self.slide_ms)
        if before is None or self._since_refresh + 1 >= self.REFRESH_EVERY:
            parts = self._blocks_in(window_start_ms, time_ms)
            self._since_refresh = 0
        else:
            left = self._blocks_in(window_start_ms - self.slide_ms, window_start_ms)
            entered = self._blocks_in(time_ms - self.slide_ms, time_ms)
            parts = [before, *left, *entered]
            self._since_refresh += 1
        partitions = self._blocks.most_partitions(window_start_ms, time_ms)
        if not parts:
            # Reduced to nothing, but not to no partition: a count of the result is 0, as in PySpark.
            return self.graph.spark_context.parallelize([], partitions)
        merged = _zip_partitions(self.graph.spark_context, parts, partitions)
        state = merged.mapPartitionsWithIndex(
            _MergeWindow(self._merge, self._inverse, window_start_ms), preservesPartitioning=True
        )
        if self._is_incremental:
            state.persist(StorageLevel.MEMORY_AND_DISK)
            self._states[time_ms] = state
        return state.mapPartitionsWithIndex(_ToPairs(self._keep), preservesPartitioning=True)

    def clear_metadata(self, time_ms: int) -> None:
        super().clear_metadata(time_ms)
        for at_ms in [at_ms for at_ms in self._states if at_ms <= time_ms - self.remember_ms]:
            state = self._states.pop(at_ms)
            if self.graph.unpersist:
                state.unpersist()

    def _blocks_in(self, after_ms: int, until_ms: int) -> list[RDD[Any]]:
        return self._blocks.slice(after_ms + 1, until_ms)


def _zip_partitions(spark_context: SparkContext, rdds: list[RDD[Any]], partitions: int) -> RDD[Any]:
    """Make one RDD whose partition *i* has the elements of partition *i* of all ``rdds``.

    Spark's union does that for RDDs that are partitioned alike. RDDs with another number of partitions
    are exchanged first.
    """
    if partitions == 1:
        return spark_context.union(rdds).coalesce(1)
    alike = [
        rdd
        if rdd.getNumPartitions() == partitions
        else rdd.flatMap(_SplitBlock(partitions)).partitionBy(partitions, _own_partition).values()
        for rdd in rdds
    ]
    union = spark_context.union(alike)
    if union.getNumPartitions() == partitions:
        return union
    return union.flatMap(_SplitBlock(partitions)).partitionBy(partitions, _own_partition).values()


class _ToBlock:
    """Makes a block of pairs: ``(batch time, {key: value})``. State is ``(None, {key: (value, blocks)})``."""

    def __init__(self, time_ms: int) -> None:
        self._time_ms = time_ms

    def __call__(self, _: int, pairs: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
        yield self._time_ms, dict(pairs)


class _SplitBlock:
    """Splits a block into one for each partition, keyed by the partition it belongs to."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, block: Any) -> Iterable[tuple[int, Any]]:
        time_ms, values = block
        split: dict[int, dict[Any, Any]] = {}
        for key, value in values.items():
            split.setdefault(portable_hash(key) % self._partitions, {})[key] = value
        return ((partition, (time_ms, part)) for partition, part in split.items())


def _own_partition(partition: int) -> int:
    return partition


class _MergeWindow:
    """Makes the state of a window from blocks of one partition, and perhaps the state before them."""

    def __init__(self, merge: Function, inverse: Function | None, window_start_ms: int) -> None:
        self._merge = merge
        self._inverse = inverse
        self._window_start_ms = window_start_ms

    def __call__(self, _: int, elements: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        state: dict[Any, tuple[Any, int]] = {}
        blocks = []
        for time_ms, values in elements:
            if time_ms is None:
                state.update(values)
            else:
                blocks.append((time_ms, values))
        # By time, so that blocks that left the window come first and a function that keeps an order works.
        for time_ms, values in sorted(blocks, key=lambda block: block[0]):
            if time_ms <= self._window_start_ms:
                self._take_out(state, values)
            else:
                self._put_in(state, values)
        yield None, state

    def _take_out(self, state: dict[Any, tuple[Any, int]], values: dict[Any, Any]) -> None:
        inverse = self._inverse
        assert inverse is not None
        for key, value in values.items():
            if key not in state:
                raise ValueError(
                    f"the key {key!r} left the window but cannot be found in it: a key must be equal "
                    "to itself after it was pickled, which NaN, for one, is not"
                )
            reduced, blocks = state[key]
            if blocks == 1:
                del state[key]
            else:
                state[key] = inverse(reduced, value), blocks - 1

    def _put_in(self, state: dict[Any, tuple[Any, int]], values: dict[Any, Any]) -> None:
        merge = self._merge
        for key, value in values.items():
            if key in state:
                reduced, blocks = state[key]
                state[key] = merge(reduced, value), blocks + 1
            else:
                state[key] = value, 1


class _ToPairs:
    """Makes pairs of key and value of the state of a window, filtered by the user's function."""

    def __init__(self, keep: Callable[[tuple[Any, Any]], Any] | None) -> None:
        self._keep = keep

    def __call__(self, _: int, states: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        tune_worker()
        for _time, state in states:
            pairs = ((key, reduced) for key, (reduced, _blocks) in state.items())
            yield from pairs if self._keep is None else filter(self._keep, pairs)
