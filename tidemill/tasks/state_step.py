"""What all steps with state share: the batch of the task, rows by state partition, reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError
from tidemill.state.partition_state import OperatorState, StateAttempt, attempt
from tidemill.tasks.batch_context import BatchContext, task_partition
from tidemill.tasks.event_time import EventTimeColumn
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.reports import Reports

PARTITION_COLUMN = "p"
"""The name of the last column of a single task's rows: the state partition that a row belongs to."""

Batches = Iterable[pa.RecordBatch]


class StateStep(ABC):
    """A ``mapInArrow`` function that works on the state of one operator.

    ``schema`` has the columns of its input. If one task works on all state partitions, the input has one more
    column, the last: an integer that says which state partition a row belongs to.
    """

    def __init__(
        self,
        run_id: str,
        state: OperatorState,
        schema: pa.Schema,
        partitions: int,
        reports: Accumulator[Reports] | None,
    ) -> None:
        self._run_id = run_id
        self._state = state
        self._schema = schema
        self._partitions = partitions
        self._reports = reports

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        tune_worker()
        context = BatchContext.from_task(self._run_id)
        partition = 0 if context.single else task_partition()
        if partition >= self._partitions:
            raise IllegalStateError(
                f"task {partition} has no state partition: operator {self._state.operator!r} has "
                f"{self._partitions} of them. A union or another operation that Spark runs in the same stage "
                "has shifted the tasks. Put a repartition() between them."
            )
        fault_point("state.step")
        return self.run(batches, context, partition)

    @abstractmethod
    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """Do the work of one task: on ``partition``, or on all of them if ``context.single``."""

    def _all_partitions(self, context: BatchContext, partition: int) -> Sequence[int]:
        return range(self._partitions) if context.single else [partition]

    def _by_partition(
        self, batch: pa.RecordBatch, context: BatchContext, partition: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each state partition with its rows, which have the columns of the schema."""
        width = len(self._schema)
        rows = conformed(batch.columns[:width], self._schema)
        if not context.single:
            if rows.num_rows:
                yield partition, rows
            return
        places = np.asarray(batch.column(width))
        distinct = np.unique(places)
        for place in distinct:
            mine = rows if len(distinct) == 1 else rows.filter(pa.array(places == place))
            yield int(place), mine

    def _attempt(
        self, context: BatchContext, partition: int
    ) -> AbstractContextManager[StateAttempt]:
        """Open a state partition to make version N of it, if anything changes."""
        base = context.base_of(self._state.operator, partition)
        return attempt(
            self._state,
            partition,
            base,
            context.batch_id,
            context.is_replay,
            skip_unchanged=True,
        )

    def _report(self, context: BatchContext, name: str, partition: int, report: object) -> None:
        if self._reports is not None and not context.is_replay:
            self._reports.add({(name, context.batch_id, partition): report})


def conformed(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns as a batch of exactly that schema: all batches of a step must have the same."""
    return pa.RecordBatch.from_arrays(
        [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def without_late_rows(
    rows: pa.RecordBatch, event_time: EventTimeColumn | None, late_ms: int | None
) -> tuple[pa.RecordBatch, int]:
    """Return the rows that are not late, and how many are."""
    if event_time is None or late_ms is None:
        return rows, 0
    late = event_time.times_of(rows).until(late_ms)
    return rows_at(rows, ~late), int(late.sum())


def rows_at(batch: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """Return the rows at ``rows``: numbers of rows, or one boolean for each row."""
    if rows.dtype == bool:
        return batch if rows.all() else batch.filter(pa.array(rows))
    return batch.take(pa.array(rows))
