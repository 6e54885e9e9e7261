"""A stream with state: each batch makes version N of its state from version N-1.

The RDD of a batch is computed completely, and kept, when the batch's jobs are made: an output that looks
at its first records only must not leave half of the state behind. It does not depend on the RDD of the
batch before, so no lineage grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import RDD, StorageLevel

from tidemill.errors import WrongTypeError
from tidemill.spark.rdds.combine import compute_fully, place_by_key
from tidemill.state.operators import Versions, write_initial
from tidemill.state.reports import Reports, ReportsParam, take_reports
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.graph.state_tasks import (
    FindMisplacedKeys,
    ReadState,
    RunStateFunction,
    WriteInitialState,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from tidemill.state.partition_state import OperatorState, StateTransaction, WrittenVersion
    from tidemill.state.program_classes import ProgramClasses


class StateFunction(ABC):
    """What an operator does to its state. Part of the program on disk, so it must be picklable."""

    timed = False
    """True if keys time out."""

    runs_without_records = True
    """False if an empty batch changes no state and has no result."""

    keeps_keys = False
    """True if the records of the new stream are pairs under the keys of the state, where the state is."""

    @abstractmethod
    def exchange(
        self, rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
    ) -> RDD[Any]:
        """Move each record of a batch to the partition of its key."""

    @abstractmethod
    def run(
        self,
        state: StateTransaction,
        records: Iterable[Any],
        time_ms: int,
        decode_value: Callable[[bytes], Any],
    ) -> Iterator[Any]:
        """Update one partition of the state, and yield the records of the new stream."""


class StatefulNode(DStreamNode):
    """Runs a :class:`StateFunction` on every batch of its parent."""

    def __init__(
        self,
        parent: DStreamNode,
        function: StateFunction,
        num_partitions: int,
        partition_func: Callable[[Any], int],
        initial: RDD[Any] | None,
    ) -> None:
        super().__init__(parent.graph, parent.slide_ms, [parent])
        self.function = function
        self.num_partitions = num_partitions
        self.partition_func = partition_func
        self.initial: RDD[Any] | None = initial

    def forget_run(self) -> None:
        super().forget_run()
        # It is in the state store before the program is written: a recovered stream does not need it.
        self.initial = None
        self._reports: Accumulator[Reports] | None = None
        # The times of the last batch that ran, and of the last one that changed the state.
        self._ran_ms = -1
        self.changed_ms = -1

    def rested_at(self, time_ms: int) -> bool:
        """Return True if the last batch with a turn of this node, until ``time_ms``, changed no state.

        A node behind a sliding window has its turn once in a slide.
        """
        turn_ms = self._turn_ms(time_ms)
        return self._ran_ms == turn_ms and self.changed_ms < turn_ms

    def _turn_ms(self, time_ms: int) -> int:
        assert self.zero_ms is not None
        return time_ms - (time_ms - self.zero_ms) % self.slide_ms

    def write_initial_state(self, state: OperatorState, time_ms: int) -> None:
        """Begin with the user's pairs, as if they had come in the first batch."""
        if self.initial is None:
            return
        write = WriteInitialState(state, time_ms)
        placed = place_by_key(self.initial, self.num_partitions, self.partition_func)
        versions = dict(placed.mapPartitionsWithIndex(write).collect())
        write_initial(
            state.storage,
            state.operator,
            tuple(versions.get(partition) for partition in range(self.num_partitions)),
        )

    def misplaced_keys(self, state: OperatorState, versions: Versions) -> list[Any]:
        """Return some of the keys that the partition function would now look for in another partition."""
        check = FindMisplacedKeys(state, versions, self.partition_func)
        partitions = self.graph.spark_context.parallelize(range(len(versions)), len(versions))
        return partitions.mapPartitionsWithIndex(check).collect()

    def compute(self, time_ms: int) -> RDD[Any] | None:
        operators = self.graph.state
        assert operators is not None
        spark_context = self.graph.spark_context
        (parent,) = self.dependencies
        rdd = parent.get_or_compute(time_ms)
        is_left_out = self.graph.is_left_out(time_ms)
        if not is_left_out:
            self._ran_ms = max(self._ran_ms, time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            if not self.function.runs_without_records:
                return spark_context.emptyRDD()
            rdd = spark_context.parallelize([], self.num_partitions)
        else:
            rdd = self.function.exchange(rdd, self.num_partitions, self.partition_func)
        batch_id = self.graph.batch_id(time_ms)
        if self._reports is None:
            self._reports = spark_context.accumulator({}, ReportsParam())
        is_replay = is_left_out or operators.is_committed(batch_id)
        step = RunStateFunction(
            self.function.run,
            operators.state_of(self.operator_id),
            self._resting(time_ms)
            if is_left_out
            else operators.base(self.operator_id, batch_id, self.num_partitions),
            batch_id,
            # Keys whose time-out falls into a time that was left out time out in the next batch, and once.
            self._turn_ms(self.graph.planned_ms(time_ms))
            if is_left_out and self.function.timed
            else time_ms,
            None if is_replay else self._reports,
            self.graph.program_classes,
        )
        result = rdd.mapPartitionsWithIndex(step, self.function.keeps_keys)
        result.persist(StorageLevel.MEMORY_AND_DISK)
        self._persisted_here[time_ms] = result
        if not is_replay:
            compute_fully(result)
            written = self._collect_reports(batch_id)
            if any(each.changed for each in written):
                self.changed_ms = time_ms
            operators.written(self.operator_id, batch_id, written)
        return result

    def _resting(self, time_ms: int) -> Versions:
        """Return the versions of the state at a time that was left out."""
        operators = self.graph.state
        assert operators is not None
        versions = operators.versions_at(self.operator_id, self.graph.batch_id(time_ms))
        return versions or (None,) * self.num_partitions

    def _collect_reports(self, batch_id: int) -> list[WrittenVersion]:
        assert self._reports is not None
        partitions = range(self.num_partitions)
        return take_reports(self._reports.value, self.operator_id, batch_id, partitions)


class StateSnapshotsNode(DStreamNode):
    """All keys and their states after each batch."""

    def __init__(self, stateful: StatefulNode) -> None:
        super().__init__(stateful.graph, stateful.slide_ms, [stateful])
        self._stateful = stateful

    def compute(self, time_ms: int) -> RDD[Any] | None:
        operators = self.graph.state
        assert operators is not None
        self._stateful.get_or_compute(time_ms)
        operator = self._stateful.operator_id
        versions = operators.versions_at(operator, self.graph.batch_id(time_ms))
        state = operators.state_of(operator)
        classes = self.graph.program_classes
        return state_rdd(self.graph.spark_context, state, versions, classes)


def state_rdd(
    spark_context: SparkContext,
    state: OperatorState,
    versions: Versions | None,
    classes: ProgramClasses,
) -> RDD[Any]:
    """Make an RDD of ``(key, value)`` of all keys, as of ``versions``."""
    if versions is None:
        return spark_context.emptyRDD()
    partitions = spark_context.parallelize(range(len(versions)), len(versions))
    return partitions.mapPartitionsWithIndex(ReadState(state, versions, classes))


def initial_rdd(spark_context: SparkContext, initial: Any, argument: str) -> RDD[Any] | None:
    """Make an RDD of the pairs that are given as initial state: an RDD, or any collection of pairs."""
    if initial is None or isinstance(initial, RDD):
        return initial
    if isinstance(initial, (str, bytes)) or not isinstance(initial, Iterable):
        raise WrongTypeError(
            f"{argument} must be an RDD or a list of pairs, not {initial!r:.100}", argument
        )
    return spark_context.parallelize(list(initial), 1)
