"""The batch query that a stream equals, over all input there is now or over the input of a query so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import EVERYTHING, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import SparkFilesSource, Split, SplitSource, TableSource
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.output_modes import APPEND
from tidemill.errors import UnsupportedError
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.compiler.batch_leaves import BatchLeaves
from tidemill.spark.compiler.placeholder import definition_of
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.sql.execution.query_sources import can_prepare_available_now
from tidemill.tasks.fetch_step import RowReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


Consumed = tuple[TableSource, Sequence[OffsetRange]]
"""A source, and the ranges of it that batches have read."""


def snapshot_until_now(df: DataFrame, clock: Clock | None = None) -> DataFrame:
    """Return a batch DataFrame over everything from the beginning of the sources up to now."""
    clock = clock or SystemClock()
    now_ms = clock.now_ms()
    opened: list[TableSource] = []
    ranges: dict[str, Consumed] = {}

    def ranges_of(source_id: str) -> Consumed:
        if source_id not in ranges:
            source = _new_source(source_id)
            opened.append(source)
            source.start(SourceRuntime(now_ms, clock))
            ranges[source_id] = source, [_whole_range(source, now_ms)]
        return ranges[source_id]

    try:
        return _snapshot(df, ranges_of)
    finally:
        for source in opened:
            source.stop()


def snapshot_of_ranges(
    df: DataFrame, ranges: Mapping[str, Consumed], keeps_duplicates: bool = False
) -> DataFrame:
    """Return a batch DataFrame over the ranges that a query has read, by source id.

    ``InputUnavailableError`` if a file of them is gone, whatever the options of its reader say. With
    ``keeps_duplicates``, ``dropDuplicates`` drops nothing.
    """
    return _snapshot(df, lambda source_id: ranges[source_id], False, keeps_duplicates)


def _new_source(source_id: str) -> TableSource:
    """Make a source to read once. Refuse one that gives its input only to a running query."""
    definition = definition_of(source_id)
    source: TableSource = definition.make()
    if not source.replayable or isinstance(source, TrackedBlocksSource):
        raise UnsupportedError(
            f"a {definition.format} stream cannot be read without starting it: its input is gone once it "
            "has been read. Start the query, with format('console') or format('memory')."
        )
    return source


def _whole_range(source: TableSource, now_ms: int) -> OffsetRange:
    start = source.initial_offset()
    source.prepare_available_now()
    end = source.latest_offset(start, EVERYTHING, now_ms)
    # Only a source that knows where to stop is asked again: another one might go on for ever.
    while (
        can_prepare_available_now(source)
        and (next_end := source.latest_offset(end, EVERYTHING, now_ms)) != end
    ):
        end = next_end
    return OffsetRange(start, end)


def _snapshot(
    df: DataFrame,
    ranges_of: Callable[[str], Consumed],
    may_be_gone: bool | None = None,
    keeps_duplicates: bool = False,
) -> DataFrame:
    leaves = BatchLeaves(df.sparkSession)
    parallelism = df.sparkSession.sparkContext.defaultParallelism

    def replace(source_id: str, placeholder: Any) -> Any:
        source, ranges = ranges_of(source_id)
        if isinstance(source, SparkFilesSource):
            files = [file for range_ in ranges for file in source.files(range_)]
            return leaves.of_files(placeholder, source_id, files, may_be_gone)
        assert isinstance(source, SplitSource)
        splits = [split for range_ in ranges for split in source.splits(range_, parallelism)]
        # Each task reads a run of consecutive splits, so that rows keep the order of their batches.
        size = -(-len(splits) // (2 * parallelism)) or 1
        groups = [splits[first : first + size] for first in range(0, len(splits), size)]
        return leaves.of_splits(placeholder, groups, _GroupReader(RowReader(source)))

    return QueryCompiler(df, APPEND).batch_dataframe(replace, keeps_duplicates)


class _GroupReader:
    """Reads groups of splits. It is sent to the executors."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader

    def __call__(self, groups: Sequence[Sequence[Split]]) -> Iterator[pa.RecordBatch]:
        for group in groups:
            yield from self._reader(group)
