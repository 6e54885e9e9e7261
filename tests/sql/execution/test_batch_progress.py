from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from tests.sql.batches import Batches, advance, first_trigger, stopped_at_end
from tests.sql.execution.numbers import read, rows
from tests.waiting import wait_for
from tidemill.testing import ManualClock, MemoryStream

EVERY_SECOND = {"processingTime": "1 second"}


def windows(df: Any) -> Any:
    times = df.select(sql.timestamp_seconds("n").alias("time"))
    return (
        times.withWatermark("time", "10 seconds").groupBy(sql.window("time", "10 seconds")).count()
    )


def test_rows_of_each_source_and_of_the_sink(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("7\n8\n9\n")
    files = spark.readStream.text(str(tmp_path / "in")).selectExpr("CAST(value AS long) AS n")
    numbers.add(rows(1, 2))
    both = files.union(read(spark, numbers)).where("n != 8")
    query = both.writeStream.format("memory").queryName("both").start()
    with stopped_at_end(query):
        query.processAllAvailable()
        (tmp_path / "in" / "b").write_text("10\n")
        query.processAllAvailable()
        first, second = (p for p in query.recentProgress if p.numInputRows)
    assert (first.numInputRows, first.sink.numOutputRows) == (5, 4)
    assert (second.numInputRows, second.sink.numOutputRows) == (1, 1)
    assert [source.numInputRows for source in first.sources] == [3, 2]
    assert [source.numInputRows for source in second.sources] == [1, 0]
    assert first.sources[0].description.startswith("FileStreamSource[file:")
    assert first.sources[1].description == f"MemoryStream[{numbers.name}]"
    assert first.sink.description == "MemorySink"
    # Offsets as Spark prints them: JSON, and null before the first batch.
    assert [(s.startOffset, s.endOffset) for s in first.sources] == [
        ("null", '{"logOffset": 0}'),
        ("null", "1"),
    ]
    assert [(s.startOffset, s.endOffset) for s in second.sources] == [
        ('{"logOffset": 0}', '{"logOffset": 1}'),
        ("1", "1"),
    ]
    assert json.loads(second.json)["sources"][0]["endOffset"] == {"logOffset": 1}


def test_times_and_rates(spark: SparkSession, numbers: MemoryStream, tmp_path: Path) -> None:
    clock = ManualClock()
    batches = Batches(on_batch=lambda df, n: clock.advance(400))
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    with stopped_at_end(query):
        first_trigger(query)
        numbers.add(rows(*range(100)))
        advance(query, clock, 1000)
        numbers.add(rows(*range(200)))
        advance(query, clock, 600)
        progress = query.lastProgress
    assert progress is not None
    assert progress.batchDuration == 400
    durations = progress.durationMs
    assert durations["addBatch"] == durations["triggerExecution"] == 400
    assert set(durations) == {
        "latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets",
        "triggerExecution",
    }  # fmt: skip
    assert sum(durations.values()) == 800
    assert progress.processedRowsPerSecond == 500
    assert progress.inputRowsPerSecond == 200
    assert progress.timestamp == "1970-01-01T00:00:02.000Z"


def test_state_watermark_and_event_times(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    with stopped_at_end(batches.start(windows(read(spark, numbers)), tmp_path / "c")):
        numbers.add(rows(1, 2, 35))
        batches.query.processAllAvailable()
        numbers.add(rows(3, 36))
        batches.query.processAllAvailable()
        executed = [p for p in batches.query.recentProgress if "addBatch" in p.durationMs]
        first, closing, late, *_ = executed
    assert first.eventTime == {
        "watermark": "1970-01-01T00:00:00.000Z",
        "max": "1970-01-01T00:00:35.000Z",
        "min": "1970-01-01T00:00:01.000Z",
        "avg": "1970-01-01T00:00:12.666Z",
    }
    assert closing.eventTime == {"watermark": "1970-01-01T00:00:25.000Z"}
    (operator,) = first.stateOperators
    assert operator.operatorName == "stateStoreSave"
    assert (operator.numRowsTotal, operator.numRowsUpdated) == (2, 2)
    assert operator.numStateStoreInstances == 2
    (operator,) = closing.stateOperators
    assert (operator.numRowsTotal, operator.numRowsRemoved) == (1, 1)
    (operator,) = late.stateOperators
    assert (operator.numRowsDroppedByWatermark, operator.numRowsTotal) == (1, 1)


def test_observed_metrics(spark: SparkSession, numbers: MemoryStream, tmp_path: Path) -> None:
    seen: list[Row] = []

    class Metrics(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryIdle(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            seen.append(event.progress.observedMetrics["watched"])

    listener = Metrics()
    spark.streams.addListener(listener)
    df = read(spark, numbers).observe(
        "watched", sql.count("*").alias("rows"), sql.max("n").alias("largest")
    )
    try:
        with stopped_at_end(Batches().start(df, tmp_path / "c")):
            (query,) = spark.streams.active
            numbers.add(rows(4, 9))
            query.processAllAvailable()
            wait_for(lambda: seen, "the metrics")
            assert json.loads(query.lastProgress.json)["observedMetrics"] == {
                "watched": {"rows": 2, "largest": 9}
            }
    finally:
        spark.streams.removeListener(listener)
    assert seen == [Row(rows=2, largest=9)]


def test_progress_after_a_restart_goes_on_counting(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    numbers.add(rows(1))
    for _ in range(2):
        query = batches.start(read(spark, numbers), tmp_path / "c")
        with stopped_at_end(query):
            query.processAllAvailable()
    idle = query.lastProgress
    assert idle is not None
    assert (idle.batchId, idle.numInputRows) == (1, 0)
    assert idle.sources[0].startOffset == idle.sources[0].endOffset == "1"


class Recorder(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.append(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.append(event)


class Raising(Recorder):
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        raise ValueError("a listener of bad temper")

    onQueryStarted = onQueryIdle = onQueryTerminated = onQueryProgress  # type: ignore[assignment]


def test_listeners_are_told_in_order_and_hurt_nobody(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    listener, raising = Recorder(), Raising()
    clock, batches = ManualClock(5000), Batches()
    spark.streams.addListener(raising)
    spark.streams.addListener(listener)
    try:
        query = batches.start(
            read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock, name="heard"
        )
        with stopped_at_end(query):
            assert [type(event) for event in listener.events] == [QueryStartedEvent]
            first_trigger(query)
            numbers.add(rows(1))
            advance(query, clock, 1000)
            for _ in range(10):
                advance(query, clock, 1000)
        wait_for(lambda: len(listener.events) == 4, "all events")
    finally:
        spark.streams.removeListener(raising)
        spark.streams.removeListener(listener)
    started, progressed, idle, terminated = listener.events
    assert isinstance(started, QueryStartedEvent)
    assert (started.name, started.timestamp) == ("heard", "1970-01-01T00:00:05.000Z")
    assert isinstance(progressed, QueryProgressEvent)
    assert isinstance(progressed.progress, StreamingQueryProgress)
    assert progressed.progress.numInputRows == 1
    assert isinstance(idle, QueryIdleEvent)
    assert idle.timestamp == "1970-01-01T00:00:16.000Z"
    assert isinstance(terminated, QueryTerminatedEvent)
    assert terminated.exception is None
    ids = {(str(e.id), str(e.runId)) for e in (started, idle, terminated)}
    assert ids == {(query.id, query.runId)}


def test_listeners_hear_why_a_query_has_ended(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    listener = Recorder()
    spark.streams.addListener(listener)
    try:
        query = Batches(on_batch=lambda df, n: 1 / 0).start(read(spark, numbers), tmp_path / "c")
        numbers.add(rows(1))
        wait_for(lambda: len(listener.events) == 2, "the end")
    finally:
        spark.streams.removeListener(listener)
    assert "ZeroDivisionError" in listener.events[-1].exception
    assert query.exception() is not None
