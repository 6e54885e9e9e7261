"""From the format of a writer to its sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.batches.sink import Sink
from tidemill.common.config import boolean
from tidemill.common.options import Options
from tidemill.common.suggestions import did_you_mean
from tidemill.errors import OptionError, SetupError, SinkError, UnsupportedError
from tidemill.sinks.console import ConsoleSink
from tidemill.sinks.files.file_sink import FileSink
from tidemill.sinks.files.file_sink_options import OF_THE_QUERY
from tidemill.sinks.foreach import ForeachSink
from tidemill.sinks.foreach_batch import ForeachBatchSink
from tidemill.sinks.memory import MemorySink
from tidemill.sinks.noop import NoopSink
from tidemill.sinks.python_data_source import PythonDataSourceSink
from tidemill.sinks.sql.sink import SqlSink
from tidemill.spark.files.file_formats import FILE_FORMATS
from tidemill.spark.session.python_data_sources import python_data_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

logger = logging.getLogger(__name__)

FORMATS = ("console", "kafka", "memory", "noop", "sql", *FILE_FORMATS)
# Formats that Spark has, in packages or for its tests: suggesting a near name would mislead.
ELSEWHERE = ("delta", "iceberg", "hudi", "jdbc", "socket", "rate")


def sink_for(
    format: str | None,
    path: str | None = None,
    options: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    query_name: str | None = None,
    foreach: Any = None,
    foreach_batch: Callable[..., Any] | None = None,
    query_options: Collection[str] = (),
    session: SparkSession | None = None,
) -> Sink:
    """Make the sink that a writer asks for. An unknown option or format is refused, with the near name.

    ``path`` may be among the options, as in PySpark. ``query_options`` are the names of further options that
    the query itself reads. ``session`` knows the Python data sources that the program has registered.

    >>> sink_for("console", options={"numRows": 5}).description()
    'ConsoleTable[numRows=5, truncate=true]'
    """
    writer_options = Options(options)
    if foreach is not None or foreach_batch is not None:
        what = "foreachBatch" if foreach_batch is not None else "foreach"
        _require(what, writer_options, (), query_options, partition_by)
        return (
            ForeachBatchSink(foreach_batch) if foreach_batch is not None else ForeachSink(foreach)
        )
    name = (format or "parquet").lower()
    if name == "console":
        _require(name, writer_options, ("numRows", "truncate"), query_options, partition_by)
        console = Options(writer_options, "the console sink")
        return ConsoleSink(
            console.read("numRows", _rows, 20), console.read("truncate", boolean, True)
        )
    if name == "memory":
        _require(name, writer_options, (), query_options, partition_by)
        return MemorySink(query_name)
    if name == "noop":
        _require(name, writer_options, (), query_options, partition_by)
        return NoopSink()
    if name == "kafka":
        _require_not_partitioned(name, partition_by)
        return _kafka_sink(writer_options, {*OF_THE_QUERY, *query_options})
    if name == "sql":
        _require_not_partitioned(name, partition_by)
        return SqlSink(writer_options.without([*OF_THE_QUERY, *query_options]))
    data_source = _data_source(session, name)
    if data_source is not None:
        for_writer = writer_options.without(query_options)
        if path is not None:
            for_writer["path"] = path
        if partition_by:  # as in Spark, whose writers hear nothing of it
            logger.warning(
                "partitionBy has no effect: the data source %s writes as it likes", format
            )
        return PythonDataSourceSink(data_source, for_writer)
    _require_writable(format or "parquet")
    target = path or writer_options.get("path")
    if not target:
        raise OptionError(
            f"the {name} sink needs a directory: .start('/some/directory') or .option('path', ...)",
            "path",
        )
    for_files = writer_options.without(query_options)
    return FileSink(format or "parquet", target, partition_by, for_files)


def _kafka_sink(options: Options, query_options: Collection[str]) -> Sink:
    try:
        from tidemill.sinks.kafka.sink import kafka_sink
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise SetupError(
            "the sink kafka needs the package confluent_kafka: pip install 'tidemill[kafka]' on the driver "
            "and on all executors"
        ) from None
    return kafka_sink(options, query_options)


def _data_source(session: SparkSession | None, name: str) -> type[DataSource] | None:
    """Return the Python data source of that name, unless it is the name of a file format."""
    if session is None or name in FILE_FORMATS:
        return None
    return python_data_source(session, name)


def _require_writable(format: str) -> None:
    """Refuse a name that is certainly no file format. Spark decides on other names when the query starts."""
    if format.lower() in FILE_FORMATS or "." in format:
        return
    if format.lower() in ELSEWHERE:
        raise UnsupportedError(
            f"there is no sink for the format {format}: write it in foreachBatch, with Spark's own "
            "batch writer"
        )
    near = did_you_mean(format, FORMATS)
    if near:
        raise SinkError(f"there is no sink for the format {format}.{near}").like_spark(
            "DATA_SOURCE_NOT_FOUND", provider=format
        )


def _require(
    what: str,
    options: Options,
    known: Sequence[str],
    query_options: Collection[str],
    partition_by: Sequence[str],
) -> None:
    if what not in ("console", "noop"):  # which Spark lets pass, without an effect
        _require_not_partitioned(what, partition_by)
    names = [*known, *OF_THE_QUERY, *query_options]
    Options(options, f"the {what} sink").refuse_unknown(names, settings_allowed=True)


def _require_not_partitioned(what: str, partition_by: Sequence[str]) -> None:
    if partition_by:
        raise SinkError(f"the {what} sink cannot be partitioned: leave out partitionBy", what)


def _rows(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a whole number of rows")
    return int(text)
