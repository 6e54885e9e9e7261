from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType

from tests.sql.batches import Batches, first_trigger, stopped_at_end
from tests.sql.execution.numbers import read, rows
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import StopTimeoutError
from tidemill.sql.query_errors import QueryFailedError
from tidemill.testing import ManualClock, MemoryStream

# -- waiting for the end -------------------------------------------------------------------------------


def test_waiting_for_the_end_of_a_query(spark: SparkSession, numbers: MemoryStream) -> None:
    query = Batches().start(read(spark, numbers))
    assert query.awaitTermination(0.01) is False
    threading.Timer(0.05, query.stop).start()
    assert query.awaitTermination() is None
    assert query.awaitTermination(1) is True
    assert query.status["message"] == "Stopped"
    assert query.exception() is None


def test_waiting_for_the_end_of_any_query(spark: SparkSession, numbers: MemoryStream) -> None:
    spark.streams.resetTerminated()
    fails = Batches(on_batch=lambda df, n: 1 / 0)
    lasting = Batches().start(read(spark, numbers).where("n < 0"))
    with stopped_at_end(lasting):
        assert spark.streams.awaitAnyTermination(0.01) is False
        failing = fails.start(read(spark, numbers))
        numbers.add(rows(1))
        with pytest.raises(QueryFailedError, match="ZeroDivisionError") as error:
            spark.streams.awaitAnyTermination()
        assert f"id = {failing.id}" in str(error.value)
        with pytest.raises(QueryFailedError, match="ZeroDivisionError"):
            failing.awaitTermination(60)
        spark.streams.resetTerminated()
        assert spark.streams.awaitAnyTermination(0.01) is False
    assert spark.streams.awaitAnyTermination(60) is True
    spark.streams.resetTerminated()


