"""Receivers as formats of queries, on a real Spark."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tests.receivers.connectors.broker import Broker
from tests.sql.batches import Batches, session_settings, stopped_at_end
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import UnsupportedError
from tidemill.receivers import Receiver, register_receiver
from tidemill.receivers.driver.tracker import ReceiverTracker
from tidemill.sources.registry import unregister_source
from tidemill.sql.query_errors import QueryFailedError


@pytest.fixture(autouse=True)
def quick_blocks(spark: SparkSession) -> Iterator[None]:
    with session_settings(spark, {"spark.streaming.blockInterval": "20ms"}):
        yield


class Post:
    """A client of a query's HTTP receiver, which writes its address into a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, *lines: str) -> None:
        """Send lines and return when they are durable."""
        wait_for(self.file.exists, "the receiver")
        body = "\n".join(lines).encode()
        request = urllib.request.Request(self.file.read_text().strip(), body, method="POST")
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            assert answer.status in (200, 202)


def all_values(batches: Batches) -> list[str]:
    return sorted(str(row[0]) for rows in batches.rows.values() for row in rows)


def test_what_an_http_receiver_has_accepted_is_processed_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Through a failed batch, a stop, and rows that came while no query processed them."""
    broken = True

    def fail(df: Any, batch_id: int) -> None:
        if broken and df.where("value = 'b'").count():
            raise ValueError("not yet")

    post, batches = Post(tmp_path / "address"), Batches(on_batch=fail)
    lines = (
        spark.readStream.format("http")
        .option("port", 0)
        .option("addressFile", str(post.file))
        .load()
    )
    query = batches.start(lines, tmp_path / "c")
    post("a")
    wait_for(lambda: all_values(batches) == ["a"], "the first line")
    post("b", "c")
    with pytest.raises(QueryFailedError, match="not yet"):
        query.awaitTermination(60)
    failed = max(batches.runs)
    broken = False
    wait_for(lambda: not post.file.exists(), "the receiver to stop")
    query = batches.start(lines, tmp_path / "c")
    post("d")
    wait_for(lambda: len(all_values(batches)) == 4, "all lines")
    query.stop()
    assert all_values(batches) == ["a", "b", "c", "d"]
    assert batches.runs.count(failed) == 2
    assert query.lastProgress is not None
    assert "Receiver[http: HttpReceiver]" in query.lastProgress.sources[0].description


def test_a_stateful_query_over_a_socket_goes_on(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = spark.readStream.format("socket-receiver").option("host", "127.0.0.1")
        df = lines.option("port", server.getsockname()[1]).load()
        counts = df.groupBy(sql.length("value").alias("n")).count()
        batches = Batches()
        for sent, expected in ((b"a\nb\n", {1: 2}), (b"c\ndd\n", {1: 3, 2: 1})):
            query = batches.start(counts, tmp_path / "c", mode="complete")
            connection, _ = server.accept()
            connection.sendall(sent)
            wait_for(
                lambda want=expected: (
                    batches.rows  # type: ignore[misc]
                    and {row[0]: row[1] for row in batches.rows[max(batches.rows)]} == want
                ),
                "the lines",
            )
            with pytest.raises(UnsupportedError, match="input of a socket-receiver stream is gone"):
                query.verify()
            query.stop()
            connection.close()
        # A receiver that is cancelled before it is told to stop would connect once more.
        assert "started again" not in caplog.text
        with pytest.raises(UnsupportedError, match="cannot be read without starting it"):
            df.count()


def test_messages_of_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    broker = Broker(tmp_path / "broker")
    try:
        messages = (
            spark.readStream.format("mqtt")
            .option("host", "127.0.0.1")
            .option("port", broker.port)
            .option("topics", "plant/#")
            .option("clientId", "tidemill-query-test")
            .load()
        )
        batches = Batches()
        df = messages.select(sql.concat("topic", sql.lit(" "), sql.col("payload").cast("string")))
        for number in range(2):
            query = batches.start(df, tmp_path / "c")
            with stopped_at_end(query):
                if number == 0:
                    wait_for(lambda: broker.subscribers() == 1, "the subscription")
                broker.publish([("plant/a", f"{number}".encode())])
                wait_for(lambda n=number: len(all_values(batches)) > n, "it")  # type: ignore[misc]
        assert all_values(batches) == ["plant/a 0", "plant/a 1"]
    finally:
        broker.stop()


def readings(run: Callable[[Any], None]) -> Receiver:
    """Return a receiver of a class that is defined here, so that the class itself travels to the worker."""

    class Readings(Receiver):
        def __init__(self) -> None:
            super().__init__(StorageLevel.MEMORY_AND_DISK)

        def onStart(self) -> None:
            import threading

            threading.Thread(target=run, args=(self,), daemon=True).start()

        def onStop(self) -> None:
            pass

    return Readings()


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    names: list[str] = []

    def register(run: Callable[[Any], None], schema: str | None = None) -> str:
        name = f"readings-{len(names)}"
        register_receiver(name, lambda options: readings(run), schema)
        names.append(name)
        return name

    yield register
    for name in names:
        unregister_source(name)


def test_a_receiver_of_the_user_with_columns(
    spark: SparkSession, registered: Callable[..., str]
) -> None:
    def run(receiver: Any) -> None:
        receiver.store({"sensor": "a", "value": 1.5})
        receiver.store({"sensor": "b"})

    name = registered(run, "sensor string, value double")
    df = spark.readStream.format(name).load()
    assert df.schema.simpleString() == "struct<sensor:string,value:double>"
    batches = Batches()
    with stopped_at_end(batches.start(df)):
        wait_for(lambda: len(all_values(batches)) == 2, "the readings")
    found = sorted(tuple(row) for rows in batches.rows.values() for row in rows)
    assert found == [("a", 1.5), ("b", None)]
    as_json = Batches()
    with stopped_at_end(as_json.start(spark.readStream.format(registered(run)).load())):
        wait_for(lambda: len(all_values(as_json)) == 2, "the readings")
    assert json.loads(all_values(as_json)[0]) == {"sensor": "a", "value": 1.5}


def test_the_rate_reaches_the_receiver(
    spark: SparkSession, registered: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    update_rate = ReceiverTracker.update_rate

    def tell(self: ReceiverTracker, stream_id: int, rate: float) -> None:
        told.append(rate)
        update_rate(self, stream_id, rate)

    monkeypatch.setattr(ReceiverTracker, "update_rate", tell)

    def run(receiver: Any) -> None:
        number = 0
        while not receiver.isStopped():
            receiver.store(str(number))
            number += 1

    df = spark.readStream.format(registered(run)).load()
    batches = Batches()
    query = batches.start(df, backpressure=True, maxRatePerSecond=400)
    with stopped_at_end(query):
        wait_for(lambda: len(batches.rows) > 3 and len(told) > 1, "rates")
    assert told[0] == 400
    assert max(told) <= 400
    sizes = [len(rows) for rows in batches.rows.values()]
    assert max(sizes) <= 500, sizes


def test_a_graceful_stop_processes_all_that_was_stored(spark: SparkSession, tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(df: Any, batch_id: int) -> None:
        began.set()
        assert go_on.wait(DEADLINE_S)

    post, batches = Post(tmp_path / "address"), Batches(on_batch=wait)
    lines = (
        spark.readStream.format("http")
        .option("port", 0)
        .option("addressFile", str(post.file))
        .load()
    )
    query = batches.start(lines, tmp_path / "c")
    post("0")
    assert began.wait(DEADLINE_S)
    for number in range(1, 5):
        post(str(number))
    threading.Timer(0.2, go_on.set).start()
    query.stop(graceful=True, timeout=DEADLINE_S)
    assert all_values(batches) == ["0", "1", "2", "3", "4"]
    assert not post.file.exists()
