"""A stream with state: each batch makes version N of its state from version N-1.

The RDD of a batch is computed completely, and kept, when the batch's jobs are made: an output that looks
at its first records only must not leave half of the state behind. Nothing depends on the RDD of the batch
before, so no lineage grows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark import RDD, StorageLevel

from tidemill.errors import ProgramError
from tidemill.spark.rdds.combine import compute_fully, place_by_key
from tidemill.state.keys import decode_key, decode_value, encode_key, encode_value
from tidemill.state.operators import Versions, write_initial
from tidemill.state.partition_files import INITIAL
from tidemill.state.partition_state import (
    OperatorState,
    StateTransaction,
    WrittenVersion,
    attempt,
    reading,
)
from tidemill.state.reports import Reports, ReportsParam, take_reports
from tidemill.streaming.graph.node import DStreamNode
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


class StateFunction(ABC):
    """What an operator does to its state. Part of the program: it must be possible to pickle it."""

    timed = False

    @abstractmethod
    def exchange(
        self, rdd: RDD[Any], num_partitions: int, partition_func: Callable[[Any], int]
    ) -> RDD[Any]:
        """A batch's records, each in the partition of its key."""

    @abstractmethod
    def run(self, state: StateTransaction, records: Iterable[Any], time_ms: int) -> Iterator[Any]:
        """Work on one partition; what is yielded are the records of the new stream."""

    def has_work(self, rdd: RDD[Any]) -> bool:
        """False if the state, and the result, would be what they were."""
        return True


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
        self.graph.add_stateful(self)

    def forget_run(self) -> None:
        super().forget_run()
        # Written to the state store before the program is: a recovered stream does not need it.
        self.initial = None
        self._reports: Accumulator[Reports] | None = None

    def write_initial_state(self, state: OperatorState, time_ms: int) -> None:
        """Begin with the user's pairs, as if they had come in the first batch."""
        if self.initial is None:
            return
        write = _WriteInitial(state, time_ms)
        placed = place_by_key(self.initial, self.num_partitions, self.partition_func)
        versions = dict(placed.mapPartitionsWithIndex(write).collect())
        write_initial(
            state.storage,
            state.operator,
            tuple(versions.get(partition) for partition in range(self.num_partitions)),
        )

    def misplaced_keys(self, state: OperatorState, versions: Versions) -> list[Any]:
        """Some of the keys that the partition function would now look for in another partition."""
        check = _FindMisplaced(state, versions, self.partition_func)
        partitions = self.graph.spark_context.parallelize(range(len(versions)), len(versions))
        return partitions.mapPartitionsWithIndex(check).collect()

    def compute(self, time_ms: int) -> RDD[Any] | None:
        operators = self.graph.state
        assert operators is not None
        spark_context = self.graph.spark_context
        (parent,) = self.dependencies
        rdd = parent.get_or_compute(time_ms)
        if rdd is None or rdd.getNumPartitions() == 0:
            if not self.function.has_work(spark_context.emptyRDD()):
                return spark_context.emptyRDD()
            rdd = spark_context.parallelize([], self.num_partitions)
        else:
            rdd = self.function.exchange(rdd, self.num_partitions, self.partition_func)
        batch_id = self.graph.batch_id(time_ms)
        if self._reports is None:
            self._reports = spark_context.accumulator({}, ReportsParam())
        is_replay = operators.is_committed(batch_id)
        step = _RunStep(
            self.function,
            operators.state_of(self.operator_id),
            operators.base(self.operator_id, batch_id, self.num_partitions),
            batch_id,
            time_ms,
            None if is_replay else self._reports,
        )
        result = rdd.mapPartitionsWithIndex(step, preservesPartitioning=True)
        result.persist(StorageLevel.MEMORY_AND_DISK)
        self._persisted_here[time_ms] = result
        if not is_replay:
            compute_fully(result)
            operators.written(self.operator_id, batch_id, self._collect_reports(batch_id))
        return result

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
        return state_rdd(self.graph.spark_context, state, versions)


def state_rdd(
    spark_context: SparkContext, state: OperatorState, versions: Versions | None
) -> RDD[Any]:
    """``(key, value)`` of all keys, as of some versions."""
    if versions is None:
        return spark_context.emptyRDD()
    partitions = spark_context.parallelize(range(len(versions)), len(versions))
    return partitions.mapPartitionsWithIndex(_ReadState(state, versions))


class _RunStep:
    """``mapPartitionsWithIndex`` function: one batch's work on one partition of state."""

    def __init__(
        self,
        function: StateFunction,
        state: OperatorState,
        base: Versions,
        batch_id: int,
        time_ms: int,
        reports: Accumulator[Reports] | None,
    ) -> None:
        self._function = function
        self._state = state
        self._base = base
        self._batch_id = batch_id
        self._time_ms = time_ms
        self._reports = reports

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        base = self._base[partition]
        with attempt(
            self._state, partition, base, self._batch_id, self._reports is None
        ) as current:
            yield from self._function.run(current.transaction, records, self._time_ms)
        if self._reports is not None and current.written is not None:
            key = (self._state.operator, self._batch_id, partition)
            self._reports.add({key: current.written})


class _WriteInitial:
    """``mapPartitionsWithIndex`` function: pairs to the first version of a partition."""

    def __init__(self, state: OperatorState, time_ms: int) -> None:
        self._state = state
        self._time_ms = time_ms

    def __call__(
        self, partition: int, pairs: Iterable[tuple[Any, Any]]
    ) -> Iterator[tuple[int, str]]:
        with attempt(self._state, partition, None, INITIAL, False) as current:
            for key, value in pairs:  # of a key that comes twice the last one counts
                current.transaction.put(encode_key(key), encode_value(value), self._time_ms)
        assert current.written is not None
        yield partition, current.written.version


class _ReadState:
    """``mapPartitionsWithIndex`` function: a version of a partition to pairs."""

    def __init__(self, state: OperatorState, versions: Versions) -> None:
        self._state = state
        self._versions = versions

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        tune_worker()
        for _ in records:  # a task that does not read its input ends its worker
            pass
        with reading(self._state, partition, self._versions[partition]) as reader:
            for record in reader.scan():
                assert record.value is not None
                yield decode_key(record.key), decode_value(record.value)


class _FindMisplaced(_ReadState):
    """``mapPartitionsWithIndex`` function: keys that are not where a function of keys would have them."""

    LOOK_AT = 1_000

    def __init__(
        self, state: OperatorState, versions: Versions, partition_func: Callable[[Any], int]
    ) -> None:
        super().__init__(state, versions)
        self._partition_func = partition_func

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[Any]:
        pairs = super().__call__(partition, records)
        for key, _ in islice(pairs, self.LOOK_AT):
            if self._partition_func(key) % len(self._versions) != partition:
                yield key
                return


def initial_rdd(spark_context: SparkContext, initial: Any, what: str) -> RDD[Any] | None:
    """Initial state as an RDD of pairs, from one or from any collection of pairs."""
    if initial is None or isinstance(initial, RDD):
        return initial
    if isinstance(initial, (str, bytes)) or not isinstance(initial, Iterable):
        raise ProgramError(f"{what} must be an RDD or a list of pairs, not {initial!r:.100}")
    return spark_context.parallelize(list(initial), 1)
