"""Reading a table source as a query would, without a query."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa

from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import SplitSource
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.clock import Clock, ManualClock
from tidemill.sources.arrow_split import arrow_schema


def runtime(clock: Clock | None = None, directory: Any = None, name: str = "0") -> SourceRuntime:
    clock = clock or ManualClock()
    log = None if directory is None else SourceLog(LocalStorage(str(directory)), name)
    return SourceRuntime(clock.now_ms(), clock, log)


def read(source: SplitSource, range_: OffsetRange, parallelism: int = 2) -> pa.Table:
    """All rows of a range, by a reader that has travelled, from splits that have been JSON."""
    reader = pickle.loads(pickle.dumps(source.split_reader()))  # noqa: S301
    splits = json.loads(json.dumps(list(source.splits(range_, parallelism))))
    schema = arrow_schema(source.schema())
    tables = [
        pa.Table.from_batches([batch]).select(schema.names).cast(schema)
        for split in splits
        for batch in reader(split)
    ]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def rows(source: SplitSource, start: Any, end: Any, parallelism: int = 2) -> list[tuple[Any, ...]]:
    table = read(source, OffsetRange(start, end), parallelism)
    return [tuple(row.values()) for row in table.to_pylist()]


def next_range(
    source: SplitSource, start: Any, time_ms: int = 0, limit: AdmissionLimit = UNLIMITED
) -> OffsetRange:
    return OffsetRange(start, source.latest_offset(start, limit, time_ms))
