"""PySpark's own Python data sources, as sources of a query.

A class that is registered with ``spark.dataSource.register`` and has a ``streamReader`` or a
``simpleStreamReader`` is read here as Spark reads it: one reader on the driver plans, another one, fresh from
its constructor, reads partitions in tasks. PySpark's own conversion makes Arrow of the rows.

The calls for a batch, in order: ``latestOffset`` and ``reportLatestOffset``; when the batch is in the log,
``partitions``, and ``read`` in tasks; ``commit`` when the batch is committed. ``initialOffset``,
``prepareForTriggerAvailableNow`` and ``getDefaultReadLimit`` come once before them, ``stop`` once after them.
"""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemill.batches.batch import EVERYTHING, AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.sources.arrow_split import arrow_schema, arrow_splits, struct_type
from tidemill.sources.python_partitions import (
    BetweenOffsets,
    PartitionReader,
    PrefetchedReader,
    as_arrow,
    pickled_partition,
)
from tidemill.sources.python_read_limits import checked_limit, read_limit
from tidemill.spark.errors.data_source_errors import (
    DataSourceCreationError,
    DataSourceResultError,
    calling,
    creating,
)


def python_source_schema(data_source: type[DataSource], options: Mapping[str, str]) -> StructType:
    """Return the columns that a registered class says it has. No reader is made for that."""
    made = _made(data_source, options)
    name = made.name()
    missing = (
        f"the Python data source {name!r} does not say which columns it has: write .schema(...) before "
        ".load()"
    )
    with creating(name, "schema()", missing):
        schema = made.schema()
    if not isinstance(schema, (str, StructType)):
        raise DataSourceCreationError(
            f"schema() of the Python data source {name!r} must return a StructType or a text such as "
            f"'id long, name string', not {schema!r:.100}",
            name,
        )
    return struct_type(schema)


def python_stream_source(
    data_source: type[DataSource], options: Mapping[str, str], schema: StructType
) -> SplitSource:
    """Return the source that a registered class describes, with readers of its own, for one query."""
    made = _made(data_source, options)
    name = made.name()
    with creating(name, "streamReader()"):
        try:
            reader: Any = made.streamReader(schema=schema)
        except PySparkNotImplementedError:
            reader = None
        else:
            _require_reader(name, "streamReader", reader, DataSourceStreamReader)
    if reader is not None:
        return PythonStreamSource(made, schema, reader)
    missing = (
        f"the Python data source {name!r} cannot be read as a stream: its class has neither "
        "streamReader() nor simpleStreamReader()"
    )
    with creating(name, "simpleStreamReader()", missing):
        reader = made.simpleStreamReader(schema=schema)
    _require_reader(name, "simpleStreamReader", reader, SimpleDataSourceStreamReader)
    return SimplePythonStreamSource(made, schema, reader)


def _made(data_source: type[DataSource], options: Mapping[str, str]) -> DataSource:
    with creating(data_source.name(), "__init__()"):
        return data_source(options=CaseInsensitiveDict(dict(options)))


def _require_reader(name: str, method: str, reader: Any, kind: type) -> None:
    if not isinstance(reader, kind):
        raise DataSourceCreationError(
            f"{method}() of the Python data source {name!r} must return a {kind.__name__}, "
            f"not {reader!r:.100}",
            name,
        )


class _PythonSource(SplitSource):
    """The common part of both kinds. Offsets are dictionaries, with any contents."""

    # Only the user's class knows its options.
    known_options: frozenset[str] | None = None

    def __init__(self, source: DataSource, schema: StructType, reader: Any) -> None:
        self._source = source
        self._name = source.name()
        self._schema = schema
        self._reader = reader
        self._one_batch = False
        self._end_of_all: Offset = None

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"PythonDataSource[{self._name}]"

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(0 if range_.is_empty else None)

    def initial_offset(self) -> Offset:
        with calling(self._name, "reader.initialOffset"):
            offset = self._reader.initialOffset()
        return self._checked(offset, "initialOffset")

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        if self._end_of_all is not None:
            return self._end_of_all
        # A reader that cannot be told to stop at what is there now gives all of it in one batch.
        end = self._read_up_to(start, EVERYTHING if self._one_batch else limit)
        if self._one_batch:
            self._end_of_all = end
        return end

    @abstractmethod
    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        """Ask the user's reader how far a batch can reach."""

    def prepare_available_now(self) -> None:
        if isinstance(self._reader, SupportsTriggerAvailableNow):
            with calling(self._name, "reader.prepareForTriggerAvailableNow"):
                self._reader.prepareForTriggerAvailableNow()
        else:
            self._one_batch = True

    def commit(self, end: Offset) -> None:
        with calling(self._name, "reader.commit"):
            self._reader.commit(end)

    def _checked(self, offset: Any, method: str) -> Offset:
        """Return the offset as it will come back from the log."""
        try:
            if isinstance(offset, dict):
                return json.loads(json.dumps(offset, allow_nan=False))
            problem = "not a dictionary"
        except (TypeError, ValueError) as error:
            problem = str(error)
        raise DataSourceResultError(
            f"{method}() of the Python data source {self._name!r} must return an offset, which is a "
            f"dictionary of numbers, texts and truth values, not {offset!r:.100} ({problem})",
            self._name,
        )


