"""How far a query is behind, and how often the driver asks a broker."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tests.kafka.broker import KafkaBroker
from tests.sources.kafka.reading import texts
from tests.waiting import wait_for
from tidemill.common.clock import SystemClock
from tidemill.kafka import cluster
from tidemill.kafka.partitions import TopicPartition
from tidemill.sources.kafka.lag import LagMeter
from tidemill.testing import ManualClock

Topics = Callable[..., str]


class Listener(StreamingQueryListener):
    def __init__(self) -> None:
        self.metrics: list[dict[str, str]] = []

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.metrics.append(event.progress.sources[0].metrics)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


def test_a_query_that_catches_up(
    broker: KafkaBroker, topic: Topics, reading: Any, spark: SparkSession
) -> None:
    name = topic(2)
    hour_ago_ms = SystemClock().wall_ms() - 3_600_000
    broker.send(name, texts(0, 30), 0, timestamp=hour_ago_ms)
    broker.send(name, texts(30, 40), 1)
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        with reading(subscribe=name, maxOffsetsPerTrigger=20) as it:
            it.read_all()
            first, last = it.progress[0].sources[0].metrics, it.progress[-1].sources[0].metrics
            wait_for(lambda: len(listener.metrics) >= 2, "the listener")
    finally:
        spark.streams.removeListener(listener)
    assert first["minOffsetsBehindLatest"] == "5"
    assert first["maxOffsetsBehindLatest"] == "15"
    assert first["avgOffsetsBehindLatest"] == "10.0"
    assert json.loads(first["offsetsBehindLatest"]) == {name: {"0": 15, "1": 5}}
    seconds = json.loads(first["secondsBehindLatest"])[name]
    assert 3_600 <= seconds["0"] < 7_200
    assert 0 <= seconds["1"] < 3_600
    assert float(first["maxSecondsBehindLatest"]) == seconds["0"]
    assert last["maxOffsetsBehindLatest"] == "0"
    assert json.loads(last["secondsBehindLatest"]) == {name: {"0": 0.0, "1": 0.0}}
    assert listener.metrics[0] == first


def test_seconds_are_those_of_the_oldest_unread_record(
    broker: KafkaBroker, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    for number in range(10):
        broker.send(name, ["x"], timestamp=1_000 * number)
    clock = ManualClock(100_000)
    meter = LagMeter({"bootstrap.servers": broker.address}, "the test", clock)
    part = TopicPartition(name, 0)
    looks = []
    look = LagMeter._look
    monkeypatch.setattr(
        LagMeter, "_look", lambda self, starts: [looks.append(1), look(self, starts)]
    )

    def seconds(read: int) -> float:
        return float(meter.metrics({part: read}, {part: 10})["maxSecondsBehindLatest"])

    assert [seconds(10), seconds(3)] == [0.0, 97.0]
    clock.advance(5_000)
    assert [seconds(3), seconds(5)] == [102.0, 102.0]  # as of the last look
    assert len(looks) == 1
    clock.advance(5_000)
    assert seconds(5) == 105.0
    clock.advance(60_000)
    assert seconds(5) == 165.0
    assert len(looks) == 2  # the record that is waited for is known
    # Somebody has deleted what is behind: the partition's end is all that comes.
    broker.truncate(name, 0, 10)
    assert "maxSecondsBehindLatest" not in meter.metrics({part: 6}, {part: 10})


def test_metadata_is_asked_for_once_in_a_while(
    broker: KafkaBroker,
    topic: Topics,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by the client itself, in the requests that it has sent."""
    name = topic(3)
    latest: tuple[float, Counter[str]] = (0.0, Counter())

    def heard(text: str) -> None:
        nonlocal latest
        statistics = json.loads(text)  # of one client, which counts from its beginning
        requests: Counter[str] = Counter()
        for node in statistics["brokers"].values():
            requests.update(node["req"])
        latest = statistics["ts"] / 1e6, requests

    make = cluster.made

    def counting(client: Any, settings: Any, owner: str) -> Any:
        more = {"stats_cb": heard, "statistics.interval.ms": 50}
        return make(client, {**settings, **more}, owner)

    monkeypatch.setattr(cluster, "made", counting)
    clock = ManualClock(1_000)
    stream = spark.readStream.format("kafka").option("subscribe", name)
    stream = stream.option("kafka.bootstrap.servers", broker.address)
    writer: Any = stream.load().writeStream
    rows: list[int] = []
    query = writer.clock(clock).foreachBatch(lambda df, _: rows.append(df.count())).start()
    admin = query._execution._query.sources.sources[0].source._kafka._admin

    def asked(kind: str) -> int:
        """Return how often, by statistics that are made after this call."""
        now = time.monotonic()  # the clock of the client's statistics, too

        def are_new() -> bool:
            admin.poll(0.2)
            return latest[0] > now

        wait_for(are_new, "the client's statistics")
        return latest[1][kind]

    try:
        query.processAllAvailable()
        metadata, offsets = asked("Metadata"), asked("ListOffsets")
        for number in range(6):
            broker.send(name, ["x"], number % 3)
            query.processAllAvailable()
        assert sum(rows) == 6
        assert asked("ListOffsets") >= offsets + 6
        assert asked("Metadata") == metadata
        clock.advance(30_000)
        query.processAllAvailable()
        assert metadata < asked("Metadata") <= metadata + 3
    finally:
        query.stop()
