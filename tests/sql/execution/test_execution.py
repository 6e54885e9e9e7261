from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StructField, StructType

import tidemill
from tests.sql.batches import Batches, advance, first_trigger, stopped_at_end
from tests.sql.execution.numbers import read, rows
from tests.waiting import DEADLINE_S, wait_for
from tidemill.batches.batch import RangeSize
from tidemill.batches.table_source import SplitSource
from tidemill.sources.registry import unregister_source
from tidemill.testing import ManualClock, MemoryStream

EVERY_SECOND = {"processingTime": "1 second"}


# -- intervals -----------------------------------------------------------------------------------------


def test_batches_begin_at_the_boundaries_of_the_interval(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(300), Batches()
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    with stopped_at_end(query):
        first_trigger(query)
        numbers.add(rows(1))
        clock.advance(699)  # one millisecond before the boundary
        numbers.add(rows(2))
        assert batches.rows == {}
        advance(query, clock, 1)
        numbers.add(rows(3))
        advance(query, clock, 1000)
        assert [batches.values(0), batches.values(1)] == [[1, 2], [3]]
        assert [p.timestamp for p in query.recentProgress if p.numInputRows] == [
            "1970-01-01T00:00:01.000Z",
            "1970-01-01T00:00:02.000Z",
        ]


def test_a_batch_that_takes_longer_is_followed_at_once_and_none_is_made_up_for(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock = ManualClock()

    def take_long(df: Any, batch_id: int) -> None:
        if batch_id == 0:
            clock.advance(3_400)
            numbers.add(rows(2))

    batches = Batches(on_batch=take_long)
    numbers.add(rows(1))
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    with stopped_at_end(query):
        batches.wait(2)
        numbers.add(rows(3))
        advance(query, clock, 600)
        assert [batches.values(n) for n in range(3)] == [[1], [2], [3]]
        assert [p.timestamp[17:-1] for p in query.recentProgress] == ["00.000", "03.400", "04.000"]


def test_there_is_no_batch_without_data(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(), Batches()
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    with stopped_at_end(query):
        first_trigger(query)
        for _ in range(3):
            advance(query, clock, 1000)
        numbers.add(rows(1))
        advance(query, clock, 1000)
        advance(query, clock, 1000)
    assert batches.runs == [0]
    assert sorted(file.name for file in (tmp_path / "c" / "offsets").glob("[0-9]*")) == ["0"]


def test_all_available_is_processed_while_the_clock_stands_still(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(), Batches()
    hourly = {"processingTime": "1 hour"}
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=hourly, clock=clock)
    with stopped_at_end(query):
        query.processAllAvailable()
        numbers.add(rows(1))
        query.processAllAvailable()
        numbers.add(rows(2))
        query.processAllAvailable()
        assert batches.sizes == [1, 1]


def test_all_available_is_processed_while_another_thread_moves_the_clock(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(), Batches()
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    over = threading.Event()

    def move() -> None:
        while not over.wait(0.001):
            clock.advance(250)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        with stopped_at_end(query):
            for value in range(5):
                numbers.add(rows(value))
                query.processAllAvailable()
                assert sum(batches.sizes) == value + 1
    finally:
        over.set()
        mover.join()


def test_waiting_for_all_data_inside_of_a_batch_is_refused(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    refused: list[BaseException] = []

    def wait_for_itself(df: Any, batch_id: int) -> None:
        for call in (batches.query.processAllAvailable, batches.query.verify):
            with pytest.raises(RuntimeError, match="would wait for itself") as error:
                call()
            refused.append(error.value)

    batches = Batches(on_batch=wait_for_itself)
    with stopped_at_end(batches.start(read(spark, numbers), tmp_path / "c")):
        numbers.add(rows(1))
        batches.query.processAllAvailable()
    assert len(refused) == 2


# -- once and available now ----------------------------------------------------------------------------


def test_once_is_one_batch_whatever_limits_say(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text(f"{name}\n")
    files = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    batches = Batches()
    for _ in range(2):
        query = batches.start(files, tmp_path / "c", trigger={"once": True})
        assert query.awaitTermination(60)
    assert batches.runs == [0]
    assert batches.values(0) == ["a", "b", "c"]


def test_available_now_reads_what_is_there_in_batches_of_their_limits(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for second, name in enumerate("abc"):
        (tmp_path / "in" / name).write_text(f"{name}\n")
        os.utime(tmp_path / "in" / name, (1_772_366_400 + second,) * 2)
    numbers.add(rows(1, 2))

    def more(df: Any, batch_id: int) -> None:
        numbers.add(rows(99))
        (tmp_path / "in" / f"later-{batch_id}").write_text("later\n")

    files = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    batches = Batches(on_batch=more)
    both = files.union(read(spark, numbers).select(sql.col("n").cast("string").alias("value")))
    query = batches.start(both, tmp_path / "c", trigger={"availableNow": True})
    assert query.awaitTermination(60)
    assert [batches.values(n) for n in sorted(batches.rows)] == [["1", "2", "a"], ["b"], ["c"]]


class Endless(SplitSource):
    """Always has ten rows more, and cannot stop at what there is now."""

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any, time_ms: int) -> Any:
        return start + 10

    def size(self, range_: Any) -> RangeSize:
        return RangeSize(range_.end - range_.start)

    def splits(self, range_: Any, parallelism: int) -> list[Any]:
        return [[range_.start, range_.end]]

    def split_reader(self) -> Any:
        return read_endless


def read_endless(split: Any) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array(range(*split), pa.int64())})


@pytest.fixture
def endless() -> Iterator[str]:
    tidemill.register_source("endless", lambda options: Endless())
    yield "endless"
    unregister_source("endless")


def test_available_now_ends_with_a_source_that_never_does(
    spark: SparkSession, endless: str, tmp_path: Path
) -> None:
    batches, df = Batches(), spark.readStream.format(endless).load()
    for _ in range(2):
        query = batches.start(df, tmp_path / "c", trigger={"availableNow": True})
        assert query.awaitTermination(60)
    assert [batches.values(n) for n in (0, 1)] == [list(range(10)), list(range(10, 20))]


def test_a_graceful_stop_ends_with_a_source_that_never_does(
    spark: SparkSession, endless: str, tmp_path: Path
) -> None:
    batches = Batches()
    query = batches.start(spark.readStream.format(endless).load(), tmp_path / "c")
    wait_for(lambda: len(batches.rows) > 1, "two batches")
    query.stop(graceful=True, timeout=DEADLINE_S)
    assert not query.isActive
    read_so_far = sorted(row[0] for batch in batches.rows.values() for row in batch)
    assert read_so_far == list(range(len(read_so_far)))


# -- batches without data ------------------------------------------------------------------------------


def windows(df: Any) -> Any:
    times = df.select(sql.timestamp_seconds("n").alias("time"))
    counted = times.withWatermark("time", "10 seconds").groupBy(sql.window("time", "10 seconds"))
    return counted.count().select(sql.unix_timestamp("window.start").alias("start"), "count")


def test_a_batch_without_data_closes_the_windows_that_the_watermark_has_passed(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    with stopped_at_end(batches.start(windows(read(spark, numbers)), tmp_path / "c")):
        numbers.add(rows(1, 2, 35))
        batches.query.processAllAvailable()
        assert batches.rows == {0: [], 1: [(0, 2)]}
        numbers.add(rows(34))  # the watermark stays
        batches.query.processAllAvailable()
        assert batches.runs == [0, 1, 2]


def test_without_batches_without_data_windows_wait_for_the_next_rows(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        batches = Batches()
        with stopped_at_end(batches.start(windows(read(spark, numbers)), tmp_path / "c")):
            numbers.add(rows(1, 2, 35))
            batches.query.processAllAvailable()
            assert batches.rows == {0: []}
            numbers.add(rows(34))
            batches.query.processAllAvailable()
            assert batches.rows == {0: [], 1: [(0, 2)]}
    finally:
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")


@pytest.mark.parametrize("mode", ["complete", "append"])
def test_a_watermark_that_closes_nothing_makes_no_batches(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path, mode: str
) -> None:
    df = read(spark, numbers)
    if mode == "complete":
        df = windows(df)
    else:
        times = df.select(sql.timestamp_seconds("n").alias("time"))
        df = times.withWatermark("time", "10 seconds").where("second(time) >= 0")
    batches = Batches()
    with stopped_at_end(batches.start(df, tmp_path / "c", mode=mode)):
        numbers.add(rows(1, 100))
        batches.query.processAllAvailable()
        numbers.add(rows(200))
        batches.query.processAllAvailable()
    assert batches.runs == [0, 1]


def test_the_last_window_is_closed_by_the_run_after(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    """A query that stopped before its batch without data runs that batch after its restart."""
    batches = Batches()
    numbers.add(rows(1, 35))
    for _ in range(3):
        df = windows(read(spark, numbers))
        batches.start(df, tmp_path / "c", trigger={"once": True}).awaitTermination()
    assert batches.rows == {0: [], 1: [(0, 1)]}


# -- idle ----------------------------------------------------------------------------------------------


def test_an_idle_query_says_so_now_and_then(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(), Batches()
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock)
    with stopped_at_end(query):
        first_trigger(query)
        numbers.add(rows(7))
        advance(query, clock, 1000)
        for _ in range(25):
            advance(query, clock, 1000)
        at = [(p.timestamp[14:19], p.batchId, p.numInputRows) for p in query.recentProgress]
        assert at == [("00:00", 0, 0), ("00:01", 0, 1), ("00:11", 1, 0), ("00:21", 1, 0)]
        assert query.status["message"] == "Waiting for data to arrive"


def test_a_query_without_an_interval_takes_rows_as_they_come(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    with stopped_at_end(batches.start(read(spark, numbers), tmp_path / "c")):
        for value in range(3):
            numbers.add(rows(value))
            wait_for(lambda seen=value: len(batches.rows) > seen, "a batch")  # type: ignore[misc]
    assert batches.sizes == [1, 1, 1]


def test_jobs_carry_the_call_that_started_their_query(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(df: Any, batch_id: int) -> None:
        context = df.sparkSession.sparkContext
        for form in ("short", "long"):
            seen.append(str(context.getLocalProperty(f"callSite.{form}")))
        context.parallelize([1]).count()  # PySpark takes it away

    writer = read(spark, numbers).writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with stopped_at_end(query):
        for value in range(2):
            numbers.add(rows(value))
            query.processAllAvailable()
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "str(tmp_path)).start()" in text
    )
    assert seen == [f"start at test_execution.py:{line}"] * 4


def test_progress_says_what_a_source_has_and_not_where_the_batch_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = MemoryStream("n long", keep=True)
    batches = Batches(on_batch=lambda df, batch_id: stream.add(rows(8, 9)) if not batch_id else 0)
    stream.add(rows(1))
    query = batches.start(read(spark, stream), tmp_path, trigger={"once": True})
    query.awaitTermination(60)
    (source,) = query.recentProgress[-1].sources
    stream.close()
    assert (source.endOffset, source.latestOffset) == ("1", "2")
