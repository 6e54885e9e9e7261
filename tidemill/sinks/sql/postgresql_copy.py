"""Rows into a staging table of PostgreSQL, inside a task: Arrow, CSV, COPY."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv
from pyspark.sql import functions as sql
from pyspark.sql import types

from tidemill.common.clock import SystemClock
from tidemill.common.fault_points import fault_point
from tidemill.errors import SetupError, SinkError, SinkUnavailableError
from tidemill.sinks.sql.nested import as_json, is_nested
from tidemill.sinks.sql.table_name import quoted
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import Column

COPIED = "attempt long, rows long"
"""The columns of the only row that a task returns."""
ATTEMPT, ROW = "#attempt", "#row"
"""Columns of a staging table, beside those of the query."""
CHUNK_ROWS = 100_000
CHUNK_BYTES = 16 << 20
CONNECT_S = 10
RANDOM_BITS = 40


@dataclass(frozen=True)
class Server:
    """Where a database is, and as whom to connect."""

    url: str = field(repr=False)
    user: str | None
    password: str | None = field(repr=False)
    place: str

    def require_driver(self) -> None:
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise SetupError(
                "writing to PostgreSQL needs psycopg: pip install 'tidemill[postgresql]'"
            ) from None

    def connect(self) -> Connection[Any]:
        import psycopg

        given = {"user": self.user, "password": self.password}
        return psycopg.connect(
            self.url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="tidemill",
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )


class CopyTask:
    """``mapInArrow`` function: copies the rows of a partition, and says under which number it did.

    The number is drawn anew by every attempt: the rows of one that died, or that Spark does not count, have
    another number than those that go into the table. Numbers of later partitions are greater.
    """

    def __init__(self, server: Server, stage: str, columns: Sequence[str], retry_s: int) -> None:
        self._server = server
        self._columns = tuple(columns)
        listed = ", ".join(quoted(name) for name in (*columns, ATTEMPT, ROW))
        self._copy = f"COPY {stage} ({listed}) FROM STDIN (FORMAT csv)"
        self._retry_s = retry_s

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        tune_worker()
        context = TaskContext.get()
        assert context is not None
        attempt, rows = context.partitionId() << RANDOM_BITS | random.getrandbits(RANDOM_BITS), 0
        connection: Connection[Any] | None = None
        try:
            for chunk in _chunks(batches):
                if connection is None:
                    connection = self._connect()
                data = _csv(chunk, attempt, rows)
                self._send(connection, data)
                rows += chunk.num_rows
                fault_point("sql.copied")
        finally:
            if connection is not None:
                connection.close()
        yield pa.record_batch(
            {"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64())}
        )

    def _send(self, connection: Connection[Any], data: bytes) -> None:
        import psycopg

        try:
            with connection.cursor() as cursor, cursor.copy(self._copy) as copy:
                copy.write(data)
        except psycopg.OperationalError as error:
            raise SinkUnavailableError(
                f"the database {self._server.place} went away while rows were staged "
                f"({said_of(error)}). The batch is not committed, and runs again at the next start",
                "sql",
            ) from None
        except psycopg.Error as error:
            raise SinkError(f"PostgreSQL refuses a row: {said_of(error)}", "sql") from None

    def _connect(self) -> Connection[Any]:
        """Connect, again and again while nobody answers: nothing has been sent yet."""
        import psycopg

        clock = SystemClock()
        end_ms = clock.now_ms() + self._retry_s * 1000
        while True:
            try:
                connection = self._server.connect()
                # What a crash of the server would lose of a staging table is counted at the commit.
                connection.execute("SET synchronous_commit = off")
                return connection
            except psycopg.OperationalError:
                if clock.now_ms() >= end_ms:
                    raise
                clock.wait_till(clock.now_ms() + 200)


def copied_value(value: Column, data_type: types.DataType, type_name: str) -> Column:
    """Return a value so that its CSV is what PostgreSQL reads."""
    if isinstance(data_type, types.BinaryType):
        return sql.concat(sql.lit("\\x"), sql.hex(value))
    if isinstance(data_type, types.DecimalType):
        return value.cast("string")
    if isinstance(data_type, types.ArrayType) and type_name.endswith("[]"):
        texts = sql.transform(value, lambda each: sql.coalesce(_array_text(each), sql.lit("NULL")))
        return sql.concat(sql.lit("{"), sql.array_join(texts, ","), sql.lit("}"))
    return as_json(value) if is_nested(data_type) else value


def _array_text(element: Column) -> Column:
    """Return an element as it stands in an array: in quotes, which it and backslashes escape."""
    text = sql.replace(element.cast("string"), sql.lit("\\"), sql.lit("\\\\"))
    return sql.concat(sql.lit('"'), sql.replace(text, sql.lit('"'), sql.lit('\\"')), sql.lit('"'))


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        kept.append(batch)
        if (
            sum(each.num_rows for each in kept) >= CHUNK_ROWS
            or sum(each.nbytes for each in kept) >= CHUNK_BYTES
        ):
            yield pa.Table.from_batches(kept)
            kept = []
    if any(each.num_rows for each in kept):
        yield pa.Table.from_batches(kept)


def _csv(rows: pa.Table, attempt: int, first: int) -> bytes:
    columns = [_utc(column) for column in rows.columns]
    columns.append(pa.array([attempt], pa.int64()).take(pa.array([0] * rows.num_rows)))
    columns.append(pa.array(range(first, first + rows.num_rows), pa.int64()))
    names = [str(number) for number in range(len(columns))]
    sink = io.BytesIO()
    csv.write_csv(
        pa.Table.from_arrays(columns, names), sink, csv.WriteOptions(include_header=False)
    )
    return sink.getvalue()


def _utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return column
    if kind.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    return column.cast(pa.string())


def said_of(error: Exception) -> str:
    """Return what a database says of an error, in one line, with the row that it names."""
    diagnosis = getattr(error, "diag", None)
    parts = [str(error).splitlines()[0] if str(error) else type(error).__name__]
    for more in ("message_detail", "context"):
        text = getattr(diagnosis, more, None)
        if text and text not in parts[0]:
            parts.append(text.splitlines()[0])
    return ". ".join(parts)
