"""Which sink a writer has asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tidemill.batches.sink import Sink
from tidemill.common.config import boolean
from tidemill.common.options import Options
from tidemill.common.suggestions import did_you_mean
from tidemill.errors import OptionError, SinkError, UnsupportedError
from tidemill.sinks.console import ConsoleSink
from tidemill.sinks.files.file_sink import FileSink
from tidemill.sinks.files.file_sink_options import OF_THE_QUERY
from tidemill.sinks.foreach import ForeachSink
from tidemill.sinks.foreach_batch import ForeachBatchSink
from tidemill.sinks.memory import MemorySink
from tidemill.sinks.noop import NoopSink

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")
FORMATS = ("console", "memory", "noop", *FILE_FORMATS)
# Spark has these, by packages or for its own tests; near names would be misleading.
ELSEWHERE = ("kafka", "delta", "iceberg", "hudi", "jdbc", "socket", "rate")


def sink_for(
    format: str | None,
    path: str | None = None,
    options: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    query_name: str | None = None,
    foreach: Any = None,
    foreach_batch: Callable[..., Any] | None = None,
    query_options: Collection[str] = (),
) -> Sink:
    """The sink of a writer. ``path`` may be among the options, as in PySpark; ``query_options`` are names of
    further options that the query itself reads. Refuses, with the near name, what nobody knows.

    >>> sink_for("console", options={"numRows": 5}).description()
    'ConsoleTable[numRows=5, truncate=true]'
    """
    given = Options(options)
    if foreach is not None or foreach_batch is not None:
        what = "foreachBatch" if foreach_batch is not None else "foreach"
        _require(what, given, (), query_options, partition_by)
        return (
            ForeachBatchSink(foreach_batch) if foreach_batch is not None else ForeachSink(foreach)
        )
    name = (format or "parquet").lower()
    if name == "console":
        _require(name, given, ("numRows", "truncate"), query_options, partition_by)
        console = Options(given, "the console sink")
        return ConsoleSink(
            console.read("numRows", _rows, 20), console.read("truncate", boolean, True)
        )
    if name == "memory":
        _require(name, given, (), query_options, partition_by)
        return MemorySink(query_name)
    if name == "noop":
        _require(name, given, (), query_options, partition_by)
        return NoopSink()
    _require_writable(format or "parquet")
    target = path or given.get("path")
    if not target:
        raise OptionError(
            f"the {name} sink needs a directory: .start('/some/directory') or .option('path', ...)",
            "path",
        )
    for_files = given.without(query_options)
    return FileSink(format or "parquet", target, partition_by, for_files)


def _require_writable(format: str) -> None:
    """Refuse what is certainly no format of files; of other names Spark is asked when the query starts."""
    if format.lower() in FILE_FORMATS or "." in format:
        return
    if format.lower() in ELSEWHERE:
        raise UnsupportedError(
            f"there is no sink for the format {format}: write it in foreachBatch, with Spark's own "
            "batch writer"
        )
    near = did_you_mean(format, FORMATS)
    if near:
        raise SinkError(f"there is no sink for the format {format}.{near}")


def _require(
    what: str,
    options: Options,
    known: Sequence[str],
    query_options: Collection[str],
    partition_by: Sequence[str],
) -> None:
    if partition_by:
        raise SinkError(f"the {what} sink cannot be partitioned: leave out partitionBy", what)
    names = [*known, *OF_THE_QUERY, *query_options]
    Options(options, f"the {what} sink").refuse_unknown(names, settings_allowed=True)


def _rows(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a whole number of rows")
    return int(text)
