"""What all steps with state have in common: rows by state partition, and codecs for keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError
from tidemill.state.partition_state import OperatorState
from tidemill.tasks.batch_context import BatchContext, task_partition
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.reports import Reports

Batches = Iterable[pa.RecordBatch]


class StateStep(ABC):
    """A ``mapInArrow`` function that works on the state of one operator.

    ``schema`` has the columns of its input, without the one that says which state partition a row belongs to:
    that is the last one, an integer, and is there if one task works on all of them.
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
        context = BatchContext.of_task(self._run_id)
        partition = 0 if context.single else task_partition()
        if partition >= self._partitions:
            raise IllegalStateError(
                f"task {partition} has no state partition of {self._state.operator!r}, which has "
                f"{self._partitions}: a union or another operation that Spark runs in the same stage has "
                "shifted the tasks. Put a repartition() between them."
            )
        fault_point("state.step")
        return self.run(batches, context, partition)

    @abstractmethod
    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """The work of one task; of all state partitions if the context says so."""

    def _all_partitions(self, context: BatchContext, partition: int) -> Sequence[int]:
        return range(self._partitions) if context.single else [partition]

    def _by_partition(
        self, batch: pa.RecordBatch, context: BatchContext, partition: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each state partition, with the columns of the schema."""
        width = len(self._schema)
        rows = conformed(batch.columns[:width], self._schema)
        if not context.single:
            if rows.num_rows:
                yield partition, rows
            return
        places = np.asarray(batch.column(width))
        found = np.unique(places)
        for place in found:
            mine = rows if len(found) == 1 else rows.filter(pa.array(places == place))
            yield int(place), mine

    def _report(self, context: BatchContext, name: str, partition: int, report: object) -> None:
        if self._reports is not None and not context.is_replay:
            self._reports.add({(name, context.batch_id, partition): report})


def conformed(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Columns as a batch of just that schema: all that a step yields must have the same."""
    return pa.RecordBatch.from_arrays(
        [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def rows_at(batch: pa.RecordBatch, rows: np.ndarray[Any, Any]) -> pa.RecordBatch:
    """The rows where it says True, or of these numbers."""
    if rows.dtype == bool:
        return batch if rows.all() else batch.filter(pa.array(rows))
    return batch.take(pa.array(rows))
