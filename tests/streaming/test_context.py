"""The life of a context: every transition, and the calls that each state refuses."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.manual_stream import Stream
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import (
    BatchError,
    IllegalStateError,
    OptionError,
    ProgramError,
    UnsupportedError,
)
from tidemill.streaming import StreamingContext, StreamingListener
from tidemill.streaming.context import StreamingContextState as State
from tidemill.testing import ManualClock, collected


def with_output(stream: Stream) -> StreamingContext:
    stream.ssc.queueStream([[1], [2]]).foreachRDD(lambda rdd: None)
    return stream.ssc


def test_the_ordinary_life(stream: Stream) -> None:
    ssc = with_output(stream)
    assert ssc.getState() is State.INITIALIZED
    assert StreamingContext.getActive() is None
    ssc.start()
    assert ssc.getState() is State.ACTIVE
    assert StreamingContext.getActive() is ssc
    assert not ssc.awaitTerminationOrTimeout(0.01)
    ssc.stop(stopSparkContext=False)
    assert ssc.getState() is State.STOPPED
    assert StreamingContext.getActive() is None
    assert ssc.awaitTerminationOrTimeout(0.01)
    ssc.awaitTermination()


def test_start_twice_does_nothing_the_second_time(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    ssc = with_output(stream)
    ssc.start()
    ssc.start()
    assert ssc.getState() is State.ACTIVE
    assert "already been started" in caplog.text


def test_start_after_stop_is_refused(stream: Stream) -> None:
    ssc = with_output(stream)
    ssc.start()
    ssc.stop(stopSparkContext=False)
    with pytest.raises(IllegalStateError, match="cannot start again: make a new one"):
        ssc.start()


def test_stop_before_start_and_stop_twice(stream: Stream) -> None:
    ssc = with_output(stream)
    ssc.stop(stopSparkContext=False)
    ssc.stop(stopSparkContext=False)
    assert ssc.getState() is State.STOPPED
    with pytest.raises(IllegalStateError, match="stopped"):
        ssc.start()


def test_only_one_context_is_active_at_a_time(new_stream: Callable[..., Stream]) -> None:
    first, second = with_output(new_stream()), with_output(new_stream())
    first.start()
    with pytest.raises(IllegalStateError, match="only one StreamingContext"):
        second.start()
    assert second.getState() is State.INITIALIZED
    first.stop(stopSparkContext=False)
    second.start()
    assert StreamingContext.getActive() is second


def test_stop_from_a_listener_is_refused(stream: Stream) -> None:
    ssc = with_output(stream)
    errors: list[Exception] = []

    class Stopper(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            try:
                ssc.stop()
            except IllegalStateError as error:
                errors.append(error)

    ssc.addStreamingListener(Stopper())
    stream.start_and_run(1)
    assert len(errors) == 1
    assert "from another thread" in str(errors[0])
    assert ssc.getState() is State.ACTIVE


def test_stop_from_an_output_operation(stream: Stream) -> None:
    ssc = stream.ssc
    refused: list[str] = []

    def stop(_: Any) -> None:
        with pytest.raises(IllegalStateError, match="cannot wait for its own batch") as error:
            ssc.stop(stopSparkContext=False, stopGraceFully=True)
        refused.append(str(error.value))
        ssc.stop(stopSparkContext=False)

    ssc.queueStream([[1]]).foreachRDD(stop)
    ssc.start()
    stream.clock.advance(1000)
    assert ssc.awaitTerminationOrTimeout(30)
    assert len(refused) == 1


def test_stop_while_another_thread_stops(stream: Stream) -> None:
    ssc = with_output(stream)
    ssc.start()
    threads = [
        threading.Thread(target=ssc.stop, kwargs={"stopSparkContext": False}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert ssc.getState() is State.STOPPED


def test_no_threads_are_left_behind(stream: Stream) -> None:
    # The bus of an attached session's queries lives as long as the session.
    before = set(threading.enumerate())
    ssc = with_output(stream)
    stream.start_and_run(2)
    ssc.stop(stopSparkContext=False)
    left = [
        t.name
        for t in threading.enumerate()
        if t not in before and t.name.startswith("tidemill-") and t.is_alive()
    ]
    assert left == []


def test_a_graceful_stop_finishes_the_batches_that_have_begun(stream: Stream) -> None:
    entered, release = threading.Event(), threading.Event()
    done: list[Any] = []

    def slow(rdd: Any) -> None:
        entered.set()
        release.wait(DEADLINE_S)
        done.append(rdd.collect())

    stream.ssc.queueStream([[1], [2], [3], [4]]).foreachRDD(slow)
    stream.ssc.start()
    stream.clock.advance(3000)
    assert entered.wait(DEADLINE_S)
    stopping = threading.Thread(target=stream.ssc.stop, args=(False, True))
    stopping.start()
    release.set()
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
    stream.clock.advance(10_000)
    assert done == [[1], [2], [3]]


def test_a_stop_without_grace_ends_the_running_batch_and_drops_the_waiting_ones(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    entered = threading.Event()
    begun: list[int] = []

    def forever(rdd: Any) -> None:
        begun.append(1)
        entered.set()

        def sleep(x: int) -> int:
            import time

            time.sleep(600)
            return x

        rdd.map(sleep).collect()

    stream.ssc.queueStream([[1], [2], [3]]).foreachRDD(forever)
    stream.ssc.start()
    stream.clock.advance(3000)
    assert entered.wait(DEADLINE_S)
    stream.ssc.stop(stopSparkContext=False)
    assert begun == [1]
    assert "still running" not in caplog.text
    assert stream.ssc.awaitTerminationOrTimeout(0), "a cancelled batch is no error of the program"


def test_a_stop_ends_jobs_that_the_program_has_put_into_a_group_of_its_own(
    stream: Stream, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"

    def forever(rdd: Any) -> None:
        def sleep(x: int) -> int:
            import time

            runs.touch()
            time.sleep(600)
            return x

        rdd.context.setJobGroup("reports", "a group of the user's")
        rdd.map(sleep).collect()

    stream.ssc.queueStream([[1]]).foreachRDD(forever)
    stream.ssc.start()
    stream.clock.advance(1000)
    wait_for(runs.exists, "the job")
    stream.ssc.stop(stopSparkContext=False)
    assert "still running" not in caplog.text


def test_a_graceful_stop_gives_up_after_its_timeout(
    sc: SparkContext, caplog: pytest.LogCaptureFixture, setting: Callable[[str, str], None]
) -> None:
    setting("spark.streaming.gracefulStopTimeout", "200ms")
    clock = ManualClock()
    ssc = StreamingContext(sc, 0.02, clock=clock)
    entered, release = threading.Event(), threading.Event()

    def hang(_: Any) -> None:
        entered.set()
        release.wait(DEADLINE_S)

    ssc.queueStream([[1]]).foreachRDD(hang)
    ssc.start()
    clock.advance(20)
    assert entered.wait(DEADLINE_S)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    release.set()
    assert "still unfinished after 0.2 s" in caplog.text
    assert ssc.getState() is State.STOPPED


@pytest.mark.parametrize("interval", [0, -1, None, "1", float("nan")])
def test_a_batch_interval_that_makes_no_sense_is_refused(sc: SparkContext, interval: Any) -> None:
    with pytest.raises(OptionError, match="batchDuration") as caught:
        StreamingContext(sc, interval)
    assert caught.value.option == "batchDuration"


def test_a_session_is_not_a_spark_context(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match=r"has one as its \.sparkContext"):
        StreamingContext(spark, 1)  # type: ignore[arg-type]


def test_there_is_no_java_context_to_wrap(sc: SparkContext) -> None:
    with pytest.raises(UnsupportedError, match="leave out jssc"):
        StreamingContext(sc, 1, object())


def test_a_context_without_inputs_or_outputs_does_not_start(
    new_stream: Callable[..., Stream],
) -> None:
    with pytest.raises(ProgramError, match="no input stream"):
        new_stream().ssc.start()
    stream = new_stream()
    stream.ssc.queueStream([[1]]).map(str)
    with pytest.raises(ProgramError, match="no output operation is registered"):
        stream.ssc.start()
    stream = new_stream()
    stream.ssc.queueStream([[1]]).pprint()
    stream.ssc.start()


def test_a_start_that_fails_its_checks_leaves_the_context_stopped_as_in_spark(
    stream: Stream,
) -> None:
    with pytest.raises(ProgramError):
        stream.ssc.start()
    assert stream.ssc.getState() is State.STOPPED
    assert StreamingContext.getActive() is None
    with pytest.raises(IllegalStateError, match="has been stopped and cannot start again"):
        stream.ssc.start()


def test_checkpointing_can_be_switched_off(stream: Stream, tmp_path: Path) -> None:
    ssc = with_output(stream)
    ssc.checkpoint(str(tmp_path / "c"))
    ssc.checkpoint(None)
    ssc.start()
    stream.driver.run()
    assert not (tmp_path / "c").exists()


def test_nothing_can_be_added_after_start_or_stop(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1]])
    numbers.foreachRDD(lambda rdd: None)
    stream.ssc.start()
    for state in ("started", "stopped"):
        for add in (
            lambda: stream.ssc.queueStream([[2]]),
            lambda: numbers.map(str),
            lambda: numbers.pprint(),
            lambda: numbers.cache(),
            lambda: numbers.window(2),
        ):
            with pytest.raises(IllegalStateError, match=f"has been {state}"):
                add()
        stream.ssc.stop(stopSparkContext=False)


def test_get_active_or_create(new_stream: Callable[..., Stream], tmp_path: Path) -> None:
    made: list[StreamingContext] = []

    def setup() -> StreamingContext:
        made.append(with_output(new_stream()))
        return made[-1]

    first = StreamingContext.getActiveOrCreate(None, setup)
    assert made == [first]
    first.start()
    assert StreamingContext.getActiveOrCreate(None, setup) is first
    assert StreamingContext.getActiveOrCreate(str(tmp_path), setup) is first
    first.stop(stopSparkContext=False)
    second = StreamingContext.getActiveOrCreate(str(tmp_path), setup)
    assert made == [first, second]
    with pytest.raises(TypeError, match="callable"):
        StreamingContext.getActiveOrCreate(None, None)  # type: ignore[arg-type]


def test_a_checkpoint_of_sparks_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1600000000000").touch()
    with pytest.raises(UnsupportedError, match="checkpoint of Spark's own DStreams"):
        StreamingContext.getOrCreate(str(tmp_path), lambda: pytest.fail("not to be called"))


def test_remember_and_slice(stream: Stream) -> None:
    stream.ssc.remember(3)
    numbers = stream.ssc.queueStream([[n] for n in range(1, 7)])
    with pytest.raises(ProgramError, match="has not been started"):
        numbers.slice(1, 2)
    numbers.foreachRDD(lambda rdd: None)
    stream.start_and_run(6)
    assert [rdd.collect() for rdd in numbers.slice(5, 6)] == [[5], [6]]
    assert [rdd.collect() for rdd in numbers.slice(0, 5.5)][-1] == [5]
    assert len(numbers.slice(0, 100)) == 3, "what is no longer remembered is gone"


def test_rdd_checkpoints_need_a_directory(stream: Stream, sc: SparkContext) -> None:
    sc.setCheckpointDir(None)  # type: ignore[arg-type]  # an earlier stream may have set it
    numbers = stream.ssc.queueStream([[1], [2], [3]])
    doubled = numbers.map(lambda n: n * 2).checkpoint(2)
    checkpointed: list[bool] = []

    def look(rdd: Any) -> None:
        rdd.count()
        checkpointed.append(rdd.isCheckpointed())

    doubled.foreachRDD(look)
    with pytest.raises(ProgramError, match=r"call StreamingContext\.checkpoint"):
        stream.ssc.start()
    assert stream.ssc.getState() is State.STOPPED


def test_rdd_checkpoints_at_their_interval(stream: Stream, tmp_path: Path) -> None:
    stream.ssc.checkpoint(str(tmp_path))
    doubled = stream.ssc.queueStream([[1], [2], [3], [4]]).map(lambda n: n * 2).checkpoint(2)
    checkpointed: list[bool] = []

    def look(rdd: Any) -> None:
        rdd.count()
        checkpointed.append(rdd.isCheckpointed())

    doubled.foreachRDD(look)
    stream.start_and_run(4)
    assert checkpointed == [False, True, False, True]
    assert stat.S_IMODE((tmp_path / "rdds").stat().st_mode) == 0o700  # nobody else may look into it


def test_rdd_checkpoints_are_deleted_when_nothing_needs_them(
    stream: Stream, tmp_path: Path
) -> None:
    stream.ssc.checkpoint(str(tmp_path))
    numbers = stream.ssc.queueStream([[n] for n in range(1, 26)])
    often = numbers.map(lambda n: n * 2).checkpoint(1)
    seldom = numbers.map(lambda n: n * 3).checkpoint(4)
    windows = collected(often.window(3, 1).union(seldom.window(6, 1)))
    stream.ssc.start()
    kept = []
    for _ in range(25):
        stream.driver.run(1)
        kept.append(len(list(tmp_path.glob("rdds/*/rdd-*"))))
    assert windows[-1] == [46, 48, 50, 60, 63, 66, 69, 72, 75]
    assert 2 <= max(kept[12:]) <= max(kept[:12]) + 1 <= 12


def test_a_checkpoint_interval_must_fit_the_slide(stream: Stream, tmp_path: Path) -> None:
    stream.ssc.checkpoint(str(tmp_path))
    stream.ssc.queueStream([[1]]).checkpoint(1.5).pprint()
    with pytest.raises(ProgramError, match="checkpoint interval of 1500 ms is not a multiple"):
        stream.ssc.start()


def test_a_bad_setting_is_refused_at_start_by_its_name(
    stream: Stream, setting: Callable[[str, str], None]
) -> None:
    ssc = with_output(stream)
    setting("spark.streaming.concurrentJobs", "plenty")
    with pytest.raises(Exception, match=r"spark\.streaming\.concurrentJobs is 'plenty'"):
        ssc.start()
    assert ssc.getState() is State.STOPPED


def test_a_failed_batch_is_raised_from_every_wait(stream: Stream) -> None:
    stream.ssc.queueStream([["x"]]).foreachRDD(lambda rdd: int("x"))
    stream.ssc.start()
    stream.clock.advance(1000)
    with pytest.raises(BatchError):
        stream.ssc.awaitTermination(30)
    with pytest.raises(BatchError):
        stream.ssc.awaitTerminationOrTimeout(30)
    assert stream.ssc.getState() is State.ACTIVE, "it is the program's to decide what follows"


def test_results_wait_for_the_manual_clock(stream: Stream) -> None:
    results = collected(stream.ssc.queueStream([[1], [2]]))
    stream.ssc.start()
    assert results == []
    stream.driver.run(1)
    assert results == [[1]]


def test_slice_rounds_both_ends_down(stream: Stream) -> None:
    stream.ssc.remember(10)
    numbers = stream.ssc.queueStream([[n] for n in range(1, 5)])
    collected(numbers)
    stream.start_and_run(4)
    assert [rdd.collect() for rdd in numbers.slice(1.5, 3.5)] == [[1], [2], [3]]


def test_a_graceful_stop_inside_transform_is_refused(stream: Stream) -> None:
    def stop(rdd: Any) -> Any:
        stream.ssc.stop(stopSparkContext=False, stopGraceFully=True)
        return rdd

    collected(stream.ssc.queueStream([[1]]).transform(stop))
    stream.ssc.start()
    with pytest.raises(BatchError, match="cannot wait for its own batch"):
        stream.driver.run(1)
