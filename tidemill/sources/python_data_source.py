"""PySpark's own Python data sources, as sources of a query.

A class that is registered with ``spark.dataSource.register`` and has a ``streamReader`` or a
``simpleStreamReader`` is read here as Spark reads it: one reader on the driver plans, another one, fresh from
its constructor, reads partitions in tasks. PySpark's own conversion makes Arrow of the rows.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tidemill.batches.batch import EVERYTHING, AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.errors import SourceError
from tidemill.sources.arrow_split import (
    arrow_schema,
    arrow_splits,
    read_arrow_split,
    struct_type,
)

ROWS_PER_ARROW_BATCH = 10_000


def python_stream_source(
    data_source: type[DataSource],
    options: Mapping[str, str],
    schema: StructType | None = None,
) -> SplitSource:
    """Return the source that a registered class describes. ``schema`` is the one of the reader, if any."""
    made = data_source(options=CaseInsensitiveDict(dict(options)))
    columns = _columns(made, schema)
    try:
        return PythonStreamSource(made, columns)
    except PySparkNotImplementedError:
        pass
    try:
        return SimplePythonStreamSource(made, columns)
    except PySparkNotImplementedError:
        raise SourceError(
            f"the Python data source {made.name()!r} cannot be read as a stream: its class has neither "
            "streamReader() nor simpleStreamReader()",
            made.name(),
        ) from None


def _columns(source: DataSource, schema: StructType | None) -> StructType:
    if schema is not None:
        return schema
    try:
        own = source.schema()
    except PySparkNotImplementedError:
        raise SourceError(
            f"the Python data source {source.name()!r} does not say which columns it has: write "
            ".schema(...) before .load()",
            source.name(),
        ) from None
    return struct_type(own)


class _PythonSource(SplitSource):
    """The common part of both kinds. Offsets are dictionaries, with any contents."""

    # Only the user's class knows its options.
    known_options: frozenset[str] | None = None

    def __init__(self, source: DataSource, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._one_batch = False
        self._end_of_all: Offset = None

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"PythonDataSource[{self._source.name()}]"

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(0 if range_.is_empty else None)

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        if self._end_of_all is not None:
            return self._end_of_all
        # A reader that cannot be told to stop at what is there now gives all of it in one batch.
        now = EVERYTHING if self._one_batch else limit
        end = _checked_offset(self._source.name(), self._read_up_to(start, now))
        if self._one_batch:
            self._end_of_all = end
        return end

    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        raise NotImplementedError

    def prepare_available_now(self) -> None:
        prepare = getattr(self._user_reader(), "prepareForTriggerAvailableNow", None)
        if prepare is None:
            self._one_batch = True
        else:
            prepare()

    def _user_reader(self) -> Any:
        raise NotImplementedError

    def commit(self, end: Offset) -> None:
        self._user_reader().commit(end)

    def split_reader(self) -> SplitReader:
        return _SplitReader(
            arrow_splits=isinstance(self, SimplePythonStreamSource),
            partitions=PartitionReader(self._source, self._reader_for_tasks(), self._schema),
        )

    def _reader_for_tasks(self) -> Any:
        raise NotImplementedError


class PythonStreamSource(_PythonSource):
    """A data source with a ``streamReader``: the driver plans partitions, tasks read them.

    A reader whose ``latestOffset`` takes ``(start, limit)`` gets its own default limit, or a stricter one of
    the same kind if the query has one. A reader whose ``latestOffset`` takes nothing cannot be limited.
    """

    def __init__(self, source: DataSource, schema: StructType) -> None:
        super().__init__(source, schema)
        self._reader: DataSourceStreamReader = source.streamReader(schema=schema)
        self._takes_limits = bool(inspect.signature(self._reader.latestOffset).parameters)

    def _user_reader(self) -> Any:
        return self._reader

    def _reader_for_tasks(self) -> Any:
        return self._source.streamReader(schema=self._schema)

    def initial_offset(self) -> Offset:
        return _checked_offset(self._source.name(), self._reader.initialOffset())

    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        latest: Callable[..., Any] = self._reader.latestOffset
        if not self._takes_limits:
            return latest()
        return latest(start, _read_limit(self._reader.getDefaultReadLimit(), limit))

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        partitions = self._reader.partitions(range_.start, range_.end)
        for partition in partitions:
            if not isinstance(partition, InputPartition):
                raise SourceError(
                    f"partitions() of the Python data source {self._source.name()!r} must give "
                    f"InputPartition objects, not {partition!r:.100}",
                    self._source.name(),
                )
        return [_pickled(partition) for partition in partitions]

    def stop(self) -> None:
        self._reader.stop()


class SimplePythonStreamSource(_PythonSource):
    """A data source with a ``simpleStreamReader``, which must read rows to find out how far a batch reaches.

    The rows stay on the driver until their batch is committed. A task reads a batch of an earlier run, with
    ``readBetweenOffsets``.
    """

    def __init__(self, source: DataSource, schema: StructType) -> None:
        super().__init__(source, schema)
        self._reader: SimpleDataSourceStreamReader = source.simpleStreamReader(schema=schema)
        self._read: list[_Prefetched] = []

    def _user_reader(self) -> Any:
        return self._reader

    def _reader_for_tasks(self) -> Any:
        return _BetweenOffsets(self._source.simpleStreamReader(schema=self._schema))

    def start(self, runtime: SourceRuntime) -> None:
        self._read.clear()

    def initial_offset(self) -> Offset:
        return _checked_offset(self._source.name(), self._reader.initialOffset())

    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        known = next((part for part in self._read if part.start == start), None)
        if known is not None:
            return known.end  # an abandoned plan: its rows are still there
        rows, end = self._reader.read(start)
        batches = list(_as_arrow(iter(rows), self._schema, self._source))
        table = pa.Table.from_batches(batches, arrow_schema(self._schema))
        if start != end:
            self._read.append(_Prefetched(start, end, table))
        elif table.num_rows:
            raise SourceError(
                f"read() of the Python data source {self._source.name()!r} gave {table.num_rows} rows and an "
                f"end offset that is the start, {json.dumps(start)}: the same rows would be read for ever",
                self._source.name(),
            )
        return end

    def size(self, range_: OffsetRange) -> RangeSize:
        table = self._prefetched(range_)
        if table is None:
            return super().size(range_)
        return RangeSize(table.num_rows, table.nbytes)

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        if range_.is_empty:
            return []
        table = self._prefetched(range_)
        if table is not None:
            return [{"rows": split} for split in arrow_splits(table, parallelism)]
        return [{"partition": _pickled(InputPartition((range_.start, range_.end)))}]

    def _prefetched(self, range_: OffsetRange) -> pa.Table | None:
        parts: list[pa.Table] = []
        at = range_.start
        for part in self._read:
            if part.start == at:
                parts.append(part.rows)
                at = part.end
                if at == range_.end:
                    return pa.concat_tables(parts)
        return None

    def commit(self, end: Offset) -> None:
        for index, part in enumerate(self._read):
            if part.end == end:
                del self._read[: index + 1]
                break
        super().commit(end)


@dataclass(frozen=True)
class _Prefetched:
    start: Offset
    end: Offset
    rows: pa.Table


@dataclass(frozen=True)
class _BetweenOffsets:
    reader: SimpleDataSourceStreamReader

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self.reader.readBetweenOffsets(*partition.value)


@dataclass(frozen=True)
class _SplitReader:
    """Reads a split in a task: the rows that it carries, or a partition."""

    arrow_splits: bool
    partitions: PartitionReader

    def __call__(self, split: Split) -> Iterator[pa.RecordBatch]:
        if not self.arrow_splits:
            return self.partitions(split)
        if "rows" in split:
            return read_arrow_split(split["rows"])
        return self.partitions(split["partition"])


class PartitionReader:
    """Reads a partition in a task. It is pickled with the user's classes by value."""

    def __init__(self, source: DataSource, reader: Any, schema: StructType) -> None:
        self._source = source
        self._reader = reader
        self._schema = schema

    def __call__(self, split: Split) -> Iterator[pa.RecordBatch]:
        # Pickled by our own driver.
        partition = cloudpickle.loads(base64.b64decode(split))
        rows = self._reader.read(partition)
        if not isinstance(rows, Iterator):
            raise SourceError(
                f"read() of the Python data source {self._source.name()!r} must give an iterator, "
                f"not {type(rows).__name__}: write yield, or iter(...)",
                self._source.name(),
            )
        return iter(_as_arrow(rows, self._schema, self._source))

    def __reduce__(self) -> Any:
        parts = (self._source, self._reader, self._schema)
        return _loaded, (cloudpickle.dumps(parts),)  # type: ignore[no-untyped-call]


