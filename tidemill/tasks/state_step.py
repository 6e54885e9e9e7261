"""What all steps with state share: the batch of the task, rows by state partition, reports.

A state partition comes with its rows: the last column of a step's input says which one a row belongs to. Only
a step without rows goes by the number of its task, for what a watermark or complete mode wants of its state;
that number is right where no other operation of the same stage has numbered the tasks anew, which the
compiler sees to (:mod:`tidemill.spark.compiler.stateful.task_numbers`), and so does whoever hands rows to a
user's code (:mod:`tidemill.spark.compiler.computing.kept_rows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

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
"""The name of the column after those of the schema: the state partition that a row belongs to."""

ROW_COUNT_COLUMN = "n"
"""The name of the column after that, if there is one: how many rows of the batch are in a row."""

Batches = Iterable[pa.RecordBatch]


class StateStep(ABC):
    """A ``mapInArrow`` function that works on the state of one operator.

    ``schema`` has the columns of its input, which has one more, the last: an integer that says which state
    partition a row belongs to. One task works on all state partitions, or each on one.
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
        self._batch: BatchContext | None = None

    def bound_to(self, context: BatchContext) -> Self:
        bound = copy(self)
        bound._batch = context
        return bound

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        tune_worker()
        context = self._batch or BatchContext.from_task(self._run_id)
        partition = 0
        if not context.single and self._partitions > 1:
            partition, batches = self._own_partition(batches)
        fault_point("state.step")
        return self.run(batches, context, partition)

    def _own_partition(self, batches: Batches) -> tuple[int, Batches]:
        """Return the state partition of a task that works on one, and its rows, of which none is lost."""
        remaining = iter(batches)
        read = []
        for batch in remaining:
            read.append(batch)
            if batch.num_rows:
                place = batch.column(len(self._schema))[0].as_py()
                return int(place), chain(read, remaining)
        partition = task_partition()
        if partition >= self._partitions:
            raise IllegalStateError(
                f"task {partition} has no state partition: operator {self._state.operator!r} has "
                f"{self._partitions} of them. A union or another operation that Spark runs in the same stage "
                "has shifted the tasks. Put a repartition() between them."
            )
        return partition, read

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
        places = np.asarray(batch.column(width))
        distinct = np.unique(places)
        if not context.single and any(distinct != partition):
            raise IllegalStateError(
                f"a task of operator {self._state.operator!r} got rows of the state partitions "
                f"{', '.join(map(str, distinct))}, where all should be of {partition}: an operation that "
                "Spark runs in the same stage has put partitions together. Put a repartition() between them."
            )
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
