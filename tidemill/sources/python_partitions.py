"""Partitions of a Python data source: planned on the driver, read in tasks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from tidemill.batches.table_source import Split
from tidemill.errors import SourceError
from tidemill.sources.arrow_split import read_arrow_split
from tidemill.spark.errors.data_source_errors import DataSourceCreationError, DataSourceResultError

ROWS_PER_ARROW_BATCH = 10_000


def pickled_partition(data_source: str, partition: Any) -> Split:
    """Return a partition as a split. Refuse what ``read()`` could not be called with."""
    if not isinstance(partition, InputPartition):
        raise DataSourceResultError(
            f"partitions() of the Python data source {data_source!r} must return InputPartition objects, "
            f"not {partition!r:.100}",
            data_source,
        )
    try:
        return base64.b64encode(cloudpickle.dumps(partition)).decode("ascii")  # type: ignore[no-untyped-call]
    except Exception as error:
        raise DataSourceResultError(
            f"a partition of the Python data source {data_source!r} cannot be pickled ({error}): put into it "
            "what read() needs to open a connection or a file, not the open one",
            data_source,
        ) from None


@dataclass(frozen=True)
class BetweenOffsets:
    """Reads a batch of an earlier run, in a task: its partition is a start and an end."""

    reader: SimpleDataSourceStreamReader

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.reader.readBetweenOffsets(*partition.value)


class PartitionReader:
    """Reads a partition in a task. The user's objects travel as bytes, with their classes by value."""

    def __init__(self, source: DataSource, reader: Any, schema: StructType) -> None:
        try:
            self._pickled: bytes = cloudpickle.dumps((source, reader, schema))  # type: ignore[no-untyped-call]
        except Exception as error:
            name = source.name()
            raise DataSourceCreationError(
                f"the reader of the Python data source {name!r} cannot be pickled ({error}): tasks get a "
                "copy of it. Open connections and files in read(), not in the constructor",
                name,
            ) from None
        self._unpickled: tuple[DataSource, Any, StructType] | None = None

    def __call__(self, split: Split) -> Iterator[pa.RecordBatch]:
        # Both were pickled by our own driver.
        if self._unpickled is None:
            self._unpickled = cloudpickle.loads(self._pickled)
        source, reader, schema = self._unpickled
        rows = reader.read(cloudpickle.loads(base64.b64decode(split)))
        if not isinstance(rows, Iterator):
            raise SourceError(
                f"[DATA_SOURCE_INVALID_RETURN_TYPE] read() of the Python data source {source.name()!r} must "
                f"return an iterator, not {type(rows).__name__}: write yield, or iter(...)",
                source.name(),
            )
        return as_arrow(rows, schema, source)

    def __getstate__(self) -> dict[str, Any]:
        return {"_pickled": self._pickled, "_unpickled": None}


@dataclass(frozen=True)
class PrefetchedReader:
    """Reads a split in a task: the rows that it carries, or a partition."""

    partitions: PartitionReader

    def __call__(self, split: Split) -> Iterator[pa.RecordBatch]:
        if "rows" in split:
            return read_arrow_split(split["rows"])
        return self.partitions(split["partition"])


def as_arrow(
    rows: Iterator[Any], schema: StructType, source: DataSource
) -> Iterator[pa.RecordBatch]:
    """Convert tuples, rows or Arrow batches as PySpark does, with its own checks."""
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    yield from records_to_arrow_batches(rows, ROWS_PER_ARROW_BATCH, schema, source)