def _loaded(pickled: bytes) -> PartitionReader:
    return PartitionReader(*cloudpickle.loads(pickled))


def _as_arrow(
    rows: Iterator[Any], schema: StructType, source: DataSource
) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    yield from records_to_arrow_batches(rows, ROWS_PER_ARROW_BATCH, schema, source)


def _pickled(partition: InputPartition) -> Split:
    return base64.b64encode(cloudpickle.dumps(partition)).decode("ascii")  # type: ignore[no-untyped-call]


def _checked_offset(name: str, offset: Any) -> Offset:
    """Return the offset as it will come back from the log."""
    try:
        if isinstance(offset, dict):
            return json.loads(json.dumps(offset))
        problem = "not a dictionary"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise SourceError(
        f"an offset of the Python data source {name!r} must be a dictionary of numbers, texts and truth "
        f"values, not {offset!r:.100} ({problem})",
        name,
    )


# PySpark's limits: the field that has the number, and the field of ours.
_LIMIT_FIELDS = {
    "ReadMaxRows": ("max_rows", "max_records"),
    "ReadMaxBytes": ("max_bytes", "max_bytes"),
    "ReadMaxFiles": ("max_files", "max_files"),
}


def _read_limit(default: Any, limit: AdmissionLimit) -> Any:
    """Return the reader's default limit, made stricter where the query's limit of the same kind is.

    The reader gets no other kind of limit: it need not know them. A batch of everything has no limit.
    """
    if limit.everything:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        return ReadAllAvailable()
    field, ours = _LIMIT_FIELDS.get(type(default).__name__, (None, ""))
    most = getattr(limit, ours, None) if field else None
    if field is None or most is None:
        return default
    return replace(default, **{field: min(getattr(default, field), most)})
