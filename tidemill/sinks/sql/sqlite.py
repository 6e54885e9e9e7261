"""SQLite: rows are staged in the driver's memory, and written in one transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from tidemill.common.fault_points import fault_point
from tidemill.errors import OptionError, SinkError, SinkUnavailableError
from tidemill.sinks.sql.database import RECORDS, Database, TableColumn, WrittenRows
from tidemill.sinks.sql.nested import as_json, is_nested
from tidemill.sinks.sql.options import SqlSinkOptions
from tidemill.sinks.sql.table_name import TableName, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXACT_DIGITS = 15
"""SQLite computes with doubles: a decimal of more digits is kept as text."""

_TYPES: dict[type[types.DataType], str] = {
    types.BooleanType: "BOOLEAN",
    types.ByteType: "TINYINT",
    types.ShortType: "SMALLINT",
    types.IntegerType: "INTEGER",
    types.LongType: "BIGINT",
    types.FloatType: "FLOAT",
    types.DoubleType: "DOUBLE",
    types.StringType: "TEXT",
    types.CharType: "TEXT",
    types.VarcharType: "TEXT",
    types.BinaryType: "BLOB",
    types.DateType: "DATE",
    types.TimestampType: "TIMESTAMP",
    types.TimestampNTZType: "DATETIME",
}
CHUNK = 50_000


class Sqlite(Database):
    """One file, on the driver's machine. A column takes values of any type, whatever it says of itself."""

    name = "SQLite"

    def __init__(self, options: SqlSinkOptions) -> None:
        self._path = _path(options.url)
        self._retry_s = options.retry_s
        self._connection: sqlite3.Connection | None = None
        self._is_new = False
        self._rows: WrittenRows | None = None
        self._staged: pa.Table | None = None

    def type_for(self, data_type: types.DataType) -> str | None:
        if isinstance(data_type, types.DecimalType):
            exact = data_type.precision <= EXACT_DIGITS
            return f"DECIMAL({data_type.precision},{data_type.scale})" if exact else "TEXT"
        return "JSON" if is_nested(data_type) else _TYPES.get(type(data_type))

    def can_store(self, data_type: types.DataType, type_name: str) -> bool:
        """As SQLite: what cannot be converted to the column's type stays as it is, except for numbers in text
        columns and text in columns of numbers, which come out as something else.
        """
        wanted = self.type_for(data_type)
        return wanted is not None and _affinity(wanted) in (_affinity(type_name), "BLOB", "NUMERIC")

    def storable(self, value: Column, data_type: types.DataType, type_name: str) -> Column:
        if isinstance(data_type, types.DecimalType | types.DateType):
            return value.cast("string")
        return as_json(value) if is_nested(data_type) else value

    def connect(self) -> None:
        self._is_new = not os.path.exists(self._path)
        try:
            self._connection = sqlite3.connect(
                self._path,
                timeout=self._retry_s,
                isolation_level=None,  # transactions begin where this file says so
                check_same_thread=False,  # close() may come from another thread
            )
            if self._is_new:
                # Readers go on while a batch is written. A file that was there keeps its own mode.
                self._execute("PRAGMA journal_mode = WAL")
            self._execute("SELECT 1 FROM sqlite_master LIMIT 1")
        except sqlite3.Error as error:
            raise SinkError(
                f"the database {self._path} cannot be opened: {error}. Its folder must exist, and the file "
                "must be a database of SQLite that may be written to",
                "sql",
            ) from None

    def columns(self, table: TableName) -> Sequence[TableColumn] | None:
        schema = quoted(table.schema or "main")
        found = self._execute(f"PRAGMA {schema}.table_xinfo({quoted(table.table)})").fetchall()
        return [
            TableColumn(
                name,
                type_name,
                # A key of one integer column is numbered by SQLite.
                not is_required
                or default is not None
                or (key > 0 and type_name.upper() == "INTEGER"),
                is_computed=hidden in (2, 3),
            )
            for _, name, type_name, is_required, default, key, hidden in found
            if hidden != 1
        ] or None

    def is_unique(self, table: TableName, columns: Sequence[str]) -> bool:
        schema = quoted(table.schema or "main")
        wanted = {column.lower() for column in columns}
        info = self._execute(f"PRAGMA {schema}.table_xinfo({quoted(table.table)})").fetchall()
        if {name.lower() for _, name, _, _, _, key, _ in info if key} == wanted:
            return True
        indexes = self._execute(f"PRAGMA {schema}.index_list({quoted(table.table)})").fetchall()
        return any(
            {name and name.lower() for _, _, name in self._index(schema, index)} == wanted
            for _, index, is_unique, _, is_partial in indexes
            if is_unique and not is_partial
        )

    def _index(self, schema: str, index: str) -> Sequence[Any]:
        return self._execute(f"PRAGMA {schema}.index_info({quoted(index)})").fetchall()

    def run(self, *statements: str) -> None:
        with self._transaction():
            for statement in statements:
                self._execute(statement)

    def begin(self, rows: WrittenRows) -> None:
        self._rows = rows
        self.run(
            f"CREATE TABLE IF NOT EXISTS {rows.table.sibling(RECORDS)} (query_id TEXT NOT NULL, target TEXT "
            "NOT NULL, batch_id INTEGER NOT NULL, committed_at TEXT NOT NULL, PRIMARY KEY (query_id, target))"
        )

    def last_batch(self) -> int | None:
        rows = self._written
        found = self._execute(
            f"SELECT batch_id FROM {rows.table.sibling(RECORDS)} WHERE query_id = ? AND target = ?",
            (rows.query_id, rows.table.table),
        ).fetchone()
        return None if found is None else int(found[0])

    def stage(self, rows: DataFrame) -> int:
        self._staged = None
        table = rows.toArrow()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                raise SinkError(
                    f"the column {name} has the value NaN, which SQLite would store as null: replace it in "
                    "the query, with nanvl(column, ...)",
                    "sql",
                )
        self._staged = table
        return int(table.num_rows)

    def commit(self, batch_id: int, replaces: bool) -> None:
        staged, rows = self._staged, self._written
        if staged is None:
            return
        with self._transaction():
            last = self.last_batch()
            if last is None or last < batch_id:
                if replaces:
                    self._execute(f"DELETE FROM {rows.table.quoted}")
                self._write(staged, rows)
                self._execute(
                    f"INSERT OR REPLACE INTO {rows.table.sibling(RECORDS)} VALUES "
                    "(?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
                    (rows.query_id, rows.table.table, batch_id),
                )
                fault_point("sql.before-commit")
        fault_point("sql.committed")
        self._staged = None

    def _write(self, staged: pa.Table, rows: WrittenRows) -> None:
        if rows.keys:
            staged = _last_of_each(staged, rows.keys)
        if rows.deletes is not None:
            gone = pc.fill_null(staged.column(rows.deletes), False)
            self._delete(staged.filter(gone), rows)
            staged = staged.filter(pc.invert(gone))
        names = [field.name for field in rows.columns]
        staged = staged.select(names)
        if rows.keys:
            is_null = _any_null(staged, rows.keys)
            self._update(staged.filter(is_null), rows)
            staged = staged.filter(pc.invert(is_null))
        self._insert(staged, rows)

    def _insert(self, staged: pa.Table, rows: WrittenRows) -> None:
        names = staged.column_names
        statement = f"INSERT INTO {rows.table.quoted} ({_listed(names)}) VALUES ({_marks(names)})"
        if rows.keys:
            changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in rows.values)
            statement += f" ON CONFLICT ({_listed(rows.keys)}) DO "
            statement += f"UPDATE SET {changes}" if changes else "NOTHING"
        for chunk in _chunks(staged):
            self._execute_many(statement, chunk, names)

    def _update(self, staged: pa.Table, rows: WrittenRows) -> None:
        """Write rows with a null key: to SQLite, nulls differ from each other, so no index finds them."""
        if not staged.num_rows:
            return
        self._delete(staged, rows)
        names = staged.column_names
        statement = f"INSERT INTO {rows.table.quoted} ({_listed(names)}) VALUES ({_marks(names)})"
        for chunk in _chunks(staged):
            self._execute_many(statement, chunk, names)

    def _delete(self, staged: pa.Table, rows: WrittenRows) -> None:
        same = " AND ".join(f"{quoted(key)} IS ?" for key in rows.keys)
        for chunk in _chunks(staged.select(list(rows.keys))):
            self._execute_many(f"DELETE FROM {rows.table.quoted} WHERE {same}", chunk, rows.keys)

    def _execute_many(
        self, statement: str, rows: Sequence[tuple[Any, ...]], names: Sequence[str]
    ) -> None:
        try:
            self._open.executemany(statement, rows)
        except sqlite3.IntegrityError as error:
            raise SinkError(self._blame(statement, rows, names, error), "sql") from None

    def _blame(
        self,
        statement: str,
        rows: Iterable[tuple[Any, ...]],
        names: Sequence[str],
        error: sqlite3.Error,
    ) -> str:
        """Say which row the database refuses: those before it are in the transaction, which is undone."""
        self._execute("ROLLBACK")
        self._execute("BEGIN IMMEDIATE")
        for row in rows:
            try:
                self._execute(statement, row)
            except sqlite3.IntegrityError as refused:
                error = refused
                values = dict(zip(names, row, strict=True))
                return f"the table {self._written.table} refuses the row {values!r:.500}: {error}"
        return f"the table {self._written.table} refuses a row: {error}"

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "the database is not connected"
        return self._connection

    @property
    def _written(self) -> WrittenRows:
        assert self._rows is not None, "begin() comes first"
        return self._rows

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._open.execute(statement, values)
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise SinkUnavailableError(
                    f"the database {self._path} has been locked for {self._retry_s} s by another program "
                    "that writes to it",
                    "sql",
                ) from None
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException as error:
            if self._open.in_transaction:
                self._open.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise SinkError(f"the database {self._path} has failed: {error}", "sql") from error
            raise

    def undo(self, *statements: str) -> None:
        if not self._is_new:
            super().undo(*statements)
            return
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.remove(self._path + suffix)

    def close(self) -> None:
        self._staged = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _path(url: str) -> str:
    """Return the file of a URL: ``sqlite:///here.db`` is relative, ``sqlite:////data/here.db`` is not."""
    rest = url.partition(":")[2]
    if not rest.startswith("///") or len(rest) == 3:
        raise OptionError(
            f"option url of the sql sink is {url!r}: it has three slashes before a relative path, as in "
            "sqlite:///orders.db, and four before an absolute one, as in sqlite:////data/orders.db",
            "url",
        )
    return os.path.abspath(unquote(rest[3:]))


def _affinity(type_name: str) -> str:
    """Return how SQLite stores values of a column of this type, by its own rules."""
    name = type_name.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"


def _last_of_each(staged: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of the rows."""
    numbered = staged.append_column("#", pa.array(range(staged.num_rows), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([("#", "max")]).column("#_max")
    return staged if len(last) == staged.num_rows else staged.take(last.sort())


def _any_null(staged: pa.Table, keys: Sequence[str]) -> Any:
    found = pc.is_null(staged.column(keys[0]))
    for key in keys[1:]:
        found = pc.or_(found, pc.is_null(staged.column(key)))
    return found


def _chunks(staged: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows as SQLite takes them."""
    for at in range(0, staged.num_rows, CHUNK):
        columns = [_values(column) for column in staged.slice(at, CHUNK).columns]
        yield list(zip(*columns, strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            column = column.cast(pa.timestamp("us", "UTC"))
        column = column.cast(pa.string())
    elif column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]  # ten times faster
    return column.to_pylist()  # type: ignore[no-any-return]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))
