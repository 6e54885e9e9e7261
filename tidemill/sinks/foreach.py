"""Hand every row to a function or an object of the user's, in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkAttributeError

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COUNTED = "rows long"


class ForeachSink(Sink):
    """Calls a function with each row, or uses an object, of which every task has a copy::

        class Writer:
            def open(self, partition_id, epoch_id):   # may be left out
                return True                           # False: this partition has been written already
            def process(self, row): ...
            def close(self, error): ...               # may be left out

    ``close`` follows every ``open`` that returned, with the exception that ended the partition or None.
    A batch that runs again after a crash comes again, with the same ``epoch_id`` and the same rows in the
    same partitions: with both numbers an object can leave out what it has written before.
    """

    exactly_once = False

    def __init__(self, f: Any) -> None:
        self._process_partition = partition_function(f)
        self._binary_as_bytes = True

    def description(self) -> str:
        return "ForeachWriterTable"

    def start(self, runtime: SinkRuntime) -> None:
        as_bytes = runtime.session.conf.get("spark.sql.execution.pyspark.binaryAsBytes", "true")
        self._binary_as_bytes = as_bytes == "true"

    def write(self, output: BatchOutput) -> int | None:
        rows = output.dataframe(consumed_once=True)
        task = _Task(self._process_partition, rows.schema, output.batch_id, self._binary_as_bytes)
        names = rows.columns
        if len(set(names)) < len(names):  # Arrow refuses them; the rows keep their names
            rows = rows.toDF(*(f"_{position}" for position in range(len(names))))
        return sum(int(row[0]) for row in rows.mapInArrow(task, COUNTED).collect())


Rows = Iterator[Any]
PartitionFunction = Callable[[int, int, Rows], None]
"""Of a partition id, an epoch id and the rows of the partition."""


def partition_function(f: Any) -> PartitionFunction:
    """What a task does with ``f``. Refuses, as PySpark does, what is neither a function nor a writer."""
    if callable(f):
        return _Function(f)
    _require_callable(f, "process", needed=True)
    return _Writer(
        f,
        has_open=_require_callable(f, "open"),
        has_close=_require_callable(f, "close"),
    )


def _require_callable(f: Any, name: str, needed: bool = False) -> bool:
    """Whether ``f`` has a method of that name."""
    exists = hasattr(f, name)
    if (exists or needed) and not callable(getattr(f, name, None)):
        raise PySparkAttributeError(
            errorClass="ATTRIBUTE_NOT_CALLABLE",
            messageParameters={"attr_name": name, "obj_name": "f"},
        )
    return exists


class _Function:
    def __init__(self, f: Callable[[Any], Any]) -> None:
        self._f = f

    def __call__(self, partition_id: int, epoch_id: int, rows: Rows) -> None:
        for row in rows:
            self._f(row)


class _Writer:
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


class _Task:
    """The function of ``mapInArrow``: gives rows to the user's code, and says how many there were."""

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
        counted = _Counted(batches)
        self._process(context.partitionId(), self._epoch_id, self._rows(counted))
        # What nobody wanted is computed as well: state is made on the way.
        for _ in counted:
            pass
        yield pa.record_batch({"rows": pa.array([counted.rows], pa.int64())})

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Rows:
        import pyarrow as pa
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        for batch in batches:
            table = pa.Table.from_batches([batch])
            yield from ArrowTableToRowsConversion.convert(
                table, self._schema, binary_as_bytes=self._binary_as_bytes
            )


class _Counted:
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
