"""The order of batches, their events, their names in Spark, and the RDDs that are kept of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from operator import add
from typing import Any

import pytest
from pyspark import SparkContext

from tests.manual_stream import Stream
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import BatchError
from tidemill.progress.batch_info import BatchInfo
from tidemill.streaming import StreamingListener
from tidemill.testing import collected


class Everything(StreamingListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        self.events.append(("streaming started", streamingStarted.time()))

    def onBatchSubmitted(self, batchSubmitted: Any) -> None:
        self.events.append(("batch submitted", batchSubmitted.batchInfo()))

    def onBatchStarted(self, batchSubmitted: Any) -> None:
        self.events.append(("batch started", batchSubmitted.batchInfo()))

    def onBatchCompleted(self, batchCompleted: Any) -> None:
        self.events.append(("batch completed", batchCompleted.batchInfo()))

    def onOutputOperationStarted(self, outputOperationStarted: Any) -> None:
        self.events.append(("output started", outputOperationStarted.outputOperationInfo()))

    def onOutputOperationCompleted(self, outputOperationCompleted: Any) -> None:
        self.events.append(("output completed", outputOperationCompleted.outputOperationInfo()))

    def of(self, kind: str) -> list[Any]:
        return [info for name, info in self.events if name == kind]

    @property
    def batches(self) -> list[BatchInfo]:
        return self.of("batch completed")


@pytest.fixture
def listener(stream: Stream) -> Everything:
    listener = Everything()
    stream.ssc.addStreamingListener(listener)
    return listener


def test_the_events_of_a_batch_come_in_order(stream: Stream, listener: Everything) -> None:
    numbers = stream.ssc.queueStream([[1, 2, 3]])
    numbers.foreachRDD(lambda rdd: stream.clock.advance(70))
    numbers.map(str).pprint()
    stream.ssc.start()
    stream.driver.run(1)
    assert [name for name, _ in listener.events] == [
        "streaming started", "batch submitted", "batch started",
        "output started", "output completed", "output started", "output completed",
        "batch completed",
    ]  # fmt: skip
    (submitted,), (started,), (completed,) = (
        listener.of(f"batch {state}") for state in ("submitted", "started", "completed")
    )
    assert submitted.batchTime().milliseconds() == 1000
    assert (submitted.processingStartTime(), submitted.numRecords()) == (-1, 3)
    assert (started.schedulingDelay(), started.processingDelay()) == (0, -1)
    assert (completed.schedulingDelay(), completed.processingDelay(), completed.totalDelay()) == (
        0,
        70,
        70,
    )
    assert completed.streamIdToInputInfo()[0].numRecords() == 3
    assert (
        "queueStream at test_scheduling.py"
        in completed.streamIdToInputInfo()[0].metadata()["source"]
    )
    first, second = (completed.outputOperationInfos()[id_] for id_ in (0, 1))
    assert (first.name(), second.name()) == ("foreachRDD", "pprint")
    assert "foreachRDD at test_scheduling.py:" in first.description()
    assert (first.duration(), second.duration()) == (70, 0)
    assert first.failureReason() is None


def test_a_slow_batch_makes_the_next_ones_wait_and_never_overlaps(
    stream: Stream, listener: Everything
) -> None:
    running = threading.Semaphore(1)
    release = threading.Event()
    seen: list[list[int]] = []

    def slow(rdd: Any) -> None:
        assert running.acquire(blocking=False), "two batches at once"
        release.wait(DEADLINE_S)
        seen.append(rdd.collect())
        running.release()

    stream.ssc.queueStream([[n] for n in range(4)]).foreachRDD(slow)
    stream.ssc.start()
    stream.clock.advance(4000)
    release.set()
    stream.driver.run(0)
    assert seen == [[0], [1], [2], [3]]
    assert [info.batch_time_ms for info in listener.batches] == [1000, 2000, 3000, 4000]


def test_concurrent_jobs_run_at_once(
    setting: Callable[[str, str], None], stream: Stream, listener: Everything
) -> None:
    setting("spark.streaming.concurrentJobs", "2")
    both = threading.Barrier(2)
    numbers = stream.ssc.queueStream([[1]])
    numbers.foreachRDD(lambda rdd: both.wait(DEADLINE_S))
    numbers.foreachRDD(lambda rdd: both.wait(DEADLINE_S))
    stream.start_and_run(1)
    assert listener.batches[0].failures == {}


def test_listeners_hear_why_an_operation_failed_and_the_stream_goes_on(
    stream: Stream, listener: Everything
) -> None:
    numbers = stream.ssc.queueStream([[1], [0], [2]])
    results: list[float] = []
    numbers.foreachRDD(lambda rdd: results.append(1 / rdd.first()))
    after = collected(numbers)
    stream.ssc.start()
    with pytest.raises(BatchError, match="ZeroDivisionError"):
        stream.driver.run(3)
    assert results == [1.0, 0.5]
    assert after == [[1], [0], [2]]
    assert [sorted(info.failures) for info in listener.batches] == [[], [0], []]
    assert "ZeroDivisionError" in listener.batches[1].outputOperationInfos()[0].failureReason()


def test_a_batch_between_two_slides_is_no_event(stream: Stream, listener: Everything) -> None:
    results = collected(stream.ssc.queueStream([[n] for n in range(4)]).window(2, 2))
    stream.start_and_run(4)
    assert [sorted(result) for result in results] == [[0, 1], [2, 3]]
    assert [info.batch_time_ms for info in listener.batches] == [2000, 4000]


def test_jobs_are_named_after_their_batch_in_sparks_ui(sc: SparkContext, stream: Stream) -> None:
    names: list[tuple[str | None, ...]] = []

    def look(rdd: Any) -> None:
        keys = ("spark.job.description", "spark.jobGroup.id", "spark.streaming.internal.batchTime",
                "spark.streaming.internal.outputOpId", "spark.scheduler.pool")  # fmt: skip
        names.append(tuple(sc.getLocalProperty(key) for key in keys))
        rdd.count()
        statuses = sc.statusTracker().getJobIdsForGroup(names[-1][1])
        assert len(statuses) == 1

    sc.setLocalProperty("spark.scheduler.pool", "streams")
    sc.setJobGroup("mine", "not the stream's")
    try:
        stream.ssc.queueStream([[1]]).foreachRDD(look)
        stream.start_and_run(1)
    finally:
        sc.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
        sc.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        sc.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    ((description, group, batch_time, op_id, pool),) = names
    assert description is not None
    assert "batch of " in description
    assert ", output operation 0: foreachRDD at test_scheduling.py:" in description
    assert str(group).endswith("-1000")
    assert (batch_time, op_id, pool) == ("1000", "0", "streams")


def test_old_rdds_are_forgotten_and_unpersisted(sc: SparkContext, stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[n] for n in range(10)]).map(lambda n: n + 1).cache()
    kept: list[Any] = []

    def remember(rdd: Any) -> None:
        rdd.count()
        kept.append(rdd)

    numbers.foreachRDD(remember)
    stream.start_and_run(10)
    assert list(numbers._node.generated) == [10_000]
    assert [rdd.is_cached for rdd in kept] == [False] * 9 + [True]
    persistent = sc._jsc.getPersistentRDDs()
    assert [rdd.id() in persistent for rdd in kept] == [False] * 9 + [True]


def test_unpersist_can_be_switched_off(
    setting: Callable[[str, str], None], new_stream: Callable[..., Stream]
) -> None:
    setting("spark.streaming.unpersist", "false")
    stream = new_stream()
    kept: list[Any] = []
    stream.ssc.queueStream([[1], [2], [3]]).map(str).cache().foreachRDD(kept.append)
    stream.start_and_run(3)
    assert all(rdd.is_cached for rdd in kept)
    for rdd in kept:
        rdd.unpersist()


def test_an_rdd_the_user_cached_stays_cached(sc: SparkContext, stream: Stream) -> None:
    mine = sc.parallelize([1, 2]).cache()
    table = sc.parallelize([("a", 1)]).cache()
    numbers = stream.ssc.queueStream([mine]).cache()
    results = collected(numbers)
    collected(numbers.transform(lambda rdd: table))
    stream.start_and_run(5)
    assert results[0] == [1, 2]
    assert mine.is_cached
    assert table.is_cached
    mine.unpersist()
    table.unpersist()


def test_windows_keep_the_rdds_they_need_and_no_more(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[("k", n)] for n in range(20)])
    mapped = numbers.map(lambda pair: pair)
    collected(mapped.window(5))
    collected(mapped.reduceByKeyAndWindow(add, lambda a, b: a - b, 3))
    stream.start_and_run(20)
    assert len(mapped._node.generated) <= 7
    assert len(numbers._node.generated) <= 7


def test_a_failing_transform_is_reported_with_its_batch_and_the_next_batch_runs(
    stream: Stream, listener: Everything
) -> None:
    def sometimes(rdd: Any) -> Any:
        if rdd.first() == 2:
            raise KeyError("no such table")
        return rdd

    results = collected(stream.ssc.queueStream([[1], [2], [3]]).transform(sometimes))
    stream.ssc.start()
    with pytest.raises(BatchError, match="while its jobs were made") as error:
        stream.driver.run(3)
    assert error.value.batch_time_ms == 2000
    assert "KeyError: 'no such table'" in str(error.value)
    assert results == [[1], [3]]


def test_a_diamond_of_many_levels_costs_no_more_than_its_nodes(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1]])
    doubled = numbers
    for _ in range(12):
        doubled = doubled.transformWith(lambda a, b: a, doubled)
    results = collected(doubled)
    stream.start_and_run(2)
    assert results == [[1], []]


def test_a_thousand_idle_batches_leave_nothing_behind(stream: Stream) -> None:
    stream.ssc.queueStream([]).map(str).foreachRDD(lambda rdd: None)
    stream.start_and_run(1000)
    run = stream.ssc._run
    assert run is not None
    assert run.pipeline._job_sets == {}
    assert len(run._runner._readable) <= 1
    assert all(len(node.generated) <= 1 for node in stream.ssc._graph._nodes)


def test_batches_that_end_out_of_order_are_all_announced_and_forgotten(
    setting: Callable[[str, str], None], stream: Stream, listener: Everything
) -> None:
    setting("spark.streaming.concurrentJobs", "2")
    second_is_over = threading.Event()
    results: list[list[int]] = []

    def run(rdd: Any) -> None:
        records = rdd.collect()
        if records == [1]:
            assert second_is_over.wait(DEADLINE_S)
        results.append(records)
        if records == [2]:
            second_is_over.set()

    stream.ssc.queueStream([[1], [2], [3]]).foreachRDD(run)
    stream.ssc.start()
    stream.clock.advance(2000)
    assert second_is_over.wait(DEADLINE_S)
    stream.driver.run(1)
    assert results[0] == [2]
    assert sorted(results) == [[1], [2], [3]]
    assert sorted(info.batch_time_ms for info in listener.batches) == [1000, 2000, 3000]
    assert all(info.num_records == 1 for info in listener.batches)
    stream.ssc.stop(stopSparkContext=False, stopGraceFully=True)


def test_properties_set_by_one_output_operation_do_not_reach_the_next(
    sc: SparkContext, stream: Stream
) -> None:
    seen: list[str | None] = []

    def leave_a_trace(rdd: Any) -> None:
        seen.append(sc.getLocalProperty("spark.scheduler.pool"))
        sc.setLocalProperty("spark.scheduler.pool", "mine")

    numbers = stream.ssc.queueStream([[1], [2]])
    numbers.foreachRDD(leave_a_trace)
    numbers.foreachRDD(leave_a_trace)
    stream.start_and_run(2)
    assert seen == [None] * 4


def test_sys_exit_in_a_function_is_an_error_not_a_dead_stream(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1], [2], [3]])
    numbers.transform(lambda rdd: sys.exit(4) if rdd.first() == 1 else rdd).pprint()
    numbers.foreachRDD(lambda rdd: sys.exit(3) if rdd.first() == 2 else None)
    after = collected(numbers)
    stream.ssc.start()
    with pytest.raises(BatchError, match="SystemExit: 4"):
        stream.driver.run(3)
    assert after == [[2], [3]]


def test_windows_are_whole_when_batches_run_at_once(
    new_stream: Callable[..., Stream], setting: Callable[[str, str], None]
) -> None:
    """Jobs are made in the order of batches, however many of them run at the same time."""
    setting("spark.streaming.concurrentJobs", "3")
    stream = new_stream()
    batches = 12
    order: list[float] = []
    plain: dict[Any, int] = {}
    reduced: dict[Any, int] = {}

    def note(time: Any, rdd: Any) -> Any:
        order.append(time.timestamp())
        return rdd

    source = stream.ssc.queueStream([[("k", 1)] for _ in range(batches)]).transform(note)
    source.window(3, 1).foreachRDD(lambda t, rdd: plain.update({t: rdd.count()}))
    source.reduceByKeyAndWindow(lambda a, b: a + b, lambda a, b: a - b, 3, 1).foreachRDD(
        lambda t, rdd: reduced.update({t: dict(rdd.collect())["k"]})
    )
    stream.start_and_run(batches)
    assert order == sorted(order)
    expected = [1, 2, *[3] * (batches - 2)]
    assert [plain[time] for time in sorted(plain)] == expected
    assert [reduced[time] for time in sorted(reduced)] == expected


def test_a_slice_has_the_batches_that_wait(stream: Stream) -> None:
    stream.ssc.remember(100)
    began, go_on = threading.Event(), threading.Event()

    def block(rdd: Any) -> None:
        began.set()
        assert go_on.wait(DEADLINE_S)

    numbers = stream.ssc.queueStream([[1], [2], [3]])
    numbers.foreachRDD(block)
    stream.ssc.start()
    stream.clock.advance(3000)
    try:
        assert began.wait(DEADLINE_S)
        wait_for(lambda: len(numbers.slice(1, 3)) == 3, "the plans of all batches")
        assert [rdd.collect() for rdd in numbers.slice(1, 3)] == [[1], [2], [3]]
    finally:
        go_on.set()


def test_a_stop_while_jobs_are_made_leaves_no_thread(
    new_stream: Callable[..., Stream], setting: Callable[[str, str], None]
) -> None:
    setting("spark.streaming.concurrentJobs", "3")
    before = set(threading.enumerate())
    stream = new_stream()
    inside, go_on = threading.Event(), threading.Event()

    def slow(rdd: Any) -> Any:
        inside.set()
        assert go_on.wait(DEADLINE_S)
        return rdd

    stream.ssc.queueStream([[1]]).transform(slow).foreachRDD(lambda rdd: rdd.count())
    stream.ssc.start()
    stream.clock.advance(1000)
    assert inside.wait(DEADLINE_S)
    threading.Timer(0.2, go_on.set).start()
    stream.ssc.stop(stopSparkContext=False)
    wait_for(
        lambda: not any("tidemill" in t.name for t in set(threading.enumerate()) - before),
        "all threads of the stream to end",
    )


def test_a_graceful_stop_finishes_its_batches_although_a_function_stops(stream: Stream) -> None:
    seen: list[Any] = []
    inside, go_on = threading.Event(), threading.Event()

    def look(rdd: Any) -> None:
        seen.append(rdd.collect())
        if len(seen) == 1:
            inside.set()
            assert go_on.wait(DEADLINE_S)
            stream.ssc.stop(stopSparkContext=False)

    stream.ssc.queueStream([[1], [2], [3]]).foreachRDD(look)
    stream.ssc.start()
    stream.clock.advance(3000)
    assert inside.wait(DEADLINE_S)
    stopping = threading.Thread(
        target=stream.ssc.stop, kwargs={"stopSparkContext": False, "stopGraceFully": True}
    )
    stopping.start()
    wait_for(lambda: stream.ssc._is_stopping, "the graceful stop to begin")
    go_on.set()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
    assert seen == [[1], [2], [3]]
