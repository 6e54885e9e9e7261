"""Keep all rows in memory, as a temporary view: for notebooks and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.output_modes import COMPLETE
from tidemill.errors import CheckpointError, IllegalStateError, SinkError
from tidemill.spark.session.memory_table import MemoryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MemorySink(Sink):
    """The rows so far are a temporary view with the name of the query, and stay as long as the session::

        df.writeStream.format("memory").queryName("counts").outputMode("complete").start()
        spark.table("counts").show()

    Rows are gone with the driver. So a query in append or update mode, which has read part of its input
    already, cannot be continued from its checkpoint; one in complete mode can, because it writes all rows
    again.
    """

    def __init__(self, query_name: str | None) -> None:
        if not query_name:
            raise SinkError(
                "the memory sink needs a name for its view: add .queryName('some_name') before start()"
            )
        self._name = query_name
        self._table: MemoryTable | None = None
        self._last_batch_id = -1
        self._staged: tuple[int, Any, bool] | None = None

    def description(self) -> str:
        return "MemorySink"

    def start(self, runtime: SinkRuntime) -> None:
        if runtime.output_mode != COMPLETE and runtime.checkpoint.list("offsets"):
            raise CheckpointError(
                f"the memory sink cannot continue from the checkpoint {runtime.checkpoint.uri} in "
                f"{runtime.output_mode} mode: the rows of its earlier batches were in the memory of a driver "
                "that is gone. Start with another checkpointLocation, or with none, to read everything "
                "again; or use outputMode('complete').",
                runtime.checkpoint.uri,
            )
        self._table = MemoryTable(runtime.session, runtime.schema_json)
        self._table.create_view(self._name)

    def table(self) -> DataFrame:
        """The rows that are there at the first action on it; ask again for later ones."""
        return self._started().dataframe()

    def has_batch(self, batch_id: int) -> bool:
        return batch_id <= self._last_batch_id

    def stage(self, output: BatchOutput) -> int | None:
        rows = self._started().rows_of(output.collected())
        self._staged = output.batch_id, rows, output.replaces
        return len(rows)

    def commit(self, batch_id: int) -> None:
        if self.has_batch(batch_id) or self._staged is None:
            return
        self._started().write(*self._staged)
        self._last_batch_id = batch_id
        self._staged = None

    def _started(self) -> MemoryTable:
        if self._table is None:
            raise IllegalStateError("the memory sink has not started")
        return self._table
