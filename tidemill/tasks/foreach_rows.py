"""``foreach``, inside a task: the rows of a partition, one by one, to the user's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Rows = Iterator[Any]
PartitionFunction = Callable[[int, int, Rows], None]
"""A function of a partition id, an epoch id and the rows of the partition."""


class RowFunction:
    """Calls a function of the user's with each row."""

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self._f = f

    def __call__(self, partition_id: int, epoch_id: int, rows: Rows) -> None:
        for row in rows:
            self._f(row)


class RowWriter:
    """Uses an object of the user's with ``process``, and perhaps ``open`` and ``close``."""

    def __init__(self, writer: Any, has_open: bool, has_close: bool) -> None:
        self._writer = writer
        self._has_open = has_open
        self._has_close = has_close

    def __call__(self, partition_id: int, epoch_id: int, rows: Rows) -> None:
        writer = self._writer
        wanted = not self._has_open or writer.open(partition_id, epoch_id)
        error: Exception | None = None
        try:
            if wanted:
                for row in rows:
                    writer.process(row)
        except Exception as caught:
            error = caught
            raise
        finally:
            if self._has_close:
                writer.close(error)


class ForeachRows:
    """``mapInArrow`` function: gives rows to the user's code, and says how many there were."""

    def __init__(
        self, process: PartitionFunction, schema: StructType, epoch_id: int, binary_as_bytes: bool
    ) -> None:
        self._process = process
        self._schema = schema
        self._epoch_id = epoch_id
        self._binary_as_bytes = binary_as_bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        tune_worker()
        context = TaskContext.get()
        assert context is not None
        counted = CountedBatches(batches)
        rows = rows_of_batches(counted, self._schema, self._binary_as_bytes)
        self._process(context.partitionId(), self._epoch_id, rows)
        # Rows that nobody wanted are computed as well: state is made on the way.
        for _ in counted:
            pass
        yield pa.record_batch({"rows": pa.array([counted.rows], pa.int64())})


def rows_of_batches(
    batches: Iterator[pa.RecordBatch], schema: StructType, binary_as_bytes: bool
) -> Rows:
    """Yield the rows of Arrow batches as Spark hands them to Python."""
    import pyarrow as pa
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    from tidemill.tasks.text_columns import with_valid_text

    def rows_of(batch: pa.RecordBatch) -> Iterable[Any]:
        table = pa.Table.from_batches([batch])
        return ArrowTableToRowsConversion.convert(table, schema, binary_as_bytes=binary_as_bytes)

    for batch in batches:
        try:
            rows = rows_of(batch)
        except UnicodeDecodeError:
            rows = rows_of(with_valid_text(batch))
        yield from rows


class CountedBatches:
    """An iterator of Arrow batches that counts their rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        return batch
