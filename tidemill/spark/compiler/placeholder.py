"""The streaming leaf that a DataFrame stands on until its query starts.

``spark.readStream`` gives an ordinary streaming DataFrame of Spark's, so its whole API, SQL over temporary
views and Spark's own analysis work on it. Nothing ever reads that leaf: it carries the id of a source, which
the compiler reads in its place.

Spark's own stream reader opens a file format, so its checks, schema rules, partition columns and
``_metadata`` column hold. Every other source stands on an empty directory of Parquet files with its schema.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from tidemill.common.temporary_folder import temporary_folder
from tidemill.errors import SourceError, UnsupportedError
from tidemill.spark.session.settings import names_sources

SOURCE_OPTION = "tidemillSource"
STREAMING_RELATION = "StreamingRelation"

# Only Spark's own engine looks at this option, when it starts a query; its error quotes the value.
_REFUSED_BY_SPARK = (
    "maxFilesPerTrigger",
    "This stream is Tidemill's and Spark's own engine cannot read it: start it with df.writeStream of the "
    "session in which it was made while that session is attached, with tidemill.attach(spark)",
)


@dataclass(frozen=True)
class SourceDefinition:
    """The source that a placeholder stands for. ``make`` makes a new one for each query that starts
    (:class:`tidemill.batches.table_source.TableSource`).

    ``options`` are those of the reader, in any case. ``name`` comes from ``readStream.name()``.
    ``backpressure`` and ``max_rate_per_s`` are the options ``backpressure`` and ``maxRatePerSecond``, None
    where the reader has none.
    """

    format: str
    schema: StructType
    options: Mapping[str, str]
    make: Callable[[], Any]
    path: str | None = None
    name: str | None = None
    backpressure: bool | None = None
    max_rate_per_s: float | None = None


@dataclass(frozen=True)
class StreamingLeaf:
    """A streaming leaf of a plan. ``source_id`` is None for a leaf that Spark's own reader has made."""

    source_id: str | None
    description: str


@dataclass
class _Definitions:
    """All placeholders of the process. A plan (as a view) may outlive every Python object that knows of it,
    so definitions are never forgotten; they are small.
    """

    by_id: dict[str, SourceDefinition] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_definitions = _Definitions()


def new_source_id() -> str:
    return str(uuid.uuid4())


def define(source_id: str, definition: SourceDefinition) -> None:
    with _definitions.lock:
        _definitions.by_id[source_id] = definition


def definition_of(source_id: str) -> SourceDefinition:
    with _definitions.lock:
        definition = _definitions.by_id.get(source_id)
    if definition is None:
        raise SourceError(
            f"the stream {source_id} is not known in this process: make it here, with spark.readStream",
            source=source_id,
        )
    return definition


def file_placeholder(
    spark: SparkSession,
    source_id: str,
    format_name: str | None,
    schema: StructType | str | None,
    options: Mapping[str, str],
    path: str | None,
    name: str | None = None,
) -> DataFrame:
    """Return a leaf that Spark's own file stream reader makes, with Spark's own errors.

    A format of None is the session's default format.
    """
    reader = _sparks_reader(spark, name)
    if format_name is not None:
        reader = reader.format(format_name)
    if schema is not None:
        reader = reader.schema(schema)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.option(SOURCE_OPTION, source_id).load(path)


def empty_placeholder(
    spark: SparkSession, source_id: str, schema: StructType, name: str | None = None
) -> DataFrame:
    """Return a leaf with this schema, over an empty directory.

    Spark's own engine fails on it: else a query that reaches that engine, of another session or of a detached
    one, would run and give no rows.
    """
    reader = _sparks_reader(spark, name).format("parquet").schema(schema)
    reader = reader.option(SOURCE_OPTION, source_id).option(*_REFUSED_BY_SPARK)
    return reader.load(_empty_directory())


def _sparks_reader(spark: SparkSession, name: str | None) -> DataStreamReader:
    """Return PySpark's own reader. It gets the name only in a session where Spark takes names."""
    reader = DataStreamReader(spark)
    return reader.name(name) if name is not None and names_sources(spark) else reader


@dataclass(frozen=True)
class StreamedTable:
    """A table of files in the catalog, as a streaming DataFrame."""

    df: DataFrame
    format: str
    path: str
    options: Mapping[str, str]


def table_placeholder(
    spark: SparkSession,
    source_id: str,
    table_name: str,
    options: Mapping[str, str],
    name: str | None = None,
) -> StreamedTable:
    """Return a leaf for a table of the catalog, which has to be a table of files."""
    reader = _sparks_reader(spark, name)
    for key, value in options.items():
        reader = reader.option(key, value)
    df = reader.option(SOURCE_OPTION, source_id).table(table_name)
    leaves = _leaves(df)
    if len(leaves) != 1 or leaves[0].getClass().getSimpleName() != STREAMING_RELATION:
        raise UnsupportedError(
            f"the table {table_name} is not a table of files, and cannot be read as a stream here: read "
            "its files with spark.readStream.format(...).load(path), or before tidemill.attach(spark)"
        )
    source = leaves[0].dataSource()
    found = {str(pair._1()): str(pair._2()) for pair in _items(source.options().toSeq())}
    path = next(value for key, value in found.items() if key.lower() == "path")
    kept = {k: v for k, v in found.items() if k.lower() not in ("path", SOURCE_OPTION.lower())}
    return StreamedTable(df, str(source.className()), path, kept)


def streaming_leaves(df: DataFrame) -> list[StreamingLeaf]:
    """Return the streaming leaves of a DataFrame, from left to right."""
    found = []
    for leaf in _leaves(df):
        kind = leaf.getClass().getSimpleName()
        # The definition of a CTE has leaves of its own.
        if leaf.isStreaming() and kind != "CTERelationRef":
            source_id = source_id_of(leaf) if kind == STREAMING_RELATION else None
            found.append(StreamingLeaf(source_id, str(leaf.simpleString(25))))
    return found


def source_id_of(relation: Any) -> str | None:
    """Return the source that a ``StreamingRelation`` stands for; None if Spark's own reader made it."""
    options = relation.dataSource().options()
    for key in (SOURCE_OPTION.lower(), SOURCE_OPTION):
        value = options.get(key)
        if value.isDefined():
            return str(value.get())
    return None


def streaming_sources(df: DataFrame) -> list[str]:
    """Return the ids of the sources of a DataFrame, from left to right, each of them once.

    Refuses a stream that Spark's own reader has made: only Spark could read it.
    """
    ids: dict[str, None] = {}
    for leaf in streaming_leaves(df):
        if leaf.source_id is None:
            raise not_our_stream(leaf.description)
        ids[leaf.source_id] = None
    return list(ids)


def not_our_stream(description: str) -> SourceError:
    """Return the error about a stream that Spark's own reader has made."""
    return SourceError(
        f"{description} is a stream of Spark's own, made before tidemill.attach(spark), by "
        "FROM STREAM in SQL or in another session: make it with spark.readStream of the attached "
        "session, such as spark.readStream.table(name), and give SQL a temporary view of it",
        source=description,
    )


def _leaves(df: DataFrame) -> list[Any]:
    return _items(df._jdf.queryExecution().analyzed().collectLeaves())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _empty_directory() -> str:
    # A bare path could mean one of the cluster's file system.
    return Path(temporary_folder("placeholder")).as_uri()
