"""Append to a table of the catalog, every batch exactly once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.clock import Clock
from tidemill.common.output_modes import APPEND
from tidemill.errors import IllegalStateError, SinkError, UnsupportedError
from tidemill.sinks.files.file_sink import FileSink, check_columns, schema_of
from tidemill.sinks.files.file_sink_options import FileSinkOptions
from tidemill.sinks.table_columns import TableColumns, table_columns
from tidemill.spark.files.file_formats import format_options, is_file_format
from tidemill.spark.session.catalog_table import (
    CASE_SENSITIVE,
    CatalogTable,
    can_widen,
    catalog_table,
    quoted,
)
from tidemill.spark.session.settings import default_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

INSTEAD = "Write it in foreachBatch, such as df.writeTo(name).append()."


class TableSink(Sink):
    """What ``toTable`` writes to: a table of files, managed or external, with the protocol of the file sink.

    A table that is not there is made, with the format, the partitions or clusters and the ``path`` that
    were given; as in Spark, the catalog knows its clusters, and files are written as they come. One
    that is there gets the values of the columns of the same names, in its own partitions and with the options
    of its own files (:mod:`tidemill.sinks.table_columns`); its format must be the one that the query writes.
    The query's own session sees each batch at once; another session that has read the table before remembers
    its files, until ``spark.catalog.refreshTable(name)``.
    """

    modes = (APPEND,)

    def __init__(
        self,
        name: str,
        format: str | None = None,
        path: str | None = None,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        cluster_by: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._format = format
        self._path = path
        self._partition_by = list(partition_by)
        self._cluster_by = list(cluster_by)
        self._options = dict(options or {})
        self._clock = clock
        self._session: SparkSession | None = None
        self._files: FileSink | None = None
        self._is_new_table = False
        self._query_columns: list[str] = []
        # With catalog and database, from the start on: the session may go on to another database.
        self._full_name = name

    def description(self) -> str:
        return f"TableSink[{self._name}]"

    def start(self, runtime: SinkRuntime) -> None:
        session, schema = runtime.session, schema_of(runtime)
        self._session = session
        if not session.catalog.tableExists(self._name):
            self._create(session, schema)
            self._is_new_table = True
        table = self._existing(session)
        self._full_name = table.full_name
        self._files = FileSink(
            table.provider,
            table.location,
            table.partition_columns,
            self._file_options(session, table),
            self._clock,
            self._columns(session, table, schema),
        )
        self._files.start(runtime)
        self._query_columns = schema.names

    def undo_start(self) -> None:
        if self._files is not None:
            self._files.undo_start()
        if self._is_new_table:
            assert self._session is not None
            self._session.sql(f"DROP TABLE IF EXISTS {self._full_name}")

    def has_batch(self, batch_id: int) -> bool:
        return self._started().has_batch(batch_id)

    def stage(self, output: BatchOutput) -> int | None:
        return self._started().stage(output)

    def commit(self, batch_id: int) -> None:
        self._started().commit(batch_id)
        # The session remembers which files a table had when it was last read.
        assert self._session is not None
        try:
            self._session.catalog.refreshTable(self._full_name)
        except Exception as error:  # the rows are committed; somebody may have dropped the table
            logger.warning("the session cannot read the table %s anew: %s", self._full_name, error)

    def stop(self) -> None:
        if self._files is not None:
            self._files.stop()

    def table(self) -> DataFrame | None:
        """Return all rows of the table, in the columns of the query; None if the table lacks one of them."""
        self._started()
        assert self._session is not None
        table = self._session.table(self._full_name)
        names = {name.lower() for name in table.columns}
        if not all(name.lower() in names for name in self._query_columns):
            return None
        return table.select(*map(quoted, self._query_columns))

    def kept_as(self) -> str:
        return self._started().kept_as()

    @contextmanager
    def read_back(self, rows: DataFrame) -> Iterator[DataFrame]:
        with self._started().read_back(rows) as kept:
            yield kept

    def _started(self) -> FileSink:
        if self._files is None:
            raise IllegalStateError(f"the sink of the table {self._name} has not started")
        return self._files

    def _create(self, session: SparkSession, schema: StructType) -> None:
        format = self._format or default_format(session)
        if not is_file_format(session, format):
            raise UnsupportedError(
                f"toTable({self._name!r}): a table of the format {format} cannot be made. {INSTEAD}"
            )
        check_columns(format, schema, self._partition_by)
        options = FileSinkOptions(self._options)
        options.check(session, format)
        # A table of files takes what comes: whether a column may be null is not kept in files.
        columns = ", ".join(f"{quoted(f.name)} {_type(f.dataType)}" for f in schema.fields)
        statement = [f"CREATE TABLE {self._name} ({columns}) USING {format}"]
        if options.for_spark:
            listed = ", ".join(f"{_text(k)} = {_text(v)}" for k, v in options.for_spark.items())
            statement.append(f"OPTIONS ({listed})")
        if self._partition_by:
            statement.append(f"PARTITIONED BY ({', '.join(map(quoted, self._partition_by))})")
        if self._cluster_by:
            statement.append(f"CLUSTER BY ({', '.join(map(quoted, self._cluster_by))})")
        if self._path:
            statement.append(f"LOCATION {_text(self._path)}")
        session.sql(" ".join(statement))

    def _existing(self, session: SparkSession) -> CatalogTable:
        """Return the table, if it is one that can be written to."""
        found = session.catalog.getTable(self._name)
        if found.isTemporary or found.tableType == "VIEW":
            raise SinkError(
                f"toTable({self._name!r}): this is a view, and rows can be added to tables only. Give "
                "another name, or write to the table that the view is made of."
            )
        table = catalog_table(session, self._name)
        if table is None or not table.location or not is_file_format(session, table.provider):
            kind = "another catalog" if table is None else table.provider or "an unknown kind"
            raise UnsupportedError(
                f"toTable({self._name!r}): this is a table of {kind}, not of files. {INSTEAD}"
            )
        format = self._format or default_format(session)
        if format.lower() != table.provider.lower():
            asked = "the query asks for" if self._format else "a query that names none writes"
            raise SinkError(
                f"toTable({self._name!r}): the table has the format {table.provider}, and {asked} "
                f"{format}. Say format({table.provider!r})."
            )
        if self._partition_by and tuple(self._partition_by) != table.partition_columns:
            logger.warning(
                "partitionBy(%s) has no effect: the table %s is partitioned by %s",
                ", ".join(self._partition_by),
                self._name,
                ", ".join(table.partition_columns) or "nothing",
            )
        return table

    def _columns(
        self, session: SparkSession, table: CatalogTable, schema: StructType
    ) -> TableColumns:
        is_case_sensitive = str(session.conf.get(CASE_SENSITIVE, "false")).lower() == "true"
        try:
            return table_columns(
                table, schema, is_case_sensitive, lambda one, other: can_widen(session, one, other)
            )
        except SinkError as error:
            raise SinkError(f"toTable({self._name!r}): {error}", error.sink) from None

    def _file_options(self, session: SparkSession, table: CatalogTable) -> dict[str, str]:
        """Return the options of the table's files, with which they are read, and those of the query."""
        known = {name.lower() for name in format_options(session, table.provider) or ()}
        asked = {name.lower() for name in self._options}
        of_the_table = {
            name: value
            for name, value in table.options.items()
            if name.lower() in known - asked and name.lower() != "path"
        }
        return {**of_the_table, **self._options}


def _type(data_type: DataType) -> str:
    """Return a type as SQL takes it, whatever the names in it."""
    match data_type:
        case StructType(fields=fields):
            parts = ", ".join(f"{quoted(field.name)}: {_type(field.dataType)}" for field in fields)
            return f"struct<{parts}>"
        case ArrayType(elementType=element):
            return f"array<{_type(element)}>"
        case MapType(keyType=key, valueType=value):
            return f"map<{_type(key)}, {_type(value)}>"
    return data_type.simpleString()


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
