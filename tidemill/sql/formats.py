"""From the name of a format to a streaming DataFrame: the one place where readers meet sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemill.common.options import Options
from tidemill.common.suggestions import did_you_mean
from tidemill.spark.compiler.placeholder import (
    SourceDefinition,
    define,
    empty_placeholder,
    file_placeholder,
    new_source_id,
    table_placeholder,
)
from tidemill.spark.files.file_formats import format_options, is_file_format
from tidemill.spark.session.python_data_sources import python_data_source
from tidemill.sql.query_errors import QueryAnalysisError, QueryArgumentError
from tidemill.sql.rate_options import OF_EVERY_SOURCE, read_backpressure, read_max_rate

if TYPE_CHECKING:
    from tidemill.batches.table_source import SourceFactory, TableSource

FILE_FORMATS = ("text", "csv", "json", "orc", "parquet", "xml", "avro", "binaryFile")

PARSE_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

NOT_FOR_SPARK = ("modifiedBefore", "modifiedAfter")
"""Options of file streams that Tidemill's have and Spark's refuse."""


@dataclass(frozen=True)
class ReadRequest:
    """All that a reader was told. Without a format: ``spark.sql.sources.default``, as in Spark."""

    format: str | None
    schema: StructType | str | None
    options: Options
    path: str | None = None
    name: str | None = None


def stream_of(spark: SparkSession, request: ReadRequest) -> DataFrame:
    """The streaming DataFrame that ``readStream...load()`` gives."""
    from tidemill.receivers.connectors.formats import receiver_format
    from tidemill.sources.registry import source_named

    format_name = request.format or str(spark.conf.get("spark.sql.sources.default", "parquet"))
    factory = source_named(format_name) or receiver_format(format_name)
    if factory is not None:
        return _made_by(_with_schema(factory, request.schema), spark, format_name, request)
    known = {name.lower() for name in FILE_FORMATS}
    python = None if format_name.lower() in known else _python_factory(spark, format_name, request)
    if python is not None:
        return _made_by(python, spark, format_name, request)
    if format_name.lower() in known or is_file_format(spark, format_name):
        return _of_files(spark, format_name, request)
    raise _unknown_format(format_name)


def stream_of_table(spark: SparkSession, table_name: str, request: ReadRequest) -> DataFrame:
    """The streaming DataFrame of a table of the catalog: ``readStream.table(name)``."""
    what = f"the table {table_name}"
    backpressure, max_rate_per_s = _limits(request.options, what)
    source_id = new_source_id()
    table = table_placeholder(
        spark, source_id, table_name, request.options.without(OF_EVERY_SOURCE)
    )
    schema, options = table.df.schema, Options(table.options)
    define(
        source_id,
        SourceDefinition(
            table.format,
            schema,
            options,
            lambda: _files_source(spark, table.path, options, schema, table.format),
            path=table.path,
            name=request.name,
            backpressure=backpressure,
            max_rate_per_s=max_rate_per_s,
        ),
    )
    return table.df


def _made_by(
    factory: SourceFactory, spark: SparkSession, format_name: str, request: ReadRequest
) -> DataFrame:
    """A source that is made of its options alone."""
    what = f"the source {format_name}"
    known = getattr(factory, "known_options", None)
    if known is not None:
        Options(request.options, what).refuse_unknown({*known, *OF_EVERY_SOURCE})
    backpressure, max_rate_per_s = _limits(request.options, what)
    options = request.options.without(OF_EVERY_SOURCE)
    if request.path is not None:
        options["path"] = request.path
    schema = factory(options).schema()
    _require_no_other_schema(request.schema, schema, format_name)
    source_id = new_source_id()
    df = empty_placeholder(spark, source_id, schema)
    define(
        source_id,
        SourceDefinition(
            format_name,
            schema,
            options,
            lambda: factory(options),
            path=request.path,
            name=request.name,
            backpressure=backpressure,
            max_rate_per_s=max_rate_per_s,
        ),
    )
    return df


def _of_files(spark: SparkSession, format_name: str, request: ReadRequest) -> DataFrame:
    what = f"the format {format_name}"
    from tidemill.sources.files.file_stream_options import FILE_SOURCE_OPTIONS

    known = {*(format_options(spark, format_name) or ()), *FILE_SOURCE_OPTIONS, *OF_EVERY_SOURCE}
    Options(request.options, what).refuse_slips(known)
    backpressure, max_rate_per_s = _limits(request.options, what)
    options = request.options.without(OF_EVERY_SOURCE)
    if request.path is None and "path" not in options:
        raise QueryArgumentError(
            f"{what} needs to know what to read: .load('/some/directory') or .option('path', ...)",
            "path",
        )
    _require_parse_mode(options, what)
    source_id = new_source_id()
    df = file_placeholder(
        spark,
        source_id,
        format_name,
        request.schema,
        options.without(NOT_FOR_SPARK),
        request.path,
    )
    schema = df.schema
    path = request.path if request.path is not None else options["path"]
    define(
        source_id,
        SourceDefinition(
            format_name,
            schema,
            options,
            lambda: _files_source(spark, path, options, schema, format_name),
            path=path,
            name=request.name,
            backpressure=backpressure,
            max_rate_per_s=max_rate_per_s,
        ),
    )
    return df


def _files_source(
    spark: SparkSession, path: str, options: Options, schema: StructType, format_name: str
) -> TableSource:
    from tidemill.sources.files.file_table import FilesSource

    return FilesSource(spark.sparkContext, path, options, schema, format_name)


def _with_schema(factory: SourceFactory, schema: StructType | str | None) -> SourceFactory:
    """A receiver gives its records the columns that the reader asks for; other sources have their own."""
    from tidemill.receivers.table_source import ReceiverFormat

    inner = getattr(factory, "_factory", factory)  # the registry wraps what users register
    if schema is None or not isinstance(inner, ReceiverFormat):
        return factory
    return inner.with_schema(schema)


def _python_factory(
    spark: SparkSession, format_name: str, request: ReadRequest
) -> SourceFactory | None:
    """For a Python data source that the program has registered with ``spark.dataSource.register``."""
    data_source = python_data_source(spark, format_name)
    if data_source is None:
        return None
    from tidemill.sources.python_data_source import python_data_source_table

    schema = None if request.schema is None else _struct_type(request.schema)
    return lambda options: python_data_source_table(data_source, options, schema)


def _require_parse_mode(options: Options, what: str) -> None:
    """Spark takes a mode that it does not know for PERMISSIVE: rows that were to fail would be null."""
    mode = options.get("mode")
    if mode is not None and mode.upper() not in PARSE_MODES:
        raise QueryArgumentError(
            f"option mode of {what} is {mode!r}: there are {', '.join(PARSE_MODES)}", "mode"
        )


def _limits(options: Options, what: str) -> tuple[bool | None, float | None]:
    return read_backpressure(options, what), read_max_rate(options, what)


def _require_no_other_schema(
    given: StructType | str | None, own: StructType, format_name: str
) -> None:
    if given is None:
        return
    wanted = _struct_type(given)
    if [(f.name, f.dataType) for f in wanted] != [(f.name, f.dataType) for f in own]:
        raise QueryAnalysisError(
            f"the source {format_name} has columns of its own ({own.simpleString()}): leave out "
            "schema(...), and choose or cast columns with select afterwards"
        )


def _struct_type(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed


def _unknown_format(format_name: str) -> QueryArgumentError:
    from tidemill.sources.registry import RECEIVER_FORMATS, names

    known = sorted({*FILE_FORMATS, *RECEIVER_FORMATS, *names()})
    hint = did_you_mean(format_name, known)
    return QueryArgumentError(
        f"there is no format {format_name!r} to read a stream from.{hint} There are {', '.join(known)}; "
        "tidemill.register_source(name, factory) adds another"
    )
