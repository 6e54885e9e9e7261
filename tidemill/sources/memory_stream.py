"""A stream of rows that a test adds by hand."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.common.options import Options, non_empty
from tidemill.errors import OptionError, SourceError
from tidemill.sources.arrow_split import (
    MOST_BYTES_PER_BATCH,
    arrow_schema,
    arrow_splits,
    read_arrow_split,
    struct_type,
)
from tidemill.sources.registry import register_source, unregister_source

FORMAT = "memory-stream"
_numbers = itertools.count(1)
_streams: dict[str, MemoryStream] = {}


class MemoryStream:
    """Gives a query the rows that a test adds, in the portions and the order in which it adds them::

        orders = MemoryStream("id long, amount double")
        query = spark.readStream.format(orders.name).load().writeStream. ... .start()
        orders.add([(1, 9.5), (2, 12.0)])
        query.processAllAvailable()

    Rows are tuples, dictionaries, ``Row`` objects, or a pandas or Arrow table. A batch takes all portions
    added since the one before. Any number of queries can read a stream, and a query that is started again in
    the same process continues where it was. Rows that all running queries have committed are forgotten,
    unless ``keep`` is set: then a new query begins at the first row.

    ``name`` is the name of the format; without one the stream makes up its own. :meth:`close` frees it.
    """

    def __init__(
        self, schema: StructType | str, *, name: str | None = None, keep: bool = False
    ) -> None:
        self.schema = struct_type(schema)
        self.name = f"{FORMAT}-{next(_numbers)}" if name is None else name
        self._arrow_schema = arrow_schema(self.schema)
        self._keep = keep
        self._lock = threading.Lock()
        self._portions: dict[int, pa.Table] = {}
        self._end = 0
        self._first = 0
        self._committed: dict[MemoryStreamSource, int] = {}
        register_source(self.name, self.source)
        _streams[self.name.lower()] = self

    def add(self, rows: Any) -> int:
        """Add a portion. Return how many there are now, which is the offset after it."""
        table = self._as_table(rows)
        with self._lock:
            self._portions[self._end] = table
            self._end += 1
            return self._end

    def _as_table(self, rows: Any) -> pa.Table:
        try:
            if isinstance(rows, pa.RecordBatch):
                rows = pa.Table.from_batches([rows])
            if isinstance(rows, pa.Table):
                return rows.select(self._arrow_schema.names).cast(self._arrow_schema)
            if hasattr(rows, "iloc"):  # a DataFrame of pandas, which need not be imported for this
                return pa.Table.from_pandas(rows, self._arrow_schema, preserve_index=False)
            if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
                raise TypeError(f"a {type(rows).__name__} is not a list of rows")
            listed = [self._in_order(row) for row in rows]
            if not listed:
                return self._arrow_schema.empty_table()
            return LocalDataToArrowConversion.convert(listed, self.schema, False)
        except Exception as error:  # Arrow, pandas and PySpark raise many types
            raise SourceError(
                f"the rows added to {self.name} do not fit its columns "
                f"({self.schema.simpleString()}): {error}",
                self.name,
            ) from error

    def _in_order(self, row: Any) -> Any:
        names = self.schema.fieldNames()
        fields = list(row) if isinstance(row, dict) else getattr(row, "__fields__", None)
        if fields is not None:
            unknown = sorted(set(fields) - set(names))
            if unknown:
                raise ValueError(f"there is no column {', '.join(unknown)}")
            values = row if isinstance(row, dict) else row.asDict()
            return tuple(values.get(name) for name in names)
        if not isinstance(row, (tuple, list)):
            raise TypeError(f"a row is a tuple, a dictionary or a Row, not {row!r:.100}")
        return tuple(row)

    @property
    def end(self) -> int:
        """The number of portions added so far."""
        return self._end

    @property
    def first(self) -> int:
        """The number of the first portion that is still there."""
        return self._first

    def source(self, options: Mapping[str, str]) -> MemoryStreamSource:
        """Return a source that reads this stream for one query."""
        return MemoryStreamSource(self)

    def portions(self, start: int, end: int) -> list[pa.Table]:
        """Return the portions of a range. ``LookupError`` if some of them are gone."""
        with self._lock:
            if end > self._end:
                raise LookupError(
                    f"{self.name} has {self._end} portions, and a batch was planned up to {end}: the rows of "
                    "a memory stream are gone with its process"
                )
            if start < min(self._first, end):
                raise LookupError(
                    f"portions {start} to {end} of {self.name} have been committed and forgotten: make "
                    "the stream with keep=True"
                )
            return [self._portions[number] for number in range(start, end)]

    def close(self) -> None:
        """Free the name. Queries that read the stream already continue. Idempotent."""
        if _streams.get(self.name.lower()) is self:
            del _streams[self.name.lower()]
            unregister_source(self.name)

    def _reads(self, source: MemoryStreamSource) -> None:
        with self._lock:
            self._committed[source] = self._first

    def _commit(self, source: MemoryStreamSource, end: int) -> None:
        with self._lock:
            self._committed[source] = end
            self._forget()

    def _no_longer_reads(self, source: MemoryStreamSource, continues: bool) -> None:
        """Forget a reader. ``continues`` is for one that may be started again and go on where it was."""
        with self._lock:
            self._committed.pop(source, None)
            if self._committed and not continues:
                self._forget()

    def _forget(self) -> None:
        """Forget the portions that all readers have committed."""
        done = min(self._committed.values())
        while not self._keep and self._first < done:
            self._portions.pop(self._first, None)
            self._first += 1


class MemoryStreamSource(SplitSource):
    """Reads a memory stream for one query. The offset is how many portions have been read.

    A batch has whole portions, one at least.
    """

    known_options = frozenset({"stream"})

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self._available: int | None = None
        self._continues = False

    def schema(self) -> StructType:
        return self._stream.schema

    def description(self) -> str:
        return f"MemoryStream[{self._stream.name}]"

    def counts_records(self) -> bool:
        return True

    def start(self, runtime: SourceRuntime) -> None:
        # A query has a log. Without one, somebody only looks, such as df.count().
        self._continues = runtime.log is not None
        self._stream._reads(self)

    def initial_offset(self) -> Offset:
        return self._stream.first

    def prepare_available_now(self) -> None:
        self._available = self._stream.end

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        available = self._stream.end if self._available is None else self._available
        most_bytes = min(limit.max_bytes or MOST_BYTES_PER_BATCH, MOST_BYTES_PER_BATCH)
        rows = size = 0
        end = start
        for portion in self._stream.portions(start, max(start, available)):
            rows += portion.num_rows
            size += portion.nbytes
            too_many = limit.max_records is not None and rows > limit.max_records
            if end > start and (too_many or size > most_bytes):
                break
            end += 1
        return end

    def newest_offset(self) -> Offset:
        return self._stream.end

    def size(self, range_: OffsetRange) -> RangeSize:
        portions = self._stream.portions(range_.start, range_.end)
        return RangeSize(
            sum(portion.num_rows for portion in portions),
            sum(portion.nbytes for portion in portions),
            f"{len(portions)} portions",
        )

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        portions = self._stream.portions(range_.start, range_.end)
        return arrow_splits(pa.concat_tables(portions), parallelism) if portions else []

    def split_reader(self) -> SplitReader:
        return read_arrow_split

    def commit(self, end: Offset) -> None:
        self._stream._commit(self, end)

    def stop(self) -> None:
        self._stream._no_longer_reads(self, self._continues)


def memory_stream_source(options: Mapping[str, str]) -> MemoryStreamSource:
    """Return the source for ``format("memory-stream")``, whose option ``stream`` names a memory stream."""
    read = Options(options, "the memory-stream source")
    name = read.required("stream", non_empty, "stream.name")
    stream = _streams.get(name.lower())
    if stream is None:
        raise OptionError(
            f"there is no memory stream {name!r} in this process: make a MemoryStream first and give its "
            f"name; there are {', '.join(sorted(_streams)) or 'none'}",
            "stream",
        )
    return MemoryStreamSource(stream)
