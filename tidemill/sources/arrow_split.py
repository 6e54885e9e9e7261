"""Splits that carry their rows, for sources that have their rows on the driver.

A split is an Arrow IPC stream, in base64 so that it is JSON. Splits travel with the tasks of a batch, so a
batch is kept to some megabytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from tidemill.batches.parallelism import tasks_for_records
from tidemill.batches.table_source import Split
from tidemill.errors import SourceError
from tidemill.tasks.arrow_types import source_schema

MOST_BYTES_PER_BATCH = 8 << 20


def arrow_split(table: pa.Table) -> Split:
    """Return one split with all rows of a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def arrow_splits(table: pa.Table, parallelism: int) -> list[Split]:
    """Return the rows in order, cut into as many splits as their number is worth."""
    tasks = tasks_for_records(table.num_rows, parallelism)
    bounds = [table.num_rows * part // tasks for part in range(tasks + 1)]
    return [
        arrow_split(table.slice(bounds[part], bounds[part + 1] - bounds[part]))
        for part in range(tasks)
        if bounds[part] < bounds[part + 1]
    ]


def read_arrow_split(split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a split carries."""
    yield from pa.ipc.open_stream(base64.b64decode(split))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema with the Arrow types of Spark's own conversion."""
    return source_schema(schema)


def struct_type(schema: StructType | str) -> StructType:
    """Return a schema that may be written as text: ``id long, name string``."""
    columns = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(columns, StructType):
        raise SourceError(f"a schema must have named columns, as in 'id long', not {schema!r}")
    return columns
