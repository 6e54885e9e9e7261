"""Reading the splits of a source in tasks: those of a batch, or a fixed list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from tidemill.errors import SourceError
from tidemill.state.reports import Reports, ReportsParam
from tidemill.tasks.arrow_types import source_schema
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from tidemill.batches.table_source import Split, SplitSource


class RowReader:
    """Reads splits as Arrow batches with exactly the columns of the source's schema, or those of them that
    the query uses. Goes to executors.
    """

    def __init__(self, source: SplitSource) -> None:
        self._read = source.split_reader()
        self._schema = source_schema(source.schema())
        self._name = source.description()

    def for_columns(self, names: Sequence[str]) -> RowReader:
        """Return a reader of some of the columns."""
        narrow = copy(self)
        narrow._schema = pa.schema([self._schema.field(name) for name in names])
        if (reads_less := getattr(self._read, "for_columns", None)) is not None:
            narrow._read = reads_less(names)
        return narrow

    def __call__(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        for split in splits:
            for batch in self._read(split):
                if not isinstance(batch, pa.RecordBatch):
                    raise SourceError(
                        f"the source {self._name} gives a {type(batch).__name__} where rows are expected: "
                        "yield pyarrow.RecordBatch objects",
                        source=self._name,
                    )
                columns = [self._column(batch, field) for field in self._schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise SourceError(
                f"the source {self._name} gives no column {field.name}, which its schema has; it gives "
                f"{', '.join(batch.schema.names) or 'none'}",
                source=self._name,
            )
        column = batch.column(index)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise SourceError(
                    f"the source {self._name} gives column {field.name} as {_type_name(column.type)}, its "
                    f"schema says {_type_name(field.type)}: {error}",
                    source=self._name,
                ) from None
        if column.null_count and not field.nullable:
            raise SourceError(
                f"the source {self._name} gives column {field.name} with nulls, its schema says that "
                "there are none",
                source=self._name,
            )
        return column


class FetchStep:
    """``mapInArrow`` function: gives the rows of a task's splits.

    The first column of its only input row is the number of the task among those that read this source.
    Spark's own number is another one in a union, whose tasks Spark numbers as a whole.
    """

    def __init__(
        self,
        run_id: str,
        source_id: str,
        source: SplitSource,
        rows: Accumulator[Reports] | None = None,
    ) -> None:
        self._run_id = run_id
        self._source_id = source_id
        self._reader = RowReader(source)
        self._rows = rows
        self._batch: BatchContext | None = None

    def bound_to(self, context: BatchContext) -> FetchStep:
        bound = copy(self)
        bound._batch = context
        return bound

    def for_columns(self, names: Sequence[str]) -> FetchStep:
        """Return a step that gives only some of the columns."""
        narrow = copy(self)
        narrow._reader = self._reader.for_columns(names)
        return narrow

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_worker()
        number = _task_number(batches)
        context = self._batch or BatchContext.from_task(self._run_id, with_splits=True)
        return self.run(context, number)

    def run(self, context: BatchContext, number: int) -> Iterator[pa.RecordBatch]:
        tasks = context.splits.get(self._source_id, ())
        rows = 0
        for batch in self._reader(tasks[number] if number < len(tasks) else ()):
            rows += batch.num_rows
            yield batch
        if self._rows is not None:
            self._rows.add({(self._source_id, context.batch_id, number): rows})


class ReadSplits:
    """``mapInArrow`` function: gives the rows of a fixed part of a stream, one split in each task.

    Its input row has the number of the task, as that of a :class:`FetchStep`.
    """

    def __init__(
        self, splits: Sequence[Split], read: Callable[[Sequence[Split]], Iterator[pa.RecordBatch]]
    ) -> None:
        self._splits = splits
        self._read = read

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = _task_number(batches)
        if number < len(self._splits):
            yield from self._read([self._splits[number]])


def _task_number(batches: Iterable[pa.RecordBatch]) -> int:
    """Return the number in the only row of a leaf's input, and read that input to its end: a task that does
    not ends its worker.
    """
    (number,) = [int(number) for batch in batches for number in batch.column(0).to_pylist()]
    return number


def rows_accumulator(spark_context: SparkContext) -> Accumulator[Reports]:
    """Return the accumulator of fetch steps, which counts a task's rows once, however often it runs."""
    return spark_context.accumulator({}, ReportsParam())


def take_rows(counted: Accumulator[Reports], source_id: str, batch_id: int) -> int:
    """Return how many rows a batch has read of a source, and forget this batch and those before."""
    counts = counted.value
    # A copy first: PySpark's thread adds the counts of tasks that end at this very moment.
    mine = [key for key in list(counts) if key[0] == source_id and key[1] <= batch_id]
    return sum(rows for key in mine if (rows := counts.pop(key, 0)) and key[1] == batch_id)


def _type_name(type: pa.DataType) -> str:
    """Return Spark's name of the type."""
    try:
        spark_type: Any = from_arrow_type(type)
    except Exception:
        return str(type)
    return str(type) if pa.types.is_nested(type) else str(spark_type.typeName())
