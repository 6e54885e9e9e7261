"""The batch query that a stream is equal to: over what there is now, or over what a query has consumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import EVERYTHING, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import FileTableSource, Split, SplitSource, TableSource
from tidemill.common.clock import Clock, SystemClock
from tidemill.errors import UnsupportedError
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.compiler.batch_leaves import BatchLeaves
from tidemill.spark.compiler.placeholder import definition_of
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.sql.execution.query_sources import can_hold
from tidemill.tasks.fetch import RowReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


Consumed = tuple[TableSource, Sequence[OffsetRange]]
"""A source, and what has been read of it: the ranges of its batches."""


def batch_dataframe(df: DataFrame, clock: Clock | None = None) -> DataFrame:
    """A batch DataFrame over everything from the beginning of the sources up to now."""
    clock = clock or SystemClock()
    now_ms = clock.now_ms()
    opened: list[TableSource] = []
    ranges: dict[str, Consumed] = {}

    def ranges_of(source_id: str) -> Consumed:
        if source_id not in ranges:
            source = _readable(source_id)
            opened.append(source)
            source.start(SourceRuntime(now_ms, clock))
            ranges[source_id] = source, [_all_of(source, now_ms)]
        return ranges[source_id]

    try:
        return _over(df, ranges_of)
    finally:
        for source in opened:
            source.stop()


def consumed_dataframe(df: DataFrame, ranges: Mapping[str, Consumed]) -> DataFrame:
    """A batch DataFrame over the ranges that a query has read, by source id."""
    return _over(df, lambda source_id: ranges[source_id])


def _readable(source_id: str) -> TableSource:
    definition = definition_of(source_id)
    source: TableSource = definition.make()
    if not source.replayable or isinstance(source, TrackedBlocksSource):
        raise UnsupportedError(
            f"a {definition.format} stream cannot be read without starting it: what it has received by now "
            "is gone when it is read. Start the query, with format('console') or format('memory')."
        )
    return source


def _all_of(source: TableSource, now_ms: int) -> OffsetRange:
    start = source.initial_offset()
    source.prepare_available_now()
    end = source.latest_offset(start, EVERYTHING, now_ms)
    # A source that does not know where to stop might go on for ever.
    while can_hold(source) and (next_end := source.latest_offset(end, EVERYTHING, now_ms)) != end:
        end = next_end
    return OffsetRange(start, end)


def _over(df: DataFrame, ranges_of: Callable[[str], Consumed]) -> DataFrame:
    leaves = BatchLeaves(df.sparkSession)
    parallelism = df.sparkSession.sparkContext.defaultParallelism

    def replace(source_id: str, placeholder: Any) -> Any:
        source, ranges = ranges_of(source_id)
        if isinstance(source, FileTableSource):
            files = [file for range_ in ranges for file in source.files(range_)]
            return leaves.of_files(placeholder, source_id, files)
        assert isinstance(source, SplitSource)
        splits = [split for range_ in ranges for split in source.splits(range_, parallelism)]
        # In the order of their batches, a part for each task.
        size = -(-len(splits) // (2 * parallelism)) or 1
        groups = [splits[first : first + size] for first in range(0, len(splits), size)]
        return leaves.of_splits(placeholder, groups, _GroupReader(RowReader(source)))

    return QueryCompiler(df, "append").batch_dataframe(replace)


class _GroupReader:
    """Reads groups of splits. Goes to the executors."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader

    def __call__(self, groups: Sequence[Sequence[Split]]) -> Iterator[pa.RecordBatch]:
        for group in groups:
            yield from self._reader(group)
