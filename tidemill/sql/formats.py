"""Turns what the program told a reader into a streaming DataFrame.

A format's name leads, in this order, to a source or receiver that is registered under it, to a Python data
source of the session (``spark.dataSource.register``), or to files that Spark reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemill.common.options import Options
from tidemill.common.suggestions import did_you_mean
from tidemill.sources.arrow_split import struct_type
from tidemill.spark.compiler.placeholder import (
    SourceDefinition,
    define,
    empty_placeholder,
    file_placeholder,
    new_source_id,
    table_placeholder,
)
from tidemill.spark.errors.conditions import condition_of_format
from tidemill.spark.files.file_formats import (
    FILE_FORMATS,
    READ_ONLY_FORMATS,
    format_options,
    is_file_format,
)
from tidemill.spark.session.python_data_sources import python_data_source
from tidemill.spark.session.settings import default_format
from tidemill.sql.query_errors import QueryArgumentError, QueryFormatError, QuerySourceError
from tidemill.sql.rate_options import OF_EVERY_SOURCE, read_backpressure, read_max_rate

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from tidemill.batches.table_source import SourceFactory, TableSource

READABLE_FORMATS = (*FILE_FORMATS, *READ_ONLY_FORMATS)

_FOLDER = re.compile(r"\s*(\w+)\s*\.\s*`([^`]+)`\s*")

PARSE_MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

NOT_FOR_SPARK = ("modifiedBefore", "modifiedAfter")
"""Options that Tidemill's file streams take and Spark's refuse."""


@dataclass(frozen=True)
class ReadRequest:
    """Everything the program told a reader. Without a format, ``spark.sql.sources.default`` holds."""

    format: str | None
    schema: StructType | str | None
    options: Options
    path: str | None = None
    name: str | None = None


def open_stream(spark: SparkSession, request: ReadRequest) -> DataFrame:
    """Return the streaming DataFrame of ``readStream...load()``."""
    from tidemill.receivers.connectors.formats import receiver_format
    from tidemill.sources.registry import source_named

    format_name = request.format or default_format(spark)
    factory = source_named(format_name) or receiver_format(format_name)
    if factory is not None:
        factory = _with_schema(factory, request.schema)
        return _stream_from_factory(factory, spark, format_name, request)
    is_known_file_format = format_name.lower() in {name.lower() for name in READABLE_FORMATS}
    if not is_known_file_format:
        data_source = python_data_source(spark, format_name)
        if data_source is not None:
            return _stream_of_data_source(data_source, spark, format_name, request)
    if is_known_file_format or is_file_format(spark, format_name):
        return _stream_of_files(spark, format_name, request)
    raise _unknown_format(spark, format_name)


def open_batch(
    spark: SparkSession, format_name: str, make: Callable[[Options], TableSource], options: Options
) -> DataFrame:
    """Return a batch DataFrame over everything that a source has now.

    It stays the same, whatever comes later: the ends of its input are looked up once.
    """
    from tidemill.sql.verify.snapshot import snapshot_until_now

    request = ReadRequest(format_name, None, options)
    schema = make(options).schema()
    return snapshot_until_now(
        _defined_stream(spark, format_name, request, schema, lambda: make(options))
    )


def open_table(spark: SparkSession, table_name: str, request: ReadRequest) -> DataFrame:
    """Return the streaming DataFrame of ``readStream.table(name)``: a table of the catalog, or a folder of
    files under the name that SQL has for it, such as ``parquet.`/in/clicks```.
    """
    folder = _FOLDER.fullmatch(table_name)
    if folder is not None and not spark.catalog.tableExists(table_name):
        format_name, path = folder.groups()
        if is_file_format(spark, format_name):
            schema = request.schema or spark.read.format(format_name).load(path).schema
            return _stream_of_files(spark, format_name, replace(request, schema=schema, path=path))
    limits = _limits(request.options, f"the table {table_name}")
    source_id = new_source_id()
    table = table_placeholder(
        spark, source_id, table_name, request.options.without(OF_EVERY_SOURCE), request.name
    )
    schema, options = table.df.schema, Options(table.options)
    define(
        source_id,
        SourceDefinition(
            table.format,
            schema,
            options,
            lambda: _file_source(spark, table.path, options, schema, table.format),
            path=table.path,
            name=request.name,
            **limits,
        ),
    )
    return table.df


def _stream_from_factory(
    factory: SourceFactory, spark: SparkSession, format_name: str, request: ReadRequest
) -> DataFrame:
    """Return the stream of a source that ``factory`` makes from the reader's options."""
    known = getattr(factory, "known_options", None)
    if known is not None:
        what = f"the source {format_name}"
        Options(request.options, what).refuse_unknown({*known, *OF_EVERY_SOURCE})
    options = _source_options(request)
    schema = factory(options).schema()
    _require_same_schema(request.schema, schema, format_name)
    return _defined_stream(spark, format_name, request, schema, lambda: factory(options))


