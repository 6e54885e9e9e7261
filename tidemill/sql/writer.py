"""Starting queries: ``df.writeStream`` of an attached session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkValueError
from pyspark.sql.streaming.readwriter import DataStreamWriter as PySparkDataStreamWriter
from pyspark.sql.utils import to_str

from tidemill.common.clock import Clock
from tidemill.common.options import Options
from tidemill.common.output_modes import APPEND, parse_output_mode
from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.placeholder import streaming_sources
from tidemill.spark.session.settings import default_format
from tidemill.sql.argument_checks import require_str, require_text, require_true, wrong_type
from tidemill.sql.execution.triggers import AvailableNow, Once, ProcessingTime, Trigger, interval_ms
from tidemill.sql.query_errors import (
    QueryAnalysisError,
    QueryArgumentError,
    QuerySinkError,
    raised_as_pyspark,
)
from tidemill.sql.rate_options import OF_EVERY_SOURCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql._typing import OptionalPrimitiveType

    from tidemill.batches.sink import Sink
    from tidemill.sql.query import StreamingQuery
    from tidemill.sql.query_manager import StreamingQueryManager

__all__ = ["DataStreamWriter"]

FOREACH = "foreach"
FOREACH_BATCH = "foreachBatch"
WITHOUT_CHECKPOINT = frozenset(
    {"console", "memory", "noop", FOREACH.lower(), FOREACH_BATCH.lower()}
)
"""The formats that work with a temporary checkpoint, as in Spark."""
NEVER_PARTITIONED = frozenset({"memory", FOREACH.lower(), FOREACH_BATCH.lower()})


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
        self._trigger: Trigger = ProcessingTime(0)
        self._function: Any = None
        self._clock: Clock | None = None

    def outputMode(self, outputMode: str) -> DataStreamWriter:
        """Write rows once they are final (``append``), if they changed (``update``) or all (``complete``)."""
        require_text("outputMode", outputMode)
        with raised_as_pyspark():
            self._output_mode = parse_output_mode(outputMode)
        return self

    def format(self, source: str) -> DataStreamWriter:
        self._format = source
        if source.lower() not in (FOREACH.lower(), FOREACH_BATCH.lower()):
            self._function = None
        return self

    def option(self, key: str, value: OptionalPrimitiveType) -> DataStreamWriter:
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
        self._partition_by = _column_names(cols)
        return self

    def clusterBy(self, *cols: str) -> DataStreamWriter:  # type: ignore[override]  # PySpark overloads
        """Accept the columns; :meth:`start` refuses them, because no file sink can cluster."""
        self._cluster_by = _column_names(cols)
        return self

    def queryName(self, queryName: str) -> DataStreamWriter:
        require_text("queryName", queryName)
        self._query_name = queryName
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
        """Choose when batches run. Without a trigger they follow each other without a pause."""
        triggers = [processingTime, once, continuous, availableNow, realTime]
        if triggers.count(None) != len(triggers) - 1:
            raise PySparkValueError(errorClass="ONLY_ALLOW_SINGLE_TRIGGER", messageParameters={})
        if processingTime is not None:
            require_text("processingTime", processingTime)
            self._trigger = ProcessingTime(interval_ms(processingTime))
        elif once is not None:
            require_true("once", once)
            self._trigger = Once()
        elif availableNow is not None:
            require_true("availableNow", availableNow)
            self._trigger = AvailableNow()
        else:
            name = "continuous" if continuous is not None else "realTime"
            require_text(name, continuous if continuous is not None else realTime)
            raise UnsupportedError(
                f"trigger({name}=...) is not supported: queries run in batches here. Use "
                "trigger(processingTime='100 milliseconds'), or no trigger at all, which starts a batch as "
                "soon as there are rows and is done with it within tens of milliseconds"
            )
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
        _require_two_parameters(func)
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
        if path is not None and "path" in self._options:
            raise QueryAnalysisError(
                "there are two paths, in option('path', ...) and in start(path): leave out one of them",
                operation="start",
            )
        with raised_as_pyspark():
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
        from tidemill.sinks.table import TableSink

        with raised_as_pyspark():
            self._check()
            sink = TableSink(
                tableName,
                self._format,
                self._options.get("path"),
                self._partition_by or (),
                self._options.without(["path", *OF_EVERY_SOURCE]),
                self._clock,
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
            self._partition_by = _column_names((partition_by,))
        if format is not None:
            self.format(format)
        if query_name is not None:
            self.queryName(query_name)

    def _sink_format(self) -> str:
        return self._format or default_format(self._spark)

    def _start(self, sink: Sink, needs_checkpoint: bool) -> StreamingQuery:
        manager: StreamingQueryManager = self._spark.streams  # type: ignore[assignment]
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
            path=path,
            options=dict(self._options),
            partition_by=self._partition_by or (),
            query_name=self._query_name,
            foreach=self._function if self._format == FOREACH else None,
            foreach_batch=self._function if self._format == FOREACH_BATCH else None,
            query_options=OF_EVERY_SOURCE,
        )

    def _check(self) -> None:
        """Refuse what would be wrong with any sink, and what a format's name alone rules out."""
        streaming_sources(self._df)
        format_name = self._sink_format().lower()
        if format_name == "hive":
            raise QuerySinkError(
                "Hive data source can only be used with tables, you can not write files of Hive data "
                "source directly: use toTable(name)",
                sink=format_name,
            )
        if self._cluster_by is not None:
            raise UnsupportedError(
                "clusterBy needs a table format that clusters, which no sink here has: use partitionBy, or "
                "foreachBatch and the writer of the table format"
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
            columns = {name.lower() for name in self._df.columns}
            for name in self._partition_by:
                if name.lower() not in columns:
                    raise QueryAnalysisError(
                        f"partitionBy({name!r}): there is no such column; there are "
                        f"{', '.join(self._df.columns)}",
                        operation="partitionBy",
                    )


def _require_two_parameters(func: Callable[..., Any]) -> None:
    """Refuse now a function that the first batch could not call."""
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # a function not written in Python may have no signature
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        name = getattr(func, "__name__", type(func).__name__)
        raise QueryArgumentError(
            f"foreachBatch calls its function with a DataFrame and a batch id, and {name}{signature} cannot "
            f"be called so: {error}",
            option="foreachBatch",
        ) from None


def _column_names(cols: Sequence[Any]) -> list[str]:
    """Return the column names in ``cols``, which are several strings or one list."""
    names = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else list(cols)
    for name in names:
        require_str("cols", name)
    return names
