"""Rows that are on the driver, as splits: each takes its rows along.

A split is an Arrow IPC stream, in base64 so that it is JSON. This is for sources whose rows the driver
has anyway; splits travel with the tasks of a batch, so a batch is kept to some megabytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from tidemill.batches.parallelism import tasks_for_records
from tidemill.batches.table_source import Split
from tidemill.errors import SourceError

MOST_BYTES_PER_BATCH = 8 << 20


def arrow_split(table: pa.Table) -> Split:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def arrow_splits(table: pa.Table, parallelism: int) -> list[Split]:
    """The rows in as many parts as they are worth, in order."""
    tasks = tasks_for_records(table.num_rows, parallelism)
    bounds = [table.num_rows * part // tasks for part in range(tasks + 1)]
    return [
        arrow_split(table.slice(bounds[part], bounds[part + 1] - bounds[part]))
        for part in range(tasks)
        if bounds[part] < bounds[part + 1]
    ]


def read_arrow_split(split: Split) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(base64.b64decode(split))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark's own conversion gives."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def struct_type(schema: StructType | str) -> StructType:
    """A schema that may be written as text: ``id long, name string``."""
    columns = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not isinstance(columns, StructType):
        raise SourceError(f"a schema must have named columns, as in 'id long', not {schema!r}")
    return columns