def _stream_of_data_source(
    data_source: type[DataSource], spark: SparkSession, format_name: str, request: ReadRequest
) -> DataFrame:
    """Return the stream of a class that was registered with ``spark.dataSource.register``.

    As in Spark its readers are made when a query starts.
    """
    from tidemill.sources.python_data_source import python_source_schema, python_stream_source

    options = _source_options(request)
    schema = (
        python_source_schema(data_source, options)
        if request.schema is None
        else struct_type(request.schema)
    )
    make = partial(python_stream_source, data_source, options, schema)
    return _defined_stream(spark, format_name, request, schema, make)


def _source_options(request: ReadRequest) -> Options:
    """Return the options for the source itself, with the path that ``load()`` got."""
    options = request.options.without(OF_EVERY_SOURCE)
    if request.path is not None:
        options["path"] = request.path
    return options


def _defined_stream(
    spark: SparkSession,
    format_name: str,
    request: ReadRequest,
    schema: StructType,
    make: Callable[[], TableSource],
) -> DataFrame:
    """Return the stream of a source that ``make`` makes for each query."""
    limits = _limits(request.options, f"the source {format_name}")
    source_id = new_source_id()
    df = empty_placeholder(spark, source_id, schema, request.name)
    define(
        source_id,
        SourceDefinition(
            format_name,
            schema,
            _source_options(request),
            make,
            path=request.path,
            name=request.name,
            **limits,
        ),
    )
    return df


def _stream_of_files(spark: SparkSession, format_name: str, request: ReadRequest) -> DataFrame:
    """Return the stream of the files under a path, which Spark reads."""
    from tidemill.sources.files.file_stream_options import FILE_SOURCE_OPTIONS

    what = f"the format {format_name}"
    known = {*(format_options(spark, format_name) or ()), *FILE_SOURCE_OPTIONS, *OF_EVERY_SOURCE}
    Options(request.options, what).refuse_slips(known)
    limits = _limits(request.options, what)
    options = request.options.without(OF_EVERY_SOURCE)
    path = request.path if request.path is not None else options.get("path")
    if path is None:
        raise QueryArgumentError(
            f"{what} needs to know what to read: .load('/some/directory') or .option('path', ...)",
            option="path",
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
        request.name,
    )
    schema = df.schema
    define(
        source_id,
        SourceDefinition(
            format_name,
            schema,
            options,
            lambda: _file_source(spark, path, options, schema, format_name),
            path=path,
            name=request.name,
            **limits,
        ),
    )
    return df


def _file_source(
    spark: SparkSession, path: str, options: Options, schema: StructType, format_name: str
) -> TableSource:
    from tidemill.sources.files.file_stream_source import FileStreamSource

    return FileStreamSource(spark.sparkContext, path, options, schema, format_name)


def _with_schema(factory: SourceFactory, schema: StructType | str | None) -> SourceFactory:
    """Give a receiver the columns that the reader asks for. Other sources have columns of their own."""
    with_schema = getattr(factory, "with_schema", None)
    return factory if schema is None or with_schema is None else with_schema(schema)


def _require_parse_mode(options: Options, what: str) -> None:
    """Refuse an unknown mode: Spark would read it as PERMISSIVE, and give nulls for rows that should fail."""
    mode = options.get("mode")
    if mode is not None and mode.upper() not in PARSE_MODES:
        raise QueryArgumentError(
            f"option mode of {what} is {mode!r}: there are {', '.join(PARSE_MODES)}", option="mode"
        )


class _Limits(TypedDict):
    """The limits in the reader's options, by their names in a ``SourceDefinition``."""

    backpressure: bool | None
    max_rate_per_s: float | None


def _limits(options: Options, what: str) -> _Limits:
    return {
        "backpressure": read_backpressure(options, what),
        "max_rate_per_s": read_max_rate(options, what),
    }


def _require_same_schema(
    requested: StructType | str | None, actual: StructType, format_name: str
) -> None:
    if requested is None:
        return
    columns = [(field.name, field.dataType) for field in struct_type(requested)]
    if columns != [(field.name, field.dataType) for field in actual]:
        raise QuerySourceError(
            f"the source {format_name} has columns of its own ({actual.simpleString()}): leave out "
            "schema(...), and choose or cast columns with select afterwards",
            source=format_name,
        )


def _unknown_format(spark: SparkSession, format_name: str) -> QueryFormatError:
    from tidemill.sources.registry import RECEIVER_FORMATS, names

    known = sorted({*READABLE_FORMATS, *RECEIVER_FORMATS, *names()})
    hint = did_you_mean(format_name, known)
    error = QueryFormatError(
        f"there is no format {format_name!r} to read a stream from.{hint} There are {', '.join(known)}; "
        "tidemill.register_source(name, factory) adds another",
        option="format",
    )
    error.spark_condition = condition_of_format(spark, format_name)
    return error
