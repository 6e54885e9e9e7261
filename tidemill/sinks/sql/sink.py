"""Tables of databases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructField, StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.output_modes import COMPLETE, UPDATE
from tidemill.common.suggestions import did_you_mean
from tidemill.errors import (
    DamagedCheckpointError,
    IllegalStateError,
    OptionError,
    SinkError,
    UnsupportedError,
)
from tidemill.sinks.sql.database import Database, TableColumn, WrittenRows
from tidemill.sinks.sql.options import POSTGRESQL, SqlSinkOptions
from tidemill.sinks.sql.postgresql import PostgreSql
from tidemill.sinks.sql.sqlite import Sqlite
from tidemill.sinks.sql.table_name import quoted
from tidemill.tasks.arrow_types import NOT_TO_PYTHON, refused_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SqlSink(Sink):
    """``format("sql")``: every batch is one transaction of the database, which also records its id.

    ::

        counts.writeStream.format("sql").outputMode("update") \\
            .option("url", "sqlite:///shop.db").option("dbtable", "counts").option("keys", "product") \\
            .option("checkpointLocation", "checkpoints/counts").start()

    Rows are added; with ``keys`` they take the place of the row with the same keys; in complete mode they
    take the place of all rows. Whoever reads the table sees all of a batch or nothing of it.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._options = SqlSinkOptions.of(values)
        self._database: Database = (
            PostgreSql(self._options) if self._options.kind == POSTGRESQL else Sqlite(self._options)
        )
        self._rows: WrittenRows | None = None
        self._types: dict[str, str] = {}
        self._replaces = False
        self._staged: int | None = None
        self._last: int | None = None
        self._has_made_table = False

    def description(self) -> str:
        return f"SqlTable[{self._options.place}, {self._options.table}]"

    # -- start -------------------------------------------------------------------------------------

    def start(self, runtime: SinkRuntime) -> None:
        schema = StructType.fromJson(json.loads(runtime.schema_json))
        self._check_columns(schema, runtime.output_mode)
        options = self._options
        rows = WrittenRows(runtime.query_id, options.table, schema, options.keys, options.deletes)
        self._database.connect()
        found = self._database.columns(options.table)
        if found is None:
            self._make_table(rows)
        else:
            self._fit(rows, {column.name: column for column in found})
        if options.keys and not self._database.is_unique(options.table, options.keys):
            raise SinkError(
                f"the table {options.table} has no unique index on {', '.join(options.keys)}, so it can have "
                "several rows for the same keys: make one, or leave out the option keys to add rows",
                "sql",
            )
        self._types = {
            column.name: column.type_name for column in self._database.columns(options.table) or ()
        }
        self._database.begin(rows)
        self._rows = rows
        self._last = self._database.last_batch()
        self._require_known(runtime)

    def _require_known(self, runtime: SinkRuntime) -> None:
        """Refuse a checkpoint that is older than the table: its next batches would be taken for old ones."""
        planned = [int(name) for name in runtime.checkpoint.list("offsets") if name.isdigit()]
        if self._last is not None and self._last > max(planned, default=-1):
            raise DamagedCheckpointError(
                runtime.checkpoint.full_name("offsets"),
                f"the table {self._options.table} has batch {self._last} of this query, which the checkpoint "
                f"does not know: its last one is {max(planned, default=None)}",
                "It was restored from a backup that is older than the table. Restore the table to the same "
                "time, or start over with another table and another checkpoint.",
                runtime.checkpoint.uri,
            )

    def _check_columns(self, schema: StructType, output_mode: str) -> None:
        names = [field.name for field in schema]
        options = self._options
        for name in names:
            if names.count(name) > 1:
                raise SinkError(
                    f"the query has two columns called {name}, and a table has one: rename one of them",
                    "sql",
                )
        deletes = () if options.deletes is None else (options.deletes,)
        for option, wanted in (("keys", options.keys), ("deletes", deletes)):
            for name in wanted:
                if name not in names:
                    raise OptionError(
                        f"option {option} of the sql sink names the column {name}, which the query does not "
                        f"have.{did_you_mean(name, names)} It has {', '.join(names)}",
                        option,
                    )
        if options.deletes is not None and schema[options.deletes].dataType.typeName() != "boolean":
            raise OptionError(
                f"the column {options.deletes}, of the option deletes, must be a boolean: true where the row "
                "is to be deleted",
                "deletes",
            )
        if output_mode == UPDATE and not options.keys:
            raise OptionError(
                "in update mode a row takes the place of an earlier one: name the columns that say which, "
                ".option('keys', 'customer, day')",
                "keys",
            )
        self._replaces = output_mode == COMPLETE

    def _make_table(self, rows: WrittenRows) -> None:
        if not self._options.create_table:
            raise SinkError(
                f"there is no table {rows.table} in {self._options.place}, and the option createTable is "
                "false",
                "sql",
            )
        columns = [f"{quoted(field.name)} {self._type_for(field)}" for field in rows.columns]
        if rows.keys:  # not a primary key: a key of a query may be null
            columns.append(f"UNIQUE ({', '.join(map(quoted, rows.keys))})")
        self._database.run(f"CREATE TABLE {rows.table.quoted} ({', '.join(columns)})")
        self._has_made_table = True

    def _type_for(self, field: StructField) -> str:
        wanted = None
        if refused_type(field.dataType, NOT_TO_PYTHON) is None:
            wanted = self._database.type_for(field.dataType)
        if wanted is None:
            raise UnsupportedError(
                f"the column {field.name} is {field.dataType.simpleString()}, for which "
                f"{self._database.name} has no type: cast it to a string or a number in the query"
            )
        return wanted

    def _fit(self, rows: WrittenRows, found: Mapping[str, TableColumn]) -> None:
        """Refuse a table that the rows do not fit into; add columns that it lacks, if that was asked for."""
        missing = [field for field in rows.columns if field.name not in found]
        if missing and not self._options.add_columns:
            name = missing[0].name
            raise SinkError(
                f"the table {rows.table} has no column {name}.{did_you_mean(name, list(found))} It has "
                f"{', '.join(found)}. Rename the column, or let it be added with "
                ".option('addColumns', 'true')",
                "sql",
            )
        for field in rows.columns:
            wanted, column = self._type_for(field), found.get(field.name)
            if column is not None and column.is_computed:
                raise SinkError(
                    f"the column {field.name} of the table {rows.table} is computed by the database: leave "
                    "it out of the query",
                    "sql",
                )
            if column is not None and not self._database.can_store(
                field.dataType, column.type_name
            ):
                raise SinkError(
                    f"the column {field.name} of the table {rows.table} is {column.type_name}, and that of "
                    f"the query is {field.dataType.simpleString()} ({wanted}), whose values do not all fit: "
                    "cast it in the query",
                    "sql",
                )
        names = {field.name for field in rows.columns}
        for column in found.values():
            if column.name not in names and not column.can_be_left_out:
                raise SinkError(
                    f"the column {column.name} of the table {rows.table} must have a value, and the query "
                    "has no such column: add it, or give it a default in the table",
                    "sql",
                )
        if missing:
            self._database.run(
                *(
                    f"ALTER TABLE {rows.table.quoted} ADD COLUMN {quoted(field.name)} "
                    f"{self._type_for(field)}"
                    for field in missing
                )
            )

    def undo_start(self) -> None:
        drop = f"DROP TABLE {self._options.table.quoted}"
        self._database.undo(*([drop] if self._has_made_table else []))

    # -- batches -----------------------------------------------------------------------------------

    def has_batch(self, batch_id: int) -> bool:
        return self._last is not None and self._last >= batch_id

    def stage(self, output: BatchOutput) -> int | None:
        self._staged = None
        staged = self._database.stage(self._storable(output.dataframe(consumed_once=True)))
        self._staged = output.batch_id
        return staged

    def _storable(self, rows: DataFrame) -> DataFrame:
        written = self._started
        numbered = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
        values = []
        for number, field in enumerate(written.schema):
            value = numbered[f"c{number}"]
            if field.name != written.deletes:
                value = self._database.storable(value, field.dataType, self._types[field.name])
            values.append(value.alias(field.name))
        return numbered.select(*values)

    def commit(self, batch_id: int) -> None:
        if self._staged != batch_id:
            return
        self._database.commit(batch_id, self._replaces)
        self._staged = None
        self._last = batch_id

    @property
    def _started(self) -> WrittenRows:
        if self._rows is None:
            raise IllegalStateError("the sql sink has not started")
        return self._rows

    def stop(self) -> None:
        self._database.close()
