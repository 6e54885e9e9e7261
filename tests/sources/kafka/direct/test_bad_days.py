"""Brokers that go away, topics that vanish, secrets: what a direct stream does about them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.kafka.broker import KafkaBroker
from tests.manual_stream import Stream
from tests.sources.kafka.direct.streams import Recovered, Topics, params, texts
from tests.waiting import wait_for
from tidemill.errors import BatchError, NotRecoverableError
from tidemill.kafka.consumers import pool
from tidemill.receivers import EnvironmentSecret
from tidemill.sources.kafka import source
from tidemill.streaming import StreamingContext
from tidemill.streaming.kafka import KafkaUtils
from tidemill.testing import collected


def test_a_broker_that_stays_away_fails_the_batch_after_the_time_that_was_set(
    broker: KafkaBroker, topic: Topics, stream: Stream, sc: SparkContext
) -> None:
    name = topic()
    sc._conf.set("spark.streaming.kafka.consumer.poll.ms", "1500")
    try:
        batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], params(broker)))
    finally:
        sc._conf.set("spark.streaming.kafka.consumer.poll.ms", "120000")
    stream.start_and_run(1)
    broker.kill()
    try:
        with pytest.raises(BatchError, match=f"no Kafka broker answers at {broker.address}"):
            stream.driver.run(1, timeout_s=300)
    finally:
        broker.start()
    broker.send(name, texts(0, 3))
    with pytest.raises(BatchError):  # a context tells its first error again and again
        stream.driver.run(1, timeout_s=300)
    assert [value for batch in batches for _, value in batch] == texts(0, 3)


def test_a_broker_that_comes_back_in_time_is_waited_for(
    broker: KafkaBroker, topic: Topics, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(2)
    batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], params(broker)))
    broker.send(name, texts(0, 5))
    stream.start_and_run(1)
    broker.send(name, texts(5, 9))
    broker.kill()

    def start_when_missed() -> None:
        wait_for(lambda: "waits for the broker" in caplog.text, "the log")
        broker.start()

    helper = threading.Thread(target=start_when_missed)
    helper.start()
    try:
        stream.driver.run(1, timeout_s=300)
    finally:
        helper.join()
    assert [value for batch in batches for _, value in batch] == texts(0, 9)
    assert "answers again" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_a_damaged_message_is_named_and_never_skipped(
    broker: KafkaBroker, topic: Topics, stream: Stream, fails: bool
) -> None:
    name = topic()
    for first in (0, 5, 10):
        broker.send(name, texts(first, first + 5))
    broker.damage(name, b"v007")
    collected(
        KafkaUtils.createDirectStream(stream.ssc, [name], params(broker), failOnDataLoss=fails)
    )
    with pytest.raises(BatchError, match=f"offset 5 of partition 0 of topic {name}"):
        stream.start_and_run(1)


@pytest.mark.parametrize("looks", [True, False])
def test_a_topic_that_is_deleted_while_it_runs_is_named(
    broker: KafkaBroker, topic: Topics, stream: Stream, monkeypatch: Any, looks: bool
) -> None:
    name, other = topic(), topic()
    if not looks:
        monkeypatch.setattr(source, "METADATA_AGE_MS", 1 << 40)
    collected(KafkaUtils.createDirectStream(stream.ssc, [name, other], params(broker)))
    stream.start_and_run(1)
    broker.delete(name)
    with pytest.raises(BatchError, match=f"topic {name}"):
        stream.driver.run(1, timeout_s=300)


def test_consumers_stay_open_for_the_next_batch_whatever_was_taken(
    broker: KafkaBroker, topic: Topics, sc: SparkContext
) -> None:
    """Otherwise every batch of a printed stream would make a consumer anew."""
    name = topic()
    broker.send(name, texts(0, 50))
    from tidemill.kafka.partitions import TopicPartition
    from tidemill.kafka.records import RangeReader

    settings = {"bootstrap.servers": broker.address, "client.id": name}
    reader = RangeReader(settings, "the test", (), frozenset(), True, 60)
    where = TopicPartition(name, 0)
    try:
        messages = reader.messages(where, 0, 50)
        next(messages)
        messages.close()  # type: ignore[attr-defined]
        assert len(pool._idle) == 1
        found = [each.value() for some in reader.messages(where, 10, 50) for each in some]
        assert found == [text.encode() for text in texts(10, 50)]
        assert len(pool._idle) == 1
    finally:
        pool.close()


def test_a_password_is_not_written_into_a_checkpoint(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path, monkeypatch: Any
) -> None:
    name = topic()
    broker.send(name, texts(0, 3))

    def program(password: Any) -> Callable[[StreamingContext], Any]:
        # A key that no broker on the loopback address asks for.
        given = params(broker, **{"ssl.key.password": password})
        return lambda ssc: KafkaUtils.createDirectStream(ssc, [name], given).pprint()

    with pytest.raises(NotRecoverableError, match="password stays out of files") as refused:
        Recovered(sc, tmp_path / "refused", program("sesame")).run(1)
    assert "sesame" not in str(refused.value)
    monkeypatch.setenv("KAFKA_PASSWORD", "sesame")
    Recovered(sc, tmp_path / "checkpoint", program(EnvironmentSecret("KAFKA_PASSWORD"))).run(1)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(b"sesame" in data for data in written)


def test_commits_that_fail_do_not_stop_the_stream(
    broker: KafkaBroker, topic: Topics, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer

    name = topic()
    member = Consumer({"bootstrap.servers": broker.address, "group.id": f"busy-{name}"})
    member.subscribe([name])
    wait_for(lambda: member.poll(0.1) or member.assignment(), "a member of the group")
    try:
        given = params(broker, **{"group.id": f"busy-{name}"})
        direct = KafkaUtils.createDirectStream(stream.ssc, [name], given, commitOffsets=True)
        batches = collected(direct)
        broker.send(name, texts(0, 3))
        stream.start_and_run(1)
        for _ in range(3):
            broker.send(name, texts(3, 4))
            stream.driver.run(1, timeout_s=300)
        stream.ssc.stop(stopSparkContext=False)
    finally:
        member.close()
    assert sum(map(len, batches)) == 6
    said = [each.getMessage() for each in caplog.records if "consumer group" in each.getMessage()]
    assert len(said) == 1
    assert f"could not be committed to the consumer group busy-{name}" in said[0]


def test_a_stream_that_has_stopped_leaves_no_threads(
    broker: KafkaBroker, topic: Topics, new_stream: Callable[..., Stream]
) -> None:
    name = topic()

    def run_and_stop() -> None:
        stream = new_stream()
        given = params(broker, **{"group.id": f"leaving-{name}"})
        direct = KafkaUtils.createDirectStream(stream.ssc, [name], given, commitOffsets=True)
        collected(direct)
        broker.send(name, texts(0, 1))
        stream.start_and_run(1)
        stream.ssc.stop(stopSparkContext=False)

    def threads() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/task"))  # those of librdkafka are no threads of Python's

    run_and_stop()
    before = threads()
    for _ in range(3):
        run_and_stop()
    wait_for(lambda: threads() < before + 4, "the threads to end")
