"""The writer of a Python data source, inside a task: rows in, one commit message out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.accumulators import AccumulatorParam
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tidemill.common.fault_points import fault_point
from tidemill.errors import SinkError
from tidemill.tasks.foreach_rows import CountedBatches, rows_of_batches
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql.types import StructType

WRITTEN = "rows long, message binary"
"""The columns of the only row that a task returns."""

Messages = dict[tuple[int, int], bytes]
"""The pickled message of each task, by the number of the try and by the task's partition."""


class MessagesParam(AccumulatorParam["Messages"]):
    """Gathers messages on the driver as tasks end, so that those of a failed try are there, too."""

    def zero(self, value: Messages) -> Messages:
        return {}

    def addInPlace(self, value1: Messages, value2: Messages) -> Messages:
        value1.update(value2)
        return value1


class WriteTask:
    """``mapInArrow`` function: gives the rows of a partition to the user's ``write``.

    ``pickled_writer`` is a ``DataSourceStreamWriter``; ``attempt`` numbers the tries to write a batch.
    """

    def __init__(
        self,
        data_source: str,
        pickled_writer: bytes,
        schema: StructType,
        binary_as_bytes: bool,
        attempt: int,
        messages: Accumulator[Messages],
    ) -> None:
        self._data_source = data_source
        self._pickled_writer = pickled_writer
        self._schema = schema
        self._binary_as_bytes = binary_as_bytes
        self._attempt = attempt
        self._messages = messages

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        tune_worker()
        context = TaskContext.get()
        assert context is not None
        counted = CountedBatches(batches)
        writer = cloudpickle.loads(self._pickled_writer)  # pickled by our own driver
        message = self._pickled(writer.write(self._input(writer, counted)))
        # Rows that nobody wanted are computed as well: state is made on the way.
        for _ in counted:
            pass
        fault_point("writer.written")
        self._messages.add({(self._attempt, context.partitionId()): message})
        yield pa.record_batch(
            {
                "rows": pa.array([counted.rows], pa.int64()),
                "message": pa.array([message], pa.binary()),
            }
        )

    def _input(self, writer: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
        if isinstance(writer, DataSourceStreamArrowWriter):
            # The columns travel under other names where two of them have the same.
            return (batch.rename_columns(self._schema.names) for batch in batches)
        return rows_of_batches(batches, self._schema, self._binary_as_bytes)

    def _pickled(self, message: Any) -> bytes:
        if not isinstance(message, WriterCommitMessage):
            raise SinkError(
                f"[DATA_SOURCE_TYPE_MISMATCH] write() of the Python data source {self._data_source!r} must "
                f"return a WriterCommitMessage, not {type(message).__name__}",
                self._data_source,
            )
        try:
            return cloudpickle.dumps(message)  # type: ignore[no-any-return,no-untyped-call]
        except Exception as error:
            raise SinkError(
                f"the commit message that write() of the Python data source {self._data_source!r} returned "
                f"cannot be pickled ({error}): return names and numbers, not open files or connections",
                self._data_source,
            ) from None
