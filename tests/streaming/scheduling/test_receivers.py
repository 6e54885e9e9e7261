"""Receivers on real Spark: batches see the records that they store."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import Row

from tests.manual_stream import Stream
from tests.receivers.connectors.broker import Broker
from tests.streaming.program.restarts import Runs
from tests.streaming.scheduling.scripted import scripted
from tests.streaming.scheduling.slow_output import Slow
from tests.waiting import DEADLINE_S, wait_for
from tidemill.common.clock import SystemClock
from tidemill.errors import SetupError, StopTimeoutError, UsageError
from tidemill.receivers import HttpReceiver, MqttReceiver, Receiver
from tidemill.streaming import StreamingContext, StreamingListener
from tidemill.streaming.scheduling.receiver_streams import StreamReceivers
from tidemill.testing import BatchDriver, collected

Setting = Callable[[str, str], None]


@pytest.fixture
def quick(setting: Setting) -> None:
    setting("spark.streaming.blockInterval", "20ms")
    setting("spark.streaming.receiverRestartDelay", "50ms")


class Everything(StreamingListener):
    def __init__(self) -> None:
        self.started: list[Any] = []
        self.errors: list[Any] = []
        self.stopped: list[Any] = []

    def onReceiverStarted(self, receiverStarted: Any) -> None:
        self.started.append(receiverStarted.receiverInfo())

    def onReceiverError(self, receiverError: Any) -> None:
        self.errors.append(receiverError.receiverInfo())

    def onReceiverStopped(self, receiverStopped: Any) -> None:
        self.stopped.append(receiverStopped.receiverInfo())


@pytest.mark.usefixtures("quick")
def test_every_way_to_store(stream: Stream) -> None:
    row = Row(word="a", n=1)
    receiver = scripted(
        [
            lambda r: r.store("single"),
            lambda r: r.storeRecord(["a", "list"]),
            lambda r: r.store(["in", "a", "list"]),
            lambda r: r.store(iter(range(3))),
            lambda r: r.store(b"bytes"),
            lambda r: r.store(
                __import__("pyarrow").RecordBatch.from_pylist([{"word": "a", "n": 1}])
            ),
        ]
    )
    results = collected(stream.ssc.receiverStream(receiver))
    stream.ssc.start()
    stream.driver.wait_received(10)
    stream.driver.run()
    assert sorted(map(repr, results[0])) == sorted(
        map(repr, ["single", ["a", "list"], "in", "a", "list", 0, 1, 2, b"bytes", row])
    )


@pytest.mark.usefixtures("quick")
def test_each_record_is_in_one_batch(stream: Stream) -> None:
    receiver = scripted([lambda r, n=n: r.store([n]) for n in range(60)])
    results = collected(stream.ssc.receiverStream(receiver))
    stream.ssc.start()
    for goal in (20, 40, 60):
        stream.driver.wait_received(goal)
        stream.driver.run()
    assert sorted(n for batch in results for n in batch) == list(range(60))


def lines_server(lines: bytes) -> int:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            connection.sendall(lines)
            connection.recv(1)  # stays open until the receiver closes it

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.mark.usefixtures("quick")
def test_lines_from_a_socket(stream: Stream) -> None:
    port = lines_server("one\ntwo\r\nthrée\rfour\n".encode() + b"caf\xe9\n")
    results = collected(stream.ssc.socketTextStream("127.0.0.1", port))
    stream.ssc.start()
    stream.driver.wait_received(5)
    stream.driver.run()
    assert results == [["one", "two", "thrée", "four", "caf\ufffd"]]


@pytest.mark.usefixtures("quick")
def test_a_converter_and_frames(new_stream: Callable[..., Stream]) -> None:
    first, second = new_stream(), new_stream()
    numbers = collected(
        first.ssc.socketStream(
            "127.0.0.1", lines_server(b"1\n2\n3\n"), lambda file: (int(line) for line in file)
        )
    )
    first.ssc.start()
    first.driver.wait_received(3)
    first.driver.run()
    first.ssc.stop(stopSparkContext=False)
    assert numbers == [[1, 2, 3]]
    frames = collected(
        second.ssc.rawSocketStream("127.0.0.1", lines_server(b"\0\0\0\x03abc\0\0\0\0\0\0\0\1x"))
    )
    second.ssc.start()
    second.driver.wait_received(3)
    second.driver.run()
    assert frames == [[b"abc", b"", b"x"]]


@pytest.mark.usefixtures("quick")
def test_errors_are_reported_and_the_receiver_goes_on(stream: Stream, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")

    def fail_first(r: Any) -> None:
        if not os.path.exists(flag):
            open(flag, "w").close()
            raise ValueError("the first time")

    listener = Everything()
    stream.ssc.addStreamingListener(listener)
    results = collected(
        stream.ssc.receiverStream(scripted([fail_first, lambda r: r.store(["ok"])]))
    )
    stream.ssc.start()
    stream.driver.wait_received(1)
    stream.driver.run()
    assert results == [["ok"]]
    assert "of the receiver failed; it is restarted" in listener.errors[0].lastErrorMessage()
    assert "ValueError: the first time" in listener.errors[0].lastError()
    assert [(info.name(), info.active()) for info in listener.started] == [("Scripted", True)]


@pytest.mark.usefixtures("quick")
def test_a_receiver_that_stops_is_over_and_its_records_are_kept(stream: Stream) -> None:
    listener = Everything()
    stream.ssc.addStreamingListener(listener)
    receiver = scripted([lambda r: r.store("last words"), lambda r: r.stop("enough")])
    results = collected(stream.ssc.receiverStream(receiver))
    stream.ssc.start()
    wait_for(lambda: listener.stopped, "the receiver to stop")
    stream.driver.run()
    stream.driver.run()
    assert results == [["last words"], []]
    assert len(listener.started) == 1


@pytest.mark.usefixtures("quick")
def test_a_killed_worker_is_replaced(stream: Stream, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    path = str(pids)

    def note(r: Any) -> None:
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")

    stream.ssc.receiverStream(scripted([note])).foreachRDD(lambda rdd: None)
    stream.ssc.start()
    wait_for(lambda: len(pids.read_text().split()) == 1, "the receiver")
    os.kill(int(pids.read_text()), signal.SIGKILL)
    wait_for(lambda: len(pids.read_text().split()) == 2, "another receiver")


@pytest.mark.usefixtures("quick")
def test_a_graceful_stop_processes_all_that_was_received(sc: SparkContext) -> None:
    ssc = StreamingContext(sc, 0.2)
    receiver = scripted([lambda r, n=n: r.storeRecord(n) for n in range(5000)])
    results = collected(ssc.receiverStream(receiver))
    ssc.start()
    receivers = ssc._start.receivers
    assert receivers is not None
    wait_for(lambda: receivers.records_received > 0, "records")
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    counted = sorted(n for batch in results for n in batch)
    assert len(counted) == receivers.records_received
    assert counted == list(range(len(counted)))


def test_fewer_cores_than_receivers_and_one_are_refused(stream: Stream) -> None:
    for _ in range(2):
        stream.ssc.receiverStream(scripted([])).pprint()
    with pytest.raises(
        SetupError, match=r"needs one more .* 3 cores, and Spark has 2 .*local\[3\]"
    ):
        stream.ssc.start()


@pytest.mark.parametrize("value", [threading.Lock(), "the SparkContext"], ids=["lock", "context"])
def test_a_receiver_that_cannot_travel_is_refused_by_attribute(
    stream: Stream, sc: SparkContext, value: Any
) -> None:
    receiver = scripted([])
    receiver.helper = sc if value == "the SparkContext" else value  # type: ignore[attr-defined]
    stream.ssc.receiverStream(receiver).pprint()
    with pytest.raises(
        UsageError,
        match=r"receiverStream at test_receivers.py:\d+: the attribute 'helper' of Scripted is a .*onStart",
    ):
        stream.ssc.start()


@pytest.mark.usefixtures("quick")
def test_a_wait_in_vain_ends_with_the_error_of_the_receiver(stream: Stream) -> None:
    def fail(r: Any) -> None:
        raise ValueError("no such luck")

    stream.ssc.receiverStream(scripted([fail])).pprint()
    stream.ssc.start()
    wait_for(lambda: "no such luck" in receivers_of(stream).last_errors(), "the error")
    with pytest.raises(StopTimeoutError, match=r"(?s)0 of 1 records .*ValueError: no such luck"):
        stream.driver.wait_received(1, timeout_s=0.1)


@pytest.mark.parametrize("receiver", ["a name", Receiver, None])
def test_an_object_that_is_no_receiver_is_refused(stream: Stream, receiver: Any) -> None:
    with pytest.raises(UsageError, match="an instance of a subclass of Receiver"):
        stream.ssc.receiverStream(receiver)


@pytest.mark.usefixtures("quick")
def test_received_records_that_were_not_processed_survive(runs: Runs) -> None:
    results = str(runs.results)

    def build(ssc: StreamingContext) -> None:
        receiver = scripted([lambda r: r.store(list(range(100)))])

        def save(time: Any, rdd: Any) -> None:
            import json

            with open(f"{results}/got-{int(time.timestamp())}", "w") as file:
                json.dump(sorted(rdd.collect()), file)

        ssc.receiverStream(receiver).setName("numbers").foreachRDD(save)

    ssc = runs.context(build)
    ssc.start()
    receivers = ssc._start.receivers
    assert receivers is not None
    wait_for(lambda: receivers.records_received == 100, "the records")
    ssc.stop(stopSparkContext=False)
    runs.run(build, 1)
    first = next(iter(runs.written().values()))
    assert first[:100] == sorted([*range(100)])[:100] or first == sorted([*range(100)] * 2)


@pytest.mark.usefixtures("quick")
def test_without_the_log_lost_records_are_counted(
    runs: Runs, setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting("spark.streaming.receiver.writeAheadLog.enable", "false")

    def build(ssc: StreamingContext) -> None:
        ssc.receiverStream(scripted([lambda r: r.store(["x"] * 7)])).foreachRDD(lambda rdd: None)

    ssc = runs.context(build)
    ssc.start()
    assert "writeAheadLog.enable is off" in caplog.text
    receivers = ssc._start.receivers
    assert receivers is not None
    wait_for(lambda: receivers.records_received == 7, "the records")
    ssc.stop(stopSparkContext=False)
    caplog.set_level(logging.WARNING)
    runs.run(build, 1)
    assert "1 blocks with 7 records that receiverStream-1 had received are lost" in caplog.text


@pytest.fixture
def scratch_files() -> Callable[[], list[Path]]:
    def found() -> list[Path]:
        mine = f"tidemill-blocks-{os.getpid()}-*"
        return [*Path("/dev/shm").glob(mine), *Path("/tmp").glob(mine)]

    return found


@pytest.mark.usefixtures("quick")
def test_blocks_of_finished_batches_are_deleted_everywhere(
    runs: Runs, scratch_files: Callable[[], list[Path]]
) -> None:
    def build(ssc: StreamingContext) -> None:
        receiver = scripted([lambda r: r.store(list(range(1000)))])
        ssc.receiverStream(receiver).foreachRDD(lambda rdd: rdd.count())

    ssc = runs.context(build)
    ssc.start()
    driver = BatchDriver(ssc, runs.clock)
    driver.wait_received(1000)
    assert any(path.name.startswith("input-") for f in scratch_files() for path in f.iterdir())
    driver.run()
    for _ in range(3):
        driver.run()
    wait_for(
        lambda: not any(p.name.startswith("input-") for f in scratch_files() for p in f.iterdir()),
        "the blocks to be deleted",
    )
    ssc.stop(stopSparkContext=False)
    assert scratch_files() == []


class Flood:
    """A server that sends lines of 1,000 bytes as fast as it can, and counts them."""

    def __init__(self, lines: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._lines = lines
        self.sent = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        piece = 100
        with suppress(OSError):
            connection, _ = self._server.accept()
            for _ in range(self._lines // piece):
                connection.sendall((b"x" * 999 + b"\n") * piece)
                self.sent += piece
            connection.recv(1)


def test_a_receiver_whose_port_is_taken_says_so_and_ends_as_failed(
    new_stream: Callable[..., Stream],
    setting: Setting,
    quick: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    setting("spark.tidemill.receiver.maxFailedStarts", "3")
    stream = new_stream()
    heard = Everything()
    stream.ssc.addStreamingListener(heard)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stream.ssc.receiverStream(HttpReceiver(port)).pprint()
        stream.ssc.start()
        wait_for(lambda: heard.stopped, "the end of the receiver")
    (info,) = heard.stopped
    assert not info.active()
    assert info.lastErrorMessage() == "it could not start, 3 times in a row"
    reason = f"ReceiverError: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert info.lastError() == reason
    assert len(heard.errors) == 3
    (said,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert said.startswith("the HttpReceiver of receiverStream-1, receiverStream at test_receivers")
    assert said.endswith(f"it could not start, 3 times in a row\n{reason}")


def test_what_a_window_keeps_does_not_hold_the_receiver_back(
    new_stream: Callable[..., Stream], setting: Setting
) -> None:
    """The window has ten times as much as may wait to be processed."""
    setting("spark.tidemill.receiver.maxHeld", "10000")
    stream = new_stream()
    receiver = scripted([lambda r, n=n: r.store([(n, "x" * 10_000)]) for n in range(10)])
    records = stream.ssc.receiverStream(receiver).map(lambda record: record[0])
    windows = collected(records.window(20, 1))
    stream.ssc.start()
    for received in range(1, 11):
        stream.driver.wait_received(received)
        stream.driver.run()
    assert [sorted(window) for window in windows] == [list(range(n)) for n in range(1, 11)]


def test_a_flood_before_a_stalled_job_is_held_back_and_nothing_is_lost(
    new_stream: Callable[..., Stream], setting: Setting
) -> None:
    megabyte = 1 << 20
    setting("spark.tidemill.receiver.maxHeld", str(8 * megabyte))
    setting("spark.streaming.blockQueueSize", "2")
    stream = new_stream()
    flood = Flood(lines=100_000)
    go_on = threading.Event()
    counts: list[int] = []

    def stall(rdd: Any) -> None:
        go_on.wait(DEADLINE_S)
        counts.append(rdd.count())

    stream.ssc.socketTextStream("127.0.0.1", flood.port).foreachRDD(stall)
    stream.ssc.start()
    stream.driver.wait_received(1)
    stream.clock.advance(1000)  # a batch that hangs

    def stands_still() -> bool:
        before = flood.sent
        return before > 0 and not threading.Event().wait(1.0) and flood.sent == before

    wait_for(stands_still, "the sender to be held back")
    # The receiver holds 8 MB, some blocks of 8 MB wait or are being made, the rest is in the sockets.
    assert flood.sent * 1000 < 60 * megabyte
    go_on.set()
    while sum(counts) < 100_000:
        stream.driver.run()
        assert len(counts) < 1000
    assert sum(counts) == 100_000


@pytest.mark.usefixtures("quick")
def test_a_posted_record_is_stored_when_the_post_is_answered(
    stream: Stream, tmp_path: Path
) -> None:
    address = tmp_path / "address"
    results = collected(
        stream.ssc.receiverStream(HttpReceiver(format="json", address_file=str(address)))
    )
    stream.ssc.start()
    wait_for(address.exists, "the receiver to listen")
    request = urllib.request.Request(
        address.read_text().strip(),
        data=b'[{"id": 1}, {"id": 2}]',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        assert (answer.status, json.load(answer)) == (200, {"records": 2})
    stream.driver.run()
    assert results == [[{"id": 1}, {"id": 2}]]


@pytest.mark.usefixtures("quick")
def test_messages_of_a_broker(stream: Stream, tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    try:
        receiver = MqttReceiver("127.0.0.1", broker.port, topics="plant/#", client_id="test")
        results = collected(stream.ssc.receiverStream(receiver))
        stream.ssc.start()
        wait_for(lambda: "SUBACK to test" in broker.log.read_text(), "the subscription")
        # In a process of its own: paho's loop cannot have more than 1,024 files open.
        publish = (
            "import sys; from paho.mqtt import publish; "
            "[publish.single('plant/a', reading, qos=1, hostname='127.0.0.1', port=int(sys.argv[1])) "
            "for reading in ('20.5', '21.0')]"
        )
        subprocess.run(
            [sys.executable, "-c", publish, str(broker.port)], check=True, timeout=DEADLINE_S
        )
        stream.driver.wait_received(2)
        stream.driver.run()
        assert results == [
            [Row(topic="plant/a", payload=b"20.5"), Row(topic="plant/a", payload=b"21.0")]
        ]
    finally:
        stream.ssc.stop(stopSparkContext=False)
        broker.stop()


@pytest.mark.usefixtures("quick")
def test_a_receiver_keeps_to_its_maximum_rate(
    new_stream: Callable[..., Stream], setting: Setting
) -> None:
    setting("spark.streaming.receiver.maxRate", "500")
    stream = new_stream()
    flood = Flood(lines=10_000)
    stream.ssc.socketTextStream("127.0.0.1", flood.port).foreachRDD(lambda rdd: None)
    stream.ssc.start()
    stream.driver.wait_received(1)
    clock = SystemClock()
    before, began_ms = receivers_of(stream).records_received, clock.now_ms()
    stream.driver.wait_received(1000)
    taken = receivers_of(stream).records_received - before
    # A block may have been on its way at the beginning, and one is half full at the end.
    assert taken <= 500 * (clock.now_ms() - began_ms) / 1000 + 100


@pytest.mark.usefixtures("quick")
def test_backpressure_reaches_the_receiver_and_the_next_start(
    new_runs: Callable[[str], Runs], setting: Setting
) -> None:
    setting("spark.streaming.backpressure.enabled", "true")
    setting("spark.streaming.backpressure.initialRate", "1000")
    runs = new_runs("runs")
    Slow.clock = runs.clock

    def build(ssc: StreamingContext) -> None:
        receiver = scripted([lambda r: [r.store(list(range(50))) for _ in range(20)]])

        def slowly(rdd: Any) -> None:
            # Imported here, so that the pickled program has a reference to it and not a copy.
            from tests.streaming.scheduling.slow_output import Slow

            rdd.count()
            Slow.clock.advance(100)

        ssc.receiverStream(receiver).setName("numbers").foreachRDD(slowly)

    def rate(ssc: StreamingContext) -> float | None:
        receivers = ssc._start.receivers
        assert receivers is not None
        return receivers.tracker._registry.get(0).rate

    ssc = runs.context(build)
    ssc.start()
    wait_for(lambda: rate(ssc) == 1000.0, "the first rate")
    driver = BatchDriver(ssc, runs.clock)
    for goal in (200, 400, 600):
        driver.wait_received(goal)
        driver.run()
    wait_for(lambda: rate(ssc) != 1000.0, "a new rate")
    driver.wait_received(1000)
    driver.run()  # logs the rate, and may compute another one
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    logged = max((runs.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    conf = json.loads(logged.read_text().splitlines()[1])["conf"]
    last = json.loads(conf["tidemill.rates"])["numbers"]
    assert last != 1000.0
    again = runs.context(build)
    again.start()
    wait_for(lambda: rate(again) == last, "the rate of before")


def receivers_of(stream: Stream) -> StreamReceivers:
    receivers = stream.ssc._start.receivers
    assert receivers is not None
    return receivers
