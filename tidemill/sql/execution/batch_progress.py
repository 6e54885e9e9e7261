"""The progress of a query's batches, gathered from its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.batches.batch import Batch
from tidemill.batches.runner import COMMIT, LOG, SINKS, BatchObserver
from tidemill.batches.sink import Sink
from tidemill.common.times import iso_millis
from tidemill.progress.batch_info import ProcessedBatch
from tidemill.progress.query_progress import (
    UNKNOWN_ROWS,
    ProgressReporter,
    SinkReport,
    SourceReport,
    StateOperatorReport,
)
from tidemill.spark.compiler.event_time import EventTimes
from tidemill.sql.execution.query_pipeline import QueryResult
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.sql.execution.watermark import WatermarkTracker

_SPARKS_NAMES = {LOG: "walCommit", SINKS: "addBatch", COMMIT: "commitOffsets"}
"""The runner's steps, as ``durationMs`` of Spark's progress calls them."""


class BatchProgress(BatchObserver[QueryResult]):
    """Hears of each batch from the runner, and tells the reporter what Spark's progress says of it."""

    def __init__(self, reporter: ProgressReporter, sources: QuerySources, sink: Sink) -> None:
        self._reporter = reporter
        self._sources = sources
        self._sink = sink
        # Those of the last batch: Spark's progress of an idle trigger has them again.
        self._operators: Sequence[StateOperatorReport] = ()

    def batch_failed(self, batch: Batch, error: BaseException) -> None:
        pass  # the error ends the query's thread, which tells everybody

    def batch_done(self, batch: Batch, result: QueryResult, processed: ProcessedBatch) -> None:
        # As Spark has it: the operator that is nearest to the sink comes first.
        self._operators = tuple(reversed(result.operators))
        for step, took_ms in processed.step_ms.items():
            self._reporter.add_duration(_SPARKS_NAMES[step], took_ms)
        self._reporter.finish_trigger(
            batch.batch_id,
            has_executed=True,
            sources=[
                SourceReport(
                    source.description,
                    # As Spark has it: before the first batch there is no offset.
                    batch.ranges[source.number].start if batch.batch_id else None,
                    batch.ranges[source.number].end,
                    source.source.newest_offset(),
                    result.input_rows[source.number] or 0,
                    source.source.metrics(batch.ranges[source.number].end),
                )
                for source in self._sources.sources
            ],
            sink=self._sink_report(result.output_rows),
            state_operators=self._operators,
            event_time=_event_time(batch.watermark_ms, result.event_times),
            observed_metrics=result.observed,
        )

    def idle(self, next_id: int, ends: Mapping[int, Any], watermark: WatermarkTracker) -> None:
        """There was nothing for the next batch. ``ends`` is where the one before has ended."""
        offsets = dict(ends) if next_id else dict.fromkeys(ends)
        times = [EventTimes(0)] if watermark.delays_ms else []
        self._reporter.finish_trigger(
            next_id,
            has_executed=False,
            sources=[
                SourceReport(
                    source.description,
                    offsets[source.number],
                    offsets[source.number],
                    source.source.newest_offset(),
                    metrics=source.source.metrics(ends[source.number]),
                )
                for source in self._sources.sources
            ],
            sink=self._sink_report(None),
            state_operators=self._operators,
            event_time=_event_time(watermark.current_ms, times),
        )

    def _sink_report(self, written: int | None) -> SinkReport:
        return SinkReport(self._sink.description(), UNKNOWN_ROWS if written is None else written)


def _event_time(watermark_ms: int, times: Sequence[EventTimes]) -> dict[str, str]:
    """``{"max": ..., "min": ..., "avg": ..., "watermark": ...}`` of a query with a watermark."""
    if not times:
        return {}
    found = {"watermark": iso_millis(watermark_ms)}
    seen = [each for each in times if each.count]
    if seen:
        total = sum(each.count for each in seen)
        mean_us = sum(each.avg_us * each.count for each in seen) / total
        found["max"] = iso_millis(max(each.max_us for each in seen) // 1000)
        found["min"] = iso_millis(min(each.min_us for each in seen) // 1000)
        found["avg"] = iso_millis(int(mean_us) // 1000)
    return found
