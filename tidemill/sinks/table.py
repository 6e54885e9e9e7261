"""Append to a table of the catalog, every batch exactly once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.clock import Clock
from tidemill.common.output_modes import APPEND
from tidemill.errors import IllegalStateError, SinkError, UnsupportedError
from tidemill.sinks.files.file_sink import FileSink, check_columns, schema_of
from tidemill.sinks.files.file_sink_options import FileSinkOptions
from tidemill.spark.files.file_formats import is_file_format
from tidemill.spark.session.settings import default_format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

INSTEAD = "Write it in foreachBatch, such as df.writeTo(name).append()."


class TableSink(Sink):
    """What ``toTable`` writes to: a table of files, managed or external, with the protocol of the file sink.

    A table that is not there is made, with the format, the partitions and the ``path`` that were given. One
    that is there must have the columns of the query. The query's own session sees each batch at once;
    another session that has read the table before remembers its files, until
    ``spark.catalog.refreshTable(name)``.
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
    ) -> None:
        self._name = name
        self._format = format
        self._path = path
        self._partition_by = list(partition_by)
        self._options = dict(options or {})
        self._clock = clock
        self._session: SparkSession | None = None
        self._files: FileSink | None = None
        # With catalog and database, from the start on: the session may go on to another database.
        self._full_name = name

    def description(self) -> str:
        return f"TableSink[{self._name}]"

    def start(self, runtime: SinkRuntime) -> None:
        session, schema = runtime.session, schema_of(runtime)
        if not session.catalog.tableExists(self._name):
            self._create(session, schema)
        format, location, partitions = self._look_at(session, schema)
        self._files = FileSink(format, location, partitions, self._options, self._clock)
        self._files.start(runtime)
        self._session = session

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

    def table(self) -> DataFrame:
        """All rows of the table."""
        self._started()
        assert self._session is not None
        return self._session.table(self._full_name)

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
        columns = ", ".join(
            f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields
        )
        statement = [f"CREATE TABLE {self._name} ({columns}) USING {format}"]
        if options.for_spark:
            listed = ", ".join(f"{_text(k)} = {_text(v)}" for k, v in options.for_spark.items())
            statement.append(f"OPTIONS ({listed})")
        if self._partition_by:
            statement.append(f"PARTITIONED BY ({', '.join(map(_quoted, self._partition_by))})")
        if self._path:
            statement.append(f"LOCATION {_text(self._path)}")
        session.sql(" ".join(statement))

    def _look_at(self, session: SparkSession, schema: StructType) -> tuple[str, str, list[str]]:
        """The format, the place and the partition columns of the table, if it can be written to."""
        kind = session.catalog.getTable(self._name)
        if kind.isTemporary or kind.tableType == "VIEW":
            raise SinkError(
                f"toTable({self._name!r}): this is a view, and rows can be added to tables only. Give "
                "another name, or write to the table that the view is made of."
            )
        details = _details(session, self._name)
        self._full_name = _qualified(details, self._name)
        format, location = details.get("Provider", ""), details.get("Location", "")
        if not location or not is_file_format(session, format):
            raise UnsupportedError(
                f"toTable({self._name!r}): this is a table of {format or 'an unknown kind'}, not of files. "
                f"{INSTEAD}"
            )
        if self._format is not None and self._format.lower() != format.lower():
            raise SinkError(
                f"toTable({self._name!r}): the table has the format {format}, and the query asks for "
                f"{self._format}. Leave the format out."
            )
        partitions = [
            column.name for column in session.catalog.listColumns(self._name) if column.isPartition
        ]
        wanted = [name.lower() for name in self._partition_by]
        if wanted and wanted != [name.lower() for name in partitions]:
            raise SinkError(
                f"toTable({self._name!r}): the table is partitioned by {partitions or 'nothing'}, and the "
                f"query asks for {self._partition_by}. Leave partitionBy out."
            )
        self._require_columns(session, schema)
        return format, location, partitions

    def _require_columns(self, session: SparkSession, schema: StructType) -> None:
        in_table = {
            field.name.lower(): field.dataType.simpleString()
            for field in session.table(self._name).schema.fields
        }
        in_query = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
        if in_table == in_query:
            return
        raise SinkError(
            f"toTable({self._name!r}): the table has the columns {_columns(in_table)}, and the query has "
            f"{_columns(in_query)}. Select and cast the columns of the table before writeStream."
        )


def _columns(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


def _details(session: SparkSession, name: str) -> dict[str, str]:
    """What DESCRIBE says below its heading of details."""
    rows = [(row[0], row[1]) for row in session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()]
    headings = [at for at, (key, _) in enumerate(rows) if key == "# Detailed Table Information"]
    return dict(rows[headings[-1] + 1 :]) if headings else {}


def _qualified(details: Mapping[str, str], name: str) -> str:
    parts = [details.get(part, "") for part in ("Catalog", "Database", "Table")]
    return ".".join(map(_quoted, parts)) if all(parts) else name


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
