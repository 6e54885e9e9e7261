"""The batch query that a stream is equal to: over what there is now, or over what a query has consumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import EVERYTHING, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.common.clock import Clock, SystemClock
from tidemill.errors import UnsupportedError
from tidemill.sources.table import FileTableSource, SplitSource, TableSource
from tidemill.spark.batch_leaves import BatchLeaves
from tidemill.spark.placeholder import definition_of
from tidemill.spark.query_compiler import QueryCompiler
from tidemill.sql.steps.fetch import RowReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def batch_dataframe(df: DataFrame, clock: Clock | None = None) -> DataFrame:
    """A batch DataFrame over everything from the beginning of the sources up to now."""
    clock = clock or SystemClock()
    now_ms = clock.now_ms()
    opened: dict[str, tuple[TableSource, OffsetRange]] = {}

    def range_of(source_id: str) -> tuple[TableSource, OffsetRange]:
        if source_id not in opened:
            opened[source_id] = _all_of(source_id, clock, now_ms)
        return opened[source_id]

    try:
        return _over(df, range_of)
    finally:
        for source, _ in opened.values():
            source.stop()


def consumed_dataframe(
    df: DataFrame, ranges: Mapping[str, tuple[TableSource, OffsetRange]]
) -> DataFrame:
    """A batch DataFrame over the ranges that a query has read, by source id."""
    return _over(df, lambda source_id: ranges[source_id])


def _all_of(source_id: str, clock: Clock, now_ms: int) -> tuple[TableSource, OffsetRange]:
    definition = definition_of(source_id)
    source: TableSource = definition.make()
    if not source.replayable:
        raise UnsupportedError(
            f"a {definition.format} stream cannot be read without starting it: what it has received by now "
            "is gone when it is read. Start the query, with format('console') or format('memory')."
        )
    source.start(SourceRuntime(now_ms, clock))
    start = end = source.initial_offset()
    source.prepare_available_now()
    while (next_end := source.latest_offset(end, EVERYTHING, now_ms)) != end:
        end = next_end
    return source, OffsetRange(start, end)


def _over(df: DataFrame, range_of: Any) -> DataFrame:
    leaves = BatchLeaves(df.sparkSession)
    parallelism = df.sparkSession.sparkContext.defaultParallelism

    def replace(source_id: str, placeholder: Any) -> Any:
        source, range_ = range_of(source_id)
        if isinstance(source, FileTableSource):
            return leaves.of_files(placeholder, source_id, source.files(range_))
        assert isinstance(source, SplitSource)
        splits = list(source.splits(range_, parallelism))
        return leaves.of_splits(placeholder, splits, RowReader(source))

    return QueryCompiler(df, "append").batch_dataframe(replace)
