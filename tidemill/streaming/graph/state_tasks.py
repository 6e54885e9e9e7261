"""Work on one partition of state, inside a task: functions for ``mapPartitionsWithIndex``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidemill.state.keys import decode_key, encode_key, encode_value
from tidemill.state.partition_files import INITIAL
from tidemill.state.partition_state import OperatorState, StateTransaction, attempt, reading
from tidemill.state.program_classes import ProgramClasses
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.operators import Versions
    from tidemill.state.reports import Reports


class RunStateFunction:
    """Runs one batch's work on one partition of state, and reports the version that it wrote.

    Without ``reports`` the batch is already committed: the result is computed, and nothing is written.
    """

    def __init__(
        self,
        run: Callable[
            [StateTransaction, Iterable[Any], int, Callable[[bytes], Any]], Iterator[Any]
        ],
        state: OperatorState,
        base: Versions,
        batch_id: int,
        time_ms: int,
        reports: Accumulator[Reports] | None,
        classes: ProgramClasses,
    ) -> None:
        self._run = run
        self._state = state
        self._base = base
        self._batch_id = batch_id
        self._time_ms = time_ms
        self._reports = reports
        self._classes = classes

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[Any]:
        tune_worker()
        base = self._base[partition]
        with attempt(
            self._state, partition, base, self._batch_id, self._reports is None
        ) as current:
            yield from self._run(
                current.transaction, records, self._time_ms, self._classes.decode_value
            )
        if self._reports is not None and current.written is not None:
            key = (self._state.operator, self._batch_id, partition)
            self._reports.add({key: current.written})


class WriteInitialState:
    """Writes pairs as the first version of a partition."""

    def __init__(self, state: OperatorState, time_ms: int) -> None:
        self._state = state
        self._time_ms = time_ms

    def __call__(
        self, partition: int, pairs: Iterable[tuple[Any, Any]]
    ) -> Iterator[tuple[int, str]]:
        with attempt(self._state, partition, None, INITIAL, False) as current:
            for key, value in pairs:  # the last value of a key counts
                current.transaction.put(encode_key(key), encode_value(value), self._time_ms)
        assert current.written is not None
        yield partition, current.written.version


class ReadState:
    """Reads the pairs of one version of a partition."""

    def __init__(self, state: OperatorState, versions: Versions, classes: ProgramClasses) -> None:
        self._state = state
        self._versions = versions
        self._classes = classes

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        tune_worker()
        for _ in records:  # a task that does not read its input ends its worker
            pass
        with reading(self._state, partition, self._versions[partition]) as reader:
            for record in reader.scan():
                assert record.value is not None
                yield decode_key(record.key), self._classes.decode_value(record.value)


class FindMisplacedKeys(ReadState):
    """Finds a key that ``partition_func`` would look for in another partition, if there is one."""

    KEYS_TO_CHECK = 1_000

    def __init__(
        self, state: OperatorState, versions: Versions, partition_func: Callable[[Any], int]
    ) -> None:
        super().__init__(state, versions, ProgramClasses())
        self._partition_func = partition_func

    def __call__(self, partition: int, records: Iterable[Any]) -> Iterator[Any]:
        pairs = super().__call__(partition, records)
        for key, _ in islice(pairs, self.KEYS_TO_CHECK):
            if self._partition_func(key) % len(self._versions) != partition:
                yield key
                return
