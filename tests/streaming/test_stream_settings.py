"""Settings of streams and receivers, by what each of them changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.manual_stream import Stream
from tests.streaming.program.restarts import Runs, save
from tests.streaming.scheduling.scripted import scripted
from tests.waiting import wait_for
from tidemill.streaming import StreamingContext, StreamingListener
from tidemill.testing import BatchDriver, collected

Setting = Callable[[str, str], None]
NewStream = Callable[..., Stream]


@pytest.mark.parametrize(("unpersist", "stay"), [("true", 3), ("false", 8)])
def test_windows_with_an_inverse_are_unpersisted_only_if_wanted(
    sc: SparkContext, setting: Setting, new_stream: NewStream, unpersist: str, stay: int
) -> None:
    setting("spark.streaming.unpersist", unpersist)
    before = set(sc._jsc.getPersistentRDDs())
    stream = new_stream()
    pairs = stream.ssc.queueStream([[("k", n)] for n in range(8)])
    totals = collected(pairs.reduceByKeyAndWindow(add, sub, 3))
    stream.start_and_run(8)
    assert totals[-1] == [("k", 18)]
    states = [
        rdd for key, rdd in sc._jsc.getPersistentRDDs().items() if key not in before
    ]  # of windows and of blocks, of which a window of three needs a few more
    stream.ssc.stop(stopSparkContext=False)
    for rdd in states:
        rdd.unpersist(False)
    assert (len(states) >= 2 * stay) is (unpersist == "false")


@pytest.mark.parametrize("unpersist", ["true", "false"])
def test_received_records_can_be_read_after_their_batch_if_wanted(
    setting: Setting, new_stream: NewStream, unpersist: str
) -> None:
    setting("spark.streaming.unpersist", unpersist)
    setting("spark.streaming.blockInterval", "20ms")
    stream = new_stream()
    kept: list[Any] = []
    receiver = scripted([lambda r: r.store(list(range(10)))])
    stream.ssc.receiverStream(receiver).foreachRDD(kept.append)
    stream.ssc.start()
    stream.driver.wait_received(10)
    stream.driver.run(4)
    if unpersist == "false":
        assert sorted(kept[0].collect()) == list(range(10))
    else:
        with pytest.raises(Exception, match="cannot be read"):
            kept[0].collect()


@pytest.mark.parametrize(("remember", "lines"), [("10s", []), ("2min", ["y"])])
def test_older_files_are_ignored(
    tmp_path: Path, setting: Setting, new_stream: NewStream, remember: str, lines: list[str]
) -> None:
    setting("spark.streaming.fileStream.minRememberDuration", remember)
    stream = new_stream(start_ms=1_772_366_400_000)
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    read = collected(stream.ssc.textFileStream(str(incoming)))
    staged = tmp_path / "staged"
    staged.write_text("y\n")
    written_s = stream.clock.now_ms() / 1000 - 50
    os.utime(staged, (written_s, written_s))
    staged.rename(incoming / "recent")
    stream.start_and_run(2)
    assert read == [lines, []]


def test_so_many_events_wait_for_a_slow_listener(setting: Setting, new_stream: NewStream) -> None:
    setting("spark.scheduler.listenerbus.eventqueue.capacity", "3")
    stream = new_stream()

    class Slow(StreamingListener):
        """Takes until events have been dropped."""

        def onStreamingStarted(self, streamingStarted: Any) -> None:
            wait_for(lambda: stream.ssc._bus.dropped > 0, "an event to be dropped")

    stream.ssc.addStreamingListener(Slow())
    stream.ssc.queueStream([[n] for n in range(5)]).foreachRDD(lambda rdd: None)
    stream.start_and_run(5)
    assert stream.ssc._bus.dropped > 0


def files_of_blocks(folder: str) -> list[Path]:
    return [
        path
        for path in Path(folder).glob(f"tidemill-blocks-{os.getpid()}-*/*")
        if path.name.startswith("input-")
    ]


@pytest.mark.parametrize(("memory", "folder"), [("1m", "/dev/shm"), ("0", "/tmp")])
def test_blocks_stay_in_as_much_memory_as_they_may(
    setting: Setting, new_stream: NewStream, memory: str, folder: str
) -> None:
    setting("spark.tidemill.receiver.memory", memory)
    stream = new_stream()
    receiver = scripted([lambda r: r.store(list(range(1000)))])
    stream.ssc.receiverStream(receiver).foreachRDD(lambda rdd: None)
    stream.ssc.start()
    stream.driver.wait_received(1000)
    assert len(files_of_blocks(folder)) == 1


def test_the_log_begins_a_new_file_when_it_is_told(setting: Setting, runs: Runs) -> None:
    setting("spark.streaming.receiver.writeAheadLog.rollingIntervalSecs", "7")

    def build(ssc: StreamingContext) -> None:
        receiver = scripted([lambda r: r.store(["a"])])
        ssc.receiverStream(receiver).foreachRDD(lambda rdd: None)

    ssc = runs.context(build)
    ssc.start()
    BatchDriver(ssc, runs.clock).wait_received(1)
    (segment,) = runs.checkpoint.glob("received/data/*/*.log")
    _, first_ms, until_ms, _ = segment.name.split("-")
    assert int(until_ms) - int(first_ms) == 7000


def test_a_block_is_cut_and_a_receiver_restarted_as_often_as_they_are_told(
    setting: Setting, new_stream: NewStream
) -> None:
    setting("spark.streaming.blockInterval", "1h")
    setting("spark.streaming.receiverRestartDelay", "1h")
    stream = new_stream()
    errors: list[str] = []

    class Errors(StreamingListener):
        def onReceiverError(self, receiverError: Any) -> None:
            errors.append(receiverError.receiverInfo().lastErrorMessage())

    def fail(receiver: Any) -> None:
        raise ValueError("no")

    stream.ssc.addStreamingListener(Errors())
    results = collected(
        stream.ssc.receiverStream(scripted([lambda r: r.store("a"), lambda r: r.store("b"), fail]))
    )
    stream.ssc.start()
    wait_for(lambda: errors, "the error")
    assert "it is restarted in 3600000 ms" in errors[0]
    # The records wait for the end of the interval, or of the receiver.
    stream.driver.run()
    assert results == [[]]
    receivers = stream.ssc._start.receivers
    assert receivers is not None
    assert receivers.stop_receiving(30)
    stream.driver.run()
    assert results == [[], ["a", "b"]]


def test_a_log_that_hangs_is_given_up_after_the_timeout(setting: Setting, runs: Runs) -> None:
    setting("spark.streaming.receiver.blockStoreTimeout", "300ms")
    setting("spark.streaming.receiver.writeAheadLog.maxFailures", "2")

    def hang(receiver: Any) -> None:

        from tidemill.checkpoint import local_storage

        answer, tries = threading.Event(), []
        before = local_storage._sync_data
        local_storage._sync_data = lambda handle: (tries.append(handle), answer.wait(60))
        try:
            receiver.store(["x"])
            error = "none"
        except TimeoutError as late:
            error = str(late)
        finally:
            local_storage._sync_data = before
            answer.set()
        receiver.store([[len(tries), error]])

    def build(ssc: StreamingContext) -> None:
        save(ssc.receiverStream(scripted([hang])), results)

    results = runs.results
    ssc = runs.context(build)
    ssc.start()
    driver = BatchDriver(ssc, runs.clock)
    driver.wait_received(1)
    driver.run()
    ((found,),) = runs.written().values()
    assert found[0] == 2, "as often as it was told"
    assert "has not taken a record within 0.3 s" in found[1]
