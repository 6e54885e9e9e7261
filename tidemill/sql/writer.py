"""Starting queries: ``df.writeStream`` of an attached session."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkValueError
from pyspark.sql.streaming.readwriter import DataStreamWriter as PySparkDataStreamWriter
from pyspark.sql.utils import to_str

from tidemill.common.clock import Clock
from tidemill.common.options import Options
from tidemill.common.output_modes import APPEND, parse_output_mode
from tidemill.spark.compiler.placeholder import streaming_sources
from tidemill.spark.errors.conditions import (
    condition_of_format,
    condition_of_streaming,
)
from tidemill.spark.session.settings import (
    LEGACY_PATHS,
    SINK_EVOLUTION,
    default_format,
    names_sinks,
    path_argument_wins,
)
from tidemill.sql.argument_checks import require_str, require_text, require_true, wrong_type
from tidemill.sql.execution.triggers import (
    AvailableNow,
    Continuous,
    Once,
    ProcessingTime,
    RealTime,
    Trigger,
)
from tidemill.sql.query_errors import (
    QueryAnalysisError,
    QueryArgumentError,
    QuerySinkError,
    raised_as_pyspark,
)
from tidemill.sql.rate_options import OF_EVERY_SOURCE
from tidemill.sql.writer_checks import (
    column_names,
    refused_trigger,
    require_columns,
    require_two_parameters,
    trigger_interval_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql._typing import OptionalPrimitiveType

    from tidemill.batches.sink import Sink
    from tidemill.errors import SparkCondition
    from tidemill.sql.query import StreamingQuery
    from tidemill.sql.query_manager import StreamingQueryManager

__all__ = ["DataStreamWriter"]

SINK_NAME = re.compile("[a-zA-Z0-9_]+")
EVOLUTION_ERROR = "STREAMING_QUERY_EVOLUTION_ERROR"
FOREACH = "foreach"
FOREACH_BATCH = "foreachBatch"
WITHOUT_CHECKPOINT = frozenset(
    {"console", "memory", "noop", FOREACH.lower(), FOREACH_BATCH.lower()}
)
"""The formats that work with a temporary checkpoint, as in Spark."""
NEVER_PARTITIONED = frozenset({"memory", FOREACH.lower(), FOREACH_BATCH.lower()})
IGNORE_PARTITIONS = frozenset({"console", "noop"})
"""The formats with which partitionBy has no effect, as in Spark."""


class DataStreamWriter(PySparkDataStreamWriter):
    """Says where the rows of a streaming DataFrame go, how and when, and starts the query.

    ::

        query = (counts.writeStream.outputMode("complete").format("console")
                 .trigger(processingTime="5 seconds").start())
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._spark = df.sparkSession
        self._output_mode = APPEND
        self._format: str | None = None
        self._options = Options(error=QueryArgumentError)
        self._partition_by: list[str] | None = None
        self._cluster_by: list[str] | None = None
        self._query_name: str | None = None
        self._sink_name: str | None = None
        self._trigger: Trigger | Continuous | RealTime = ProcessingTime(0)
        self._function: Any = None
        self._clock: Clock | None = None

    def outputMode(self, outputMode: str) -> DataStreamWriter:
        """Write rows once they are final (``append``), if they changed (``update``) or all (``complete``)."""
        require_text("outputMode", outputMode)
        with raised_as_pyspark():
            self._output_mode = parse_output_mode(outputMode)
        return self

    def format(self, source: str) -> DataStreamWriter:
        """Choose where the rows go. None is the format of ``spark.sql.sources.default``, as in PySpark."""
        if source is not None:
            require_str("source", source)
        self._format = source
        if source is None or source.lower() not in (FOREACH.lower(), FOREACH_BATCH.lower()):
            self._function = None
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> DataStreamWriter:
        require_str("key", key)
        text = to_str(value)
        if text is not None:
            self._options[key] = text
        return self

    def options(self, **options: OptionalPrimitiveType) -> DataStreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str) -> DataStreamWriter:  # type: ignore[override]  # PySpark overloads
        """Write the rows into a folder for each value of these columns."""
        self._partition_by = column_names(cols)
        self._require_one_layout()
        return self

    def clusterBy(self, *cols: str) -> DataStreamWriter:  # type: ignore[override]  # PySpark overloads
        """Say by which columns the catalog should know a new table of :meth:`toTable` to be clustered.

        As in Spark, the rows of a table of files are not clustered, and other sinks do not know of it.
        """
        self._cluster_by = column_names(cols)
        self._require_one_layout()
        return self

    def _require_one_layout(self) -> None:
        if self._partition_by and self._cluster_by:
            raise QueryAnalysisError(
                "clusterBy and partitionBy exclude each other: leave out one of them",
                operation="clusterBy",
            ).like_spark("SPECIFY_CLUSTER_BY_WITH_PARTITIONED_BY_IS_NOT_ALLOWED")

    def queryName(self, queryName: str) -> DataStreamWriter:
        require_text("queryName", queryName)
        self._query_name = queryName
        return self

    def name(self, sink_name: str) -> DataStreamWriter:
        """Name the sink, as Spark's writer can in Scala. Not the query: that is :meth:`queryName`.

        With ``spark.sql.streaming.queryEvolution.enableSinkEvolution`` a query without such a name is
        refused. Nothing else depends on it: a checkpoint of Tidemill's keeps nothing by the name of a sink.
        """
        require_str("sink_name", sink_name)
        if not SINK_NAME.fullmatch(sink_name):
            raise QueryAnalysisError(
                f"the name of a sink has letters, digits and underscores only, not {sink_name!r}",
                operation="name",
            ).like_spark(f"{EVOLUTION_ERROR}.INVALID_SINK_NAME", sinkName=sink_name)
        self._sink_name = sink_name
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> DataStreamWriter:
        """Choose when batches run. Without a trigger they follow each other without a pause.

        :meth:`start` refuses ``continuous`` and ``realTime``.
        """
        triggers = [processingTime, once, continuous, availableNow, realTime]
        if triggers.count(None) != len(triggers) - 1:
            raise PySparkValueError(errorClass="ONLY_ALLOW_SINGLE_TRIGGER", messageParameters={})
        if processingTime is not None:
            require_text("processingTime", processingTime)
            self._trigger = ProcessingTime(trigger_interval_ms(processingTime))
        elif once is not None:
            require_true("once", once)
            self._trigger = Once()
        elif availableNow is not None:
            require_true("availableNow", availableNow)
            self._trigger = AvailableNow()
        elif continuous is not None:
            require_text("continuous", continuous)
            self._trigger = Continuous(trigger_interval_ms(continuous))
        else:
            require_text("realTime", realTime)
            assert realTime is not None
            self._trigger = RealTime(trigger_interval_ms(realTime))
        return self

    def foreach(self, f: Any) -> DataStreamWriter:
        """Call ``f`` with each row, in tasks; an object with ``open``, ``process``, ``close`` works too."""
        self._construct_foreach_function(f)  # PySpark's own checks
        self._format, self._function = FOREACH, f
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> DataStreamWriter:
        """Call ``func(df, batch_id)`` on the driver, with each batch as an ordinary DataFrame."""
        if not callable(func):
            raise wrong_type("func", "function of a DataFrame and a batch id", func)
        require_two_parameters(func)
        self._format, self._function = FOREACH_BATCH, func
        return self

    def clock(self, clock: Clock) -> DataStreamWriter:
        """Run the query on this clock, such as ``tidemill.testing.ManualClock()``: it triggers when a test
        moves the clock.
        """
        if not isinstance(clock, Clock):
            raise QueryArgumentError(
                f"clock takes a clock such as tidemill.testing.ManualClock(), not {type(clock).__name__}",
                option="clock",
            )
        self._clock = clock
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: OptionalPrimitiveType,
    ) -> StreamingQuery:
        """Start the query on its own thread. Everything wrong with it is raised here, before it runs."""
        self._set(format, outputMode, partitionBy, queryName, options)
        self._check_path(path)
        with raised_as_pyspark(self._sparks_condition):
            self._check()
            needs_checkpoint = self._sink_format().lower() not in WITHOUT_CHECKPOINT
            return self._start(self._sink(path), needs_checkpoint)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: OptionalPrimitiveType,
    ) -> StreamingQuery:
        """Start a query that adds its rows to a table of files, and make the table if there is none."""
        self._set(format, outputMode, partitionBy, queryName, options)
        require_str("tableName", tableName)
        from tidemill.sinks.table import TableSink

        with raised_as_pyspark(self._sparks_condition):
            self._check(is_table=True)
            sink = TableSink(
                tableName,
                self._format,
                self._options.get("path"),
                self._partition_by or (),
                self._options.without(["path", *OF_EVERY_SOURCE]),
                self._clock,
                self._cluster_by or (),
            )
            return self._start(sink, needs_checkpoint=True)

    def _set(
        self,
        format: str | None,
        output_mode: str | None,
        partition_by: str | list[str] | None,
        query_name: str | None,
        options: dict[str, OptionalPrimitiveType],
    ) -> None:
        self.options(**options)
        if output_mode is not None:
            self.outputMode(output_mode)
        if partition_by is not None:
            self.partitionBy(partition_by)  # type: ignore[arg-type]  # PySpark's type of a list
        if format is not None:
            self.format(format)
        if query_name is not None:
            self.queryName(query_name)

    def _check_path(self, path: str | None) -> None:
        """Refuse ``start(path)`` after ``option("path", ...)``, unless the session lets the first win."""
        if path is None:
            return
        require_str("path", path)
        if "path" in self._options and not path_argument_wins(self._spark):
            raise QueryAnalysisError(
                "there are two paths, in option('path', ...) and in start(path): leave out one of them, or "
                f"set {LEGACY_PATHS} to true to let start(path) win",
                operation="start",
            )

    def _sparks_condition(self) -> SparkCondition | None:
        return condition_of_format(self._spark, self._sink_format()) or condition_of_streaming(
            self._df, self._output_mode
        )

    def _sink_format(self) -> str:
        return self._format or default_format(self._spark)

    def _start(self, sink: Sink, needs_checkpoint: bool) -> StreamingQuery:
        manager: StreamingQueryManager = self._spark.streams  # type: ignore[assignment]
        assert not isinstance(self._trigger, (Continuous, RealTime)), "_check() has refused them"
        return manager.start_query(
            self._df,
            sinks=[sink],
            name=self._query_name,
            output_mode=self._output_mode,
            trigger=self._trigger,
            options=self._options,
            clock=self._clock,
            may_use_temporary_checkpoint=not needs_checkpoint,
        )

    def _sink(self, path: str | None) -> Sink:
        from tidemill.sinks.registry import sink_for

        return sink_for(
            self._sink_format(),
            session=self._spark,
            path=path,
            options=dict(self._options),
            partition_by=self._partition_by or (),
            query_name=self._query_name,
            foreach=self._function if self._format == FOREACH else None,
            foreach_batch=self._function if self._format == FOREACH_BATCH else None,
            query_options=OF_EVERY_SOURCE,
        )

    def _check(self, is_table: bool = False) -> None:
        """Refuse what would be wrong with any sink, and what a format's name alone rules out."""
        streaming_sources(self._df)
        format_name = self._sink_format().lower()
        if isinstance(self._trigger, (Continuous, RealTime)):
            raise refused_trigger(self._spark, self._trigger, self._output_mode, format_name)
        if self._sink_name is None and names_sinks(self._spark):
            raise QueryAnalysisError(
                f"the sink has no name, and {SINK_EVOLUTION} asks for one: writeStream.name('mine')",
                operation="name",
            ).like_spark(f"{EVOLUTION_ERROR}.UNNAMED_STREAMING_SINKS_WITH_ENFORCEMENT")
        if format_name == "hive":
            raise QuerySinkError(
                "Hive data source can only be used with tables, you can not write files of Hive data "
                "source directly: use toTable(name)",
                sink=format_name,
            )
        if format_name == "memory" and self._query_name is None:
            raise QuerySinkError(
                "queryName must be specified for memory sink: it is the name of the table to look at",
                sink=format_name,
            )
        if self._partition_by:
            if format_name in NEVER_PARTITIONED:
                raise QuerySinkError(
                    f"'{format_name}' does not support partitioning", sink=format_name
                )
            if format_name not in IGNORE_PARTITIONS:
                require_columns(self._df, "partitionBy", self._partition_by, is_table)
        if is_table and self._cluster_by:
            require_columns(self._df, "clusterBy", self._cluster_by)