def test_finishing_ends_a_query_after_the_running_batch(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(df: Any, batch_id: int) -> None:
        begun.set()
        go.wait(DEADLINE_S)

    batches = Batches(on_batch=wait)
    query = batches.start(read(spark, numbers), tmp_path)
    assert query._running_batch is None
    numbers.add(rows(1))
    assert begun.wait(DEADLINE_S)
    numbers.add(rows(2))
    assert query._running_batch == f"batch 0 of the query {query.id}"
    finishing = threading.Thread(target=query._finish, args=(60,))
    finishing.start()
    wait_for(lambda: query.status["message"] == "Stopping after the running batch", "the request")
    go.set()
    finishing.join(DEADLINE_S)
    assert not query.isActive
    assert query.exception() is None
    assert batches.runs == [0]
    again = batches.start(read(spark, numbers), tmp_path)
    with stopped_at_end(again):
        again.processAllAvailable()
    assert batches.runs == [0, 1]


def test_stopping_twice_and_from_inside(spark: SparkSession, numbers: MemoryStream) -> None:
    batches = Batches(on_batch=lambda df, n: batches.query.stop())
    query = batches.start(read(spark, numbers))
    numbers.add(rows(1))
    assert query.awaitTermination(60) is True
    query.stop()
    query.stop(graceful=True)
    assert batches.runs == [0]
    assert not query.isActive


# -- stopping during a batch ---------------------------------------------------------------------------


def test_a_batch_that_runs_is_abandoned_and_runs_again_with_the_same_rows(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    started = tmp_path / "started"

    @sql.udf("long")
    def slow(n: int) -> int:
        if not os.path.exists(started):
            with open(started, "w"):
                pass
            threading.Event().wait(600)
        return n

    batches = Batches()
    df = read(spark, numbers).select(slow("n").alias("n"))
    query = batches.start(df, tmp_path / "c")
    numbers.add(rows(1, 2))
    wait_for(started.exists, "the batch")
    numbers.add(rows(3))
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
    assert query.exception() is None
    assert batches.rows == {}
    assert not (tmp_path / "c" / "commits").exists() or not list((tmp_path / "c/commits").iterdir())
    spark.range(3).count()  # the jobs of this thread are not cancelled
    again = batches.start(df, tmp_path / "c")
    with stopped_at_end(again):
        again.processAllAvailable()
    assert [batches.values(0), batches.values(1)] == [[1, 2], [3]]
    assert (again.id, again.runId != query.runId) == (query.id, True)


def test_a_graceful_stop_processes_what_has_arrived(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(df: Any, batch_id: int) -> None:
        began.set()
        assert go_on.wait(DEADLINE_S)

    batches = Batches(on_batch=wait)
    numbers.add(rows(1))
    hourly = {"processingTime": "1 hour"}
    query = batches.start(read(spark, numbers), tmp_path / "c", trigger=hourly, clock=ManualClock())
    assert began.wait(DEADLINE_S)
    numbers.add(rows(2))
    with pytest.raises(StopTimeoutError, match=r"has not stopped within 0\.01 s"):
        query.stop(graceful=True, timeout=0.01)
    assert query.isActive
    go_on.set()
    query.stop(graceful=True)
    assert [batches.values(n) for n in batches.runs] == [[1], [2]]
    assert not query.isActive


def test_a_graceful_stop_that_takes_too_long_can_be_cut_short(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(df: Any, batch_id: int) -> None:
        began.set()
        go_on.wait(DEADLINE_S)

    batches = Batches(on_batch=wait)
    numbers.add(rows(1))
    query = batches.start(read(spark, numbers), tmp_path / "c")
    assert began.wait(DEADLINE_S)
    numbers.add(rows(2))
    with pytest.raises(StopTimeoutError, match=r"Call stop\(\) again without graceful"):
        query.stop(graceful=True, timeout=0.01)
    with pytest.raises(StopTimeoutError, match="a function of the program has not returned"):
        query.stop(timeout=0.01)
    threading.Timer(0.1, go_on.set).start()
    query.stop()
    assert query.exception() is None
    # The function had been called: the checkpoint decides whether its batch counts.
    assert 1 not in batches.rows


# -- failures ------------------------------------------------------------------------------------------


def test_a_query_that_failed_goes_on_where_it_was(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    broken = True

    def fail(df: Any, batch_id: int) -> None:
        if broken and batch_id == 1:
            raise ValueError("no room")

    batches = Batches(on_batch=fail)
    query = batches.start(read(spark, numbers), tmp_path / "c", name="failing")
    numbers.add(rows(1))
    query.processAllAvailable()
    numbers.add(rows(2))
    with pytest.raises(QueryFailedError, match="no room"):
        query.processAllAvailable()
    assert not query.isActive
    assert "no room" in str(query.exception())
    assert query.status["message"].startswith("Terminated with exception")
    numbers.add(rows(3))
    broken = False
    again = batches.start(read(spark, numbers), tmp_path / "c", name="failing")
    with stopped_at_end(again):
        again.processAllAvailable()
    assert batches.runs == [0, 1, 1, 2]
    assert [batches.values(n) for n in range(3)] == [[1], [2], [3]]
    assert again.id == query.id


def test_a_temporary_checkpoint_lives_as_long_as_it_is_needed(
    spark: SparkSession, numbers: MemoryStream
) -> None:
    def location(query: Any) -> Path:
        return Path(query._execution._spec.checkpoint)

    fine = Batches().start(read(spark, numbers).where("n < 0"))
    failing = Batches(on_batch=lambda df, n: 1 / 0).start(read(spark, numbers))
    assert location(fine).is_dir()
    numbers.add(rows(1))
    with pytest.raises(QueryFailedError):
        failing.awaitTermination(60)
    fine.stop()
    assert not location(fine).exists()
    assert (location(failing) / "offsets" / "0").exists()


# -- many ----------------------------------------------------------------------------------------------


def test_names_and_ids_in_the_session(spark: SparkSession, numbers: MemoryStream) -> None:
    for _ in range(2):
        query = Batches().start(read(spark, numbers), name="taken")
        assert [q.name for q in spark.streams.active] == ["taken"]
        assert spark.streams.get(query.id) is query  # type: ignore[comparison-overlap]
        with pytest.raises(Exception, match="a query with that name is already active"):
            Batches().start(read(spark, numbers), name="taken")
        query.stop()
        assert spark.streams.active == []
        assert spark.streams.get(query.id) is None


def test_many_queries_started_by_several_threads(spark: SparkSession, tmp_path: Path) -> None:
    threads = threading.active_count()
    streams = [MemoryStream("k long, n long", keep=True) for _ in range(10)]
    batches = [Batches() for _ in streams]
    errors: list[BaseException] = []

    def start(numbers: range) -> None:
        for i in numbers:
            df = spark.readStream.format(streams[i].name).load()
            grouped = df.groupBy("k").agg(sql.sum("n").alias("s"))
            pool = {"mode": "complete", "name": f"many-{i}"}
            try:
                batches[i].start(grouped, tmp_path / str(i), **pool)
            except BaseException as error:
                errors.append(error)

    starters = [threading.Thread(target=start, args=(range(i, 10, 3),)) for i in range(3)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert errors == []
    assert len(spark.streams.active) == 10
    try:
        for round_ in range(2):
            for i, stream in enumerate(streams):
                stream.add([(k, i) for k in range(3)])
            for each in batches:
                each.query.processAllAvailable()
            for i, each in enumerate(batches):
                latest = each.rows[max(each.rows)]
                assert sorted(tuple(row) for row in latest) == [
                    (k, i * (round_ + 1)) for k in range(3)
                ]
    finally:
        for each in batches:
            each.query.stop()
        for stream in streams:
            stream.close()
    assert spark.streams.active == []
    wait_for(lambda: threading.active_count() <= threads + 3, "threads that end")


def test_a_query_works_in_the_pool_of_the_thread_that_started_it(
    spark: SparkSession, numbers: MemoryStream
) -> None:
    @sql.udf(StringType())
    def pool(n: int) -> str | None:
        context = TaskContext.get()
        assert context is not None
        return context.getLocalProperty("spark.scheduler.pool")

    sc = spark.sparkContext
    found = {}
    numbers.add(rows(1))
    for name in ("fast", "slow"):
        sc.setLocalProperty("spark.scheduler.pool", name)
        sc.setJobGroup("mine", "of the caller")
        batches = Batches()
        with stopped_at_end(batches.start(read(spark, numbers).select(pool("n")))):
            batches.query.processAllAvailable()
        found[name] = batches.values(0)
    assert found == {"fast": ["fast"], "slow": ["slow"]}
    # This thread's job group is not the query's, and still works.
    assert sc.getLocalProperty("spark.jobGroup.id") == "mine"
    spark.range(3).count()
    for key in ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description"):
        sc.setLocalProperty(key, None)  # type: ignore[arg-type]


def test_nothing_is_left_open(spark: SparkSession, numbers: MemoryStream, tmp_path: Path) -> None:
    def run() -> None:
        batches = Batches()
        df = read(spark, numbers).groupBy("n").count()
        with stopped_at_end(batches.start(df, tmp_path / "c", mode="update")):
            numbers.add(rows(1))
            batches.query.processAllAvailable()

    run()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run()
    wait_for(lambda: threading.active_count() <= threads, "threads that end")
    # Py4J keeps connections to the JVM for the next thread that needs one.
    assert len(os.listdir("/proc/self/fd")) <= files + 10


def test_a_start_that_fails_gives_everything_back(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    first = batches.start(read(spark, numbers), tmp_path / "c", name="first")
    with stopped_at_end(first):
        numbers.add(rows(1))
        first.processAllAvailable()
    threads = threading.active_count()
    (tmp_path / "c" / "commits" / "0").write_text("")
    with pytest.raises(Exception, match="commits/0"):
        batches.start(read(spark, numbers), tmp_path / "c", name="second")
    assert spark.streams.active == []
    wait_for(lambda: threading.active_count() <= threads, "threads that end")
    (tmp_path / "c" / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    again = batches.start(read(spark, numbers), tmp_path / "c", name="second")
    with stopped_at_end(again):
        first_trigger(again)
    assert batches.runs == [0]