class PythonStreamSource(_PythonSource):
    """A data source with a ``streamReader``: the driver plans partitions, tasks read them.

    A reader whose ``latestOffset`` takes ``(start, limit)`` gets its own default limit, or a stricter one of
    the same kind if the query has one. A reader whose ``latestOffset`` takes nothing cannot be limited.
    """

    _reader: DataSourceStreamReader

    def __init__(
        self, source: DataSource, schema: StructType, reader: DataSourceStreamReader
    ) -> None:
        super().__init__(source, schema, reader)
        self._takes_limits = bool(inspect.signature(reader.latestOffset).parameters)
        self._default_limit: ReadLimit | None = None
        self._newest: Offset | None = None

    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        latest: Callable[..., Any] = self._reader.latestOffset
        if not self._takes_limits:
            with calling(self._name, "reader.latestOffset"):
                end = latest()
            self._newest = self._checked(end, "latestOffset")
            return self._newest
        now = read_limit(self._limit(), limit)
        with calling(self._name, "reader.latestOffset"):
            end = latest(start, now)
        checked = self._checked(end, "latestOffset")
        self._newest = self._reported()
        return checked

    def _limit(self) -> ReadLimit:
        if self._default_limit is None:
            with calling(self._name, "reader.getDefaultReadLimit"):
                limit = self._reader.getDefaultReadLimit()
            self._default_limit = checked_limit(self._name, limit)
        return self._default_limit

    def _reported(self) -> Offset | None:
        """Ask the reader for an offset to show in progress. Nobody reads from it: any JSON value will do."""
        with calling(self._name, "reader.reportLatestOffset"):
            return json.loads(json.dumps(self._reader.reportLatestOffset()))

    def newest_offset(self) -> Offset | None:
        """Return what the reader has reported when the last batch was planned."""
        return self._newest

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        with calling(self._name, "reader.partitions"):
            partitions = self._reader.partitions(range_.start, range_.end)
        if not isinstance(partitions, Sequence) or isinstance(partitions, str):
            raise DataSourceResultError(
                f"partitions() of the Python data source {self._name!r} must return a list of InputPartition "
                f"objects, not {partitions!r:.100}",
                self._name,
            )
        return [pickled_partition(self._name, partition) for partition in partitions]

    def split_reader(self) -> SplitReader:
        with creating(self._name, "streamReader()"):
            reader = self._source.streamReader(schema=self._schema)
        return PartitionReader(self._source, reader, self._schema)

    def stop(self) -> None:
        with calling(self._name, "reader.stop"):
            self._reader.stop()


class SimplePythonStreamSource(_PythonSource):
    """A data source with a ``simpleStreamReader``, which must read rows to find out how far a batch reaches.

    The rows stay on the driver until their batch is committed. A task reads a batch of an earlier run, with
    ``readBetweenOffsets``.
    """

    _reader: SimpleDataSourceStreamReader

    def __init__(
        self, source: DataSource, schema: StructType, reader: SimpleDataSourceStreamReader
    ) -> None:
        super().__init__(source, schema, reader)
        self._prefetched: list[_Prefetched] = []

    def start(self, runtime: SourceRuntime) -> None:
        self._prefetched.clear()

    def _read_up_to(self, start: Offset, limit: AdmissionLimit) -> Offset:
        known = next((part for part in self._prefetched if part.start == start), None)
        if known is not None:
            return known.end  # an abandoned plan: its rows are still there
        with calling(self._name, "reader.read"):
            result = self._reader.read(start)
        if not isinstance(result, tuple) or len(result) != 2:
            raise DataSourceResultError(
                f"read() of the Python data source {self._name!r} must return an iterator of rows and the "
                f"offset after them, not {result!r:.100}",
                self._name,
            )
        rows, end = result
        end = self._checked(end, "read")
        with calling(self._name, "reader.read"):  # a generator runs only now
            batches = list(as_arrow(iter(rows), self._schema, self._source))
        table = pa.Table.from_batches(batches, arrow_schema(self._schema))
        if start != end:
            self._prefetched.append(_Prefetched(start, end, table))
        elif table.num_rows:
            raise DataSourceResultError(
                f"read() of the Python data source {self._name!r} gave {table.num_rows} rows and an end "
                f"offset that is the start, {json.dumps(start)}: the same rows would be read for ever "
                "(SIMPLE_STREAM_READER_OFFSET_DID_NOT_ADVANCE)",
                self._name,
            )
        return end

    def size(self, range_: OffsetRange) -> RangeSize:
        table = self._rows(range_)
        if table is None:
            return super().size(range_)
        return RangeSize(table.num_rows, table.nbytes)

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        if range_.is_empty:
            return []
        table = self._rows(range_)
        if table is not None:
            return [{"rows": split} for split in arrow_splits(table, parallelism)]
        between = InputPartition((range_.start, range_.end))
        return [{"partition": pickled_partition(self._name, between)}]

    def split_reader(self) -> SplitReader:
        with creating(self._name, "simpleStreamReader()"):
            reader = self._source.simpleStreamReader(schema=self._schema)
        return PrefetchedReader(PartitionReader(self._source, BetweenOffsets(reader), self._schema))

    def _rows(self, range_: OffsetRange) -> pa.Table | None:
        """Return the rows of a range if this run has read them."""
        parts: list[pa.Table] = []
        at = range_.start
        for part in self._prefetched:
            if part.start == at:
                parts.append(part.rows)
                at = part.end
                if at == range_.end:
                    return pa.concat_tables(parts)
        return None

    def commit(self, end: Offset) -> None:
        for index, part in enumerate(self._prefetched):
            if part.end == end:
                del self._prefetched[: index + 1]
                break
        super().commit(end)


@dataclass(frozen=True)
class _Prefetched:
    start: Offset
    end: Offset
    rows: pa.Table
