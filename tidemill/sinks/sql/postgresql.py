"""PostgreSQL: tasks copy rows into a staging table, and one transaction moves them into the table.

stage:
    1. Staging tables that an earlier try, or an earlier run of the query, has left are dropped.
    2. An unlogged staging table is made, with the types of the table's columns.
    3. Each task copies its rows there, marked with a number that this attempt of the task has drawn, and
       returns the number and how many rows there were. Nobody else reads the staging table.
commit, in one transaction:
    4. The record of the query and the table is locked. IF it has the batch already, nothing is done.
    5. IF the staging table does not have exactly the rows that tasks have reported (the server has crashed,
       and unlogged tables are empty then), the batch fails, and runs again.
    6. The rows of the attempts that Spark has counted go into the table; the record gets the batch's id.
    7. COMMIT. Only now does anybody see the rows, and all of them at once.
    8. The staging table is dropped.

A driver that dies before 7 leaves a batch that runs again; one that dies after it finds the batch in the
record. A connection that breaks during 7 leaves it open which of the two it is: the record is read on a new
one, and says.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types

from tidemill.common.clock import SystemClock
from tidemill.common.fault_points import fault_point
from tidemill.errors import SinkError, SinkUnavailableError
from tidemill.sinks.sql.database import RECORDS, Database, TableColumn, WrittenRows
from tidemill.sinks.sql.nested import is_nested
from tidemill.sinks.sql.options import SqlSinkOptions
from tidemill.sinks.sql.postgresql_copy import (
    ATTEMPT,
    COPIED,
    ROW,
    CopyTask,
    Server,
    copied_value,
    said_of,
)
from tidemill.sinks.sql.table_name import TableName, quoted

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import Column, DataFrame

logger = logging.getLogger(__name__)

R = TypeVar("R")

PAUSE_MS = 200
LONGEST_PAUSE_MS = 5_000

_TYPES: dict[type[types.DataType], str] = {
    types.BooleanType: "boolean",
    types.ByteType: "smallint",
    types.ShortType: "smallint",
    types.IntegerType: "integer",
    types.LongType: "bigint",
    types.FloatType: "real",
    types.DoubleType: "double precision",
    types.StringType: "text",
    types.CharType: "text",
    types.VarcharType: "text",
    types.BinaryType: "bytea",
    types.DateType: "date",
    types.TimestampType: "timestamp with time zone",
    types.TimestampNTZType: "timestamp without time zone",
}
_INTEGERS = ("smallint", "integer", "bigint")
_NOT_TEXT = frozenset(_TYPES.values()) - {"text"}

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
       NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indpred IS NULL
AND i.indexprs IS NULL AND array_position(i.indkey::int2[], a.attnum) < i.indnkeyatts GROUP BY i.indexrelid
"""
_STAGED = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%s))
AND starts_with(c.relname, %s) AND c.relkind = 'r'
"""


class PostgreSql(Database):
    name = "PostgreSQL"

    def __init__(self, options: SqlSinkOptions) -> None:
        self._server = Server(options.url, options.user, options.password, options.place)
        self._retry_s = options.retry_s
        self._clock = SystemClock()
        self._connection: Connection[Any] | None = None
        self._rows: WrittenRows | None = None
        self._types: dict[str, str] = {}
        self._staged: tuple[str, dict[int, int]] | None = None

    # -- types -------------------------------------------------------------------------------------

    def type_for(self, data_type: types.DataType) -> str | None:
        match data_type:
            case types.DecimalType():
                return f"numeric({data_type.precision},{data_type.scale})"
            case types.ArrayType() if not is_nested(data_type.elementType):
                element = self.type_for(data_type.elementType)
                is_timed = isinstance(data_type.elementType, types.TimestampType | types.BinaryType)
                return "jsonb" if element is None or is_timed else f"{element}[]"
        return "jsonb" if is_nested(data_type) else _TYPES.get(type(data_type))

    def can_store(self, data_type: types.DataType, type_name: str) -> bool:
        wanted = self.type_for(data_type)
        if wanted is None:
            return False
        if wanted == type_name or (wanted == "jsonb" and type_name in ("json", "text")):
            return True
        if isinstance(data_type, types.DecimalType):
            return type_name == "numeric" or _holds(type_name, data_type)
        if wanted in _INTEGERS:
            return type_name == "numeric" or type_name in _INTEGERS[_INTEGERS.index(wanted) :]
        if wanted == "real":
            return type_name == "double precision"
        if wanted == "text":  # what does not fit is refused by the database, value by value
            return type_name not in _NOT_TEXT and not type_name.startswith("numeric")
        return False

    def storable(self, value: Column, data_type: types.DataType, type_name: str) -> Column:
        return copied_value(value, data_type, type_name)

    # -- connection --------------------------------------------------------------------------------

    def connect(self) -> None:
        self._server.require_driver()
        try:
            self._connection = self._server.connect()
        except Exception as error:
            raise SinkError(
                f"the database {self._server.place} does not let us in: {said_of(error)}", "sql"
            ) from None

    def _ask(self, ask: Callable[[Connection[Any]], R]) -> R:
        """Return what ``ask`` returns, called in a transaction of its own.

        A connection that breaks is made again, for ``retrySeconds``, and ``ask`` is called again: it must
        find out itself what it has done.
        """
        import psycopg

        began_ms, pause_ms = self._clock.now_ms(), PAUSE_MS
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._server.connect()
                with self._connection.transaction():
                    return ask(self._connection)
            except psycopg.Error as error:
                if not _is_lost(error, self._connection):
                    raise
                self._drop_connection()
                waited_s = (self._clock.now_ms() - began_ms) / 1000
                if waited_s >= self._retry_s:
                    raise SinkUnavailableError(
                        f"the database {self._server.place} has not answered for {waited_s:.0f} s "
                        f"({said_of(error)}). The batch is not committed, and runs again at the next start",
                        "sql",
                    ) from None
                if pause_ms == PAUSE_MS:
                    logger.warning(
                        "the database %s does not answer (%s): trying again for %s s",
                        self._server.place,
                        said_of(error),
                        self._retry_s,
                    )
                self._clock.wait_till(self._clock.now_ms() + pause_ms)
                pause_ms = min(2 * pause_ms, LONGEST_PAUSE_MS)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- tables ------------------------------------------------------------------------------------

    def columns(self, table: TableName) -> Sequence[TableColumn] | None:
        found = self._ask(lambda db: db.execute(_COLUMNS, (table.quoted,)).fetchall())
        return [TableColumn(*row) for row in found] or None

    def is_unique(self, table: TableName, columns: Sequence[str]) -> bool:
        found = self._ask(lambda db: db.execute(_UNIQUE, (table.quoted,)).fetchall())
        return any(set(names) == set(columns) for (names,) in found)

    def run(self, *statements: str) -> None:
        def ask(db: Connection[Any]) -> None:
            for statement in statements:
                db.execute(statement)

        self._ask(ask)

    def begin(self, rows: WrittenRows) -> None:
        self._rows = rows
        found = self.columns(rows.table) or ()
        self._types = {column.name: column.type_name for column in found}
        self.run(
            f"CREATE TABLE IF NOT EXISTS {rows.table.sibling(RECORDS)} (query_id text NOT NULL, target text "
            "NOT NULL, batch_id bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (query_id, target))"
        )
        self._drop_staged()

    def last_batch(self) -> int | None:
        rows = self._written
        statement = f"SELECT batch_id FROM {rows.table.sibling(RECORDS)} WHERE query_id = %s AND target = %s"
        found = self._ask(
            lambda db: db.execute(statement, (rows.query_id, rows.table.table)).fetchone()
        )
        return None if found is None or found[0] < 0 else int(found[0])

    # -- staging -----------------------------------------------------------------------------------

    @property
    def _prefix(self) -> str:
        """The beginning of the names of this query's staging tables for this table begin with."""
        rows = self._written
        text = f"{rows.query_id}/{rows.table.table}"
        return f"tidemill_stage_{hashlib.sha256(text.encode()).hexdigest()[:16]}_"

    def _drop_staged(self) -> None:  # 1, 8
        rows = self._written

        def ask(db: Connection[Any]) -> None:
            for (name,) in db.execute(_STAGED, (rows.table.quoted, self._prefix)).fetchall():
                db.execute(f"DROP TABLE IF EXISTS {rows.table.sibling(name)}")

        self._ask(ask)

    def stage(self, rows: DataFrame) -> int:
        written = self._written
        self._staged = None
        self._drop_staged()  # 1
        stage = written.table.sibling(f"{self._prefix}{self._clock.now_ms()}")
        kinds = [
            "boolean" if name == written.deletes else self._types[name] for name in rows.columns
        ]
        columns = ", ".join(
            f"{quoted(name)} {kind}" for name, kind in zip(rows.columns, kinds, strict=True)
        )
        numbers = f"{quoted(ATTEMPT)} bigint, {quoted(ROW)} bigint"
        self.run(f"CREATE UNLOGGED TABLE {stage} ({columns}, {numbers})")  # 2
        task = CopyTask(self._server, stage, rows.columns, self._retry_s)
        copied = rows.mapInArrow(task, COPIED).collect()  # 3
        self._staged = (stage, {row.attempt: row.rows for row in copied if row.rows})
        return sum(row.rows for row in copied)

    # -- commit ------------------------------------------------------------------------------------

    def commit(self, batch_id: int, replaces: bool) -> None:
        import psycopg

        if self._staged is None:
            return
        try:
            self._ask(lambda db: self._commit(db, batch_id, replaces))
        except psycopg.Error as error:
            raise SinkError(
                f"the table {self._written.table} refuses the rows of batch {batch_id}: {said_of(error)}",
                "sql",
            ) from None
        fault_point("sql.committed")
        self._staged = None
        self._drop_staged()  # 8

    def _commit(self, db: Connection[Any], batch_id: int, replaces: bool) -> None:
        rows = self._written
        assert self._staged is not None
        stage, attempts = self._staged
        records = rows.table.sibling(RECORDS)
        who = (rows.query_id, rows.table.table)
        execute: Any = db.execute
        execute(f"INSERT INTO {records} VALUES (%s, %s, -1) ON CONFLICT DO NOTHING", who)
        last = execute(
            f"SELECT batch_id FROM {records} WHERE query_id = %s AND target = %s FOR UPDATE", who
        ).fetchone()[0]  # 4
        if last >= batch_id:
            return
        found = execute(
            f"SELECT {quoted(ATTEMPT)}, count(*) FROM {stage} WHERE {quoted(ATTEMPT)} = ANY(%s) GROUP BY 1",
            (list(attempts),),
        ).fetchall()  # 5
        if dict(found) != attempts:
            raise SinkUnavailableError(
                f"the database {self._server.place} has lost rows that were staged, as it does when its "
                f"server crashes. Batch {batch_id} is not committed, and runs again at the next start",
                "sql",
            )
        if replaces:
            execute(f"DELETE FROM {rows.table.quoted}")
        for statement in self._moves(stage):
            execute(statement, (list(attempts),))  # 6
        execute(
            f"UPDATE {records} SET batch_id = %s, committed_at = now() WHERE query_id = %s AND target = %s",
            (batch_id, *who),
        )
        fault_point("sql.before-commit")  # 7: the caller ends the transaction

    def _moves(self, stage: str) -> list[str]:
        """Return the statements that write the staged rows. Each has the attempts as its parameter."""
        rows = self._written
        names = ", ".join(quoted(field.name) for field in rows.columns)
        counted = f"{quoted(ATTEMPT)} = ANY(%s)"
        into = f"INSERT INTO {rows.table.quoted} ({names})"
        if not rows.keys:
            return [f"{into} SELECT {names} FROM {stage} WHERE {counted}"]
        keys = ", ".join(map(quoted, rows.keys))
        order = f"{keys}, {quoted(ATTEMPT)} DESC, {quoted(ROW)} DESC"
        last = f"(SELECT DISTINCT ON ({keys}) * FROM {stage} WHERE {counted} ORDER BY {order}) s"
        same = " AND ".join(
            f"t.{quoted(key)} IS NOT DISTINCT FROM s.{quoted(key)}" for key in rows.keys
        )
        any_null = " OR ".join(f"s.{quoted(key)} IS NULL" for key in rows.keys)
        stays = "true" if rows.deletes is None else f"s.{quoted(rows.deletes)} IS NOT TRUE"
        changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in rows.values)
        then = f"UPDATE SET {changes}" if changes else "NOTHING"
        equal = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in rows.keys)
        moves = []
        if rows.deletes is not None:
            moves.append(
                f"DELETE FROM {rows.table.quoted} t USING {last} WHERE {equal} AND NOT ({stays})"
            )
        return [
            *moves,
            # Nulls differ from each other in most indexes, so rows with one are found without.
            f"DELETE FROM {rows.table.quoted} t USING {last} WHERE ({any_null}) AND {same}",
            f"{into} SELECT {names} FROM {last} WHERE ({any_null}) AND {stays}",
            f"{into} SELECT {names} FROM {last} WHERE NOT ({any_null}) AND {stays} "
            f"ON CONFLICT ({keys}) DO {then}",
        ]

    @property
    def _written(self) -> WrittenRows:
        assert self._rows is not None, "begin() comes first"
        return self._rows

    def close(self) -> None:
        if self._rows is not None and self._connection is not None and not self._connection.closed:
            try:
                self._drop_staged()
            except Exception as error:
                logger.debug("staging tables stay until the next start: %s", error)
        self._staged = None
        self._drop_connection()


def _holds(type_name: str, decimal: types.DecimalType) -> bool:
    """Return True if a type such as ``numeric(20,5)`` has room for all digits."""
    if not type_name.startswith("numeric("):
        return False
    precision, _, scale = type_name[len("numeric(") : -1].partition(",")
    before_point = int(precision) - int(scale or 0)
    return int(scale or 0) >= decimal.scale and before_point >= decimal.precision - decimal.scale


def _is_lost(error: Any, connection: Connection[Any] | None) -> bool:
    """Return True if the server, and not the statement, is why a call has failed."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = error.sqlstate
    # Without a state the connection broke; 08: connection, 40: deadlock, 57P: the server ends or begins.
    return state is None or state[:2] in ("08", "40") or state[:3] == "57P" or connection is None
