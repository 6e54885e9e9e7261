"""Progress reports have Spark's fields, and come when Spark's do."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent

from tidemill.progress.events import StreamEvent
from tidemill.progress.query_progress import (
    ProgressReporter,
    SinkReport,
    SourceReport,
    StateOperatorReport,
)
from tidemill.testing import ManualClock

ID = "5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11"
RUN_ID = "5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a12"
SOURCE = SourceReport("Numbers", 0, 1, 1, 1000)
SINK = SinkReport("MemorySink", 10)


def reporter(clock: ManualClock, **settings: int) -> tuple[ProgressReporter, list[Any]]:
    posted: list[Any] = []

    def post(event: StreamEvent) -> None:
        posted.append(event.for_listener())

    return ProgressReporter(clock, ID, RUN_ID, "totals", post, **settings), posted


def keys(value: Any, path: str = "") -> set[str]:
    """Return the paths of all names in a JSON value."""
    if isinstance(value, dict):
        inner: set[str] = set()
        for name, each in value.items():
            inner |= {f"{path}.{name}"} | keys(each, f"{path}.{name}")
        return inner
    if isinstance(value, list):
        return set().union(*(keys(each, path) for each in value)) if value else set()
    return set()


def test_a_batch_is_reported_with_its_durations_and_rates() -> None:
    clock = ManualClock(1_600_000_000_000)
    reports, posted = reporter(clock)
    reports.start_trigger()
    reports.finish_trigger(0, has_executed=True, sources=[SOURCE], sink=SINK)
    clock.advance(500)
    reports.start_trigger()
    with reports.report_time_taken("walCommit"):
        clock.advance(1)
    for took_ms in (10, 9):
        with reports.report_time_taken("addBatch"):
            clock.advance(took_ms)
    progress = reports.finish_trigger(1, has_executed=True, sources=[SOURCE, SOURCE], sink=SINK)
    assert progress.durationMs == {"addBatch": 19, "triggerExecution": 20, "walCommit": 1}
    assert progress.batchDuration == 20
    assert progress.timestamp == "2020-09-13T12:26:40.500Z"
    assert (str(progress.id), progress["runId"], progress.name) == (ID, RUN_ID, "totals")
    assert progress.numInputRows == 2000
    assert progress.inputRowsPerSecond == 4000.0
    assert progress.processedRowsPerSecond == 100_000.0
    assert progress.sources[0].processedRowsPerSecond == 50_000.0
    assert progress.sources[0].endOffset == "1"
    assert [type(event) for event in posted] == [QueryProgressEvent] * 2
    assert posted[1].progress is reports.last() is progress
    assert json.loads(progress.json)["batchId"] == 1


def test_observed_rows_keep_their_types_and_json_stays_json() -> None:
    reports, _ = reporter(ManualClock())
    row = Row(total=Decimal("1.50"), rows=3)
    progress = reports.finish_trigger(
        0, has_executed=True, sources=[], sink=SINK, observed_metrics={"sums": row}
    )
    assert progress.observedMetrics["sums"].total == Decimal("1.50")
    assert json.loads(progress.json)["observedMetrics"] == {"sums": {"total": 1.5, "rows": 3}}


def test_a_query_without_data_speaks_up_every_ten_seconds() -> None:
    clock = ManualClock()
    reports, posted = reporter(clock)

    def idle() -> None:
        reports.start_trigger()
        reports.finish_trigger(1, has_executed=False, sources=[], sink=SINK)

    idle()
    assert (len(reports.recent()), posted) == (1, [])  # as Spark: kept once, and no event
    reports.finish_trigger(1, has_executed=True, sources=[SOURCE], sink=SINK)
    for _ in range(20):
        clock.advance(1000)
        idle()
    assert [type(event) for event in posted] == [QueryProgressEvent, QueryIdleEvent, QueryIdleEvent]
    assert posted[1].timestamp == "1970-01-01T00:00:10.000Z"
    assert len(reports.recent()) == 4


def test_only_the_last_ones_are_kept() -> None:
    reports, posted = reporter(ManualClock(), retained=3)
    for batch_id in range(5):
        reports.finish_trigger(batch_id, has_executed=True, sources=[], sink=SINK)
    assert [progress.batchId for progress in reports.recent()] == [2, 3, 4]
    assert len(posted) == 5


def test_the_fields_are_sparks(other_session: SparkSession, tmp_path: Path) -> None:
    """Compare the progress of one of Spark's own queries, with state and a watermark, with ours."""
    rows = other_session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = rows.withWatermark("timestamp", "1 second").groupBy("timestamp").count()
    query = counts.writeStream.format("noop").outputMode("update").trigger(once=True).start()
    assert query.awaitTermination(300)
    theirs = next(p for p in query.recentProgress if p.numInputRows)
    reports, _ = reporter(ManualClock())
    for duration in theirs.durationMs:
        reports.add_duration(duration, 1)
    ours = reports.finish_trigger(
        0,
        has_executed=True,
        sources=[
            SourceReport("a", None, {"offset": 1, "timestamp": 2}, {"offset": 1, "timestamp": 2})
        ],
        sink=SINK,
        state_operators=[
            StateOperatorReport(
                "stateStoreSave", custom_metrics=dict(theirs.stateOperators[0].customMetrics)
            )
        ],
        event_time=dict(theirs.eventTime),
    )
    spark_json, our_json = json.loads(theirs.json), json.loads(ours.json)
    for value in (spark_json, our_json):  # what an offset looks like is the source's affair
        for source in value["sources"]:
            for name in ("startOffset", "endOffset", "latestOffset"):
                source[name] = 0
    assert keys(our_json) == keys(spark_json)
    assert set(ours) == set(theirs)
    assert set(ours.sources[0]) == set(theirs.sources[0])
    assert set(ours.stateOperators[0]) == set(theirs.stateOperators[0])
    assert set(ours.sink) == set(theirs.sink)
