"""Brokers that die, do not answer or refuse, and topics that change under a query."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.kafka.broker import PASSWORD, USER, KafkaBroker
from tests.sources.kafka.reading import Reading, texts
from tests.waiting import wait_for
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.partitions import TopicPartition

Topics = Callable[..., str]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

pytestmark = pytest.mark.usefixtures("look_often")


def waits(it: Reading) -> bool:
    return it.status().startswith("Waiting for the broker at 127.0.0.1:")


def test_a_broker_that_dies_and_comes_back(
    broker: KafkaBroker, topic: Topics, reading: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Once while the driver asks for offsets, once while tasks read."""
    name = topic(2)
    broker.send(name, texts(0, 50))
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    broker.kill()
    wait_for(lambda: waits(it), "the status to say what the query waits for")
    assert "waits for the broker" in caplog.text
    broker.start()
    broker.send(name, texts(50, 100))
    it.read_all()
    assert not waits(it)

    keep = it.keep

    def killing(df: DataFrame, batch_id: int) -> None:
        broker.kill()
        keep(df, batch_id)

    it.query.stop()
    broker.send(name, texts(100, 150), 1)
    # The workers have no consumer for this one yet, which could have the rows already.
    it.options["kafka.client.id"] = "another"
    it.keep = killing
    it.start()
    wait_for(lambda: waits(it), "the status to say what tasks wait for")
    it.keep = keep
    broker.start()
    it.read_all()
    it.query.stop()
    assert sorted(it.values) == texts(0, 150)
    assert "answers again" in caplog.text


def test_waiting_for_a_broker_ends(
    broker: KafkaBroker, topic: Topics, spark: Any, tmp_path: Path
) -> None:
    name = topic()
    broker.send(name, texts(0, 5))
    short = Reading(
        spark, broker, tmp_path / "1", **{"subscribe": name, "kafkaConsumer.pollTimeoutMs": 1000}
    )
    long = Reading(
        spark, broker, tmp_path / "2", **{"subscribe": name, "kafkaConsumer.pollTimeoutMs": 10**9}
    )
    short.start()
    long.start()
    short.read_all()
    long.read_all()
    broker.kill()
    try:
        with pytest.raises(Exception, match=r"no Kafka broker answers at 127.*: check the address"):
            short.query.awaitTermination(300)
        wait_for(lambda: waits(long), "the other query to wait")
        long.query.stop(timeout=120)  # it would wait for ten days
        assert long.query.exception() is None
        assert not waits(long)
    finally:
        broker.start()
    for it in (short, long):
        broker.send(name, texts(5, 8))
        it.start()
        it.read_all()
        it.query.stop()
    assert short.values == [*texts(0, 5), *texts(5, 8)]
    assert long.values == [*texts(0, 5), *texts(5, 8), *texts(5, 8)]


def test_a_moment_of_ignorance_is_no_loss(
    broker: KafkaBroker, topic: Topics, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just come back may know fewer partitions, or shorter ones."""
    name = topic(2)
    broker.send(name, texts(0, 10), 0)
    broker.send(name, texts(10, 20), 1)
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    known = KafkaCluster.latest
    answers: list[Any] = [{}, {TopicPartition(name, 0): 3}]

    def latest(self: KafkaCluster, partitions: Any) -> Any:
        return answers.pop() if answers else known(self, partitions)

    monkeypatch.setattr(KafkaCluster, "latest", latest)
    wait_for(lambda: not answers or not it.query.isActive, "the answers")
    broker.send(name, texts(20, 25), 1)
    it.read_all()
    it.query.stop()
    assert it.values == [*texts(0, 10), *texts(10, 25)]


def test_a_partition_whose_beginning_has_expired_before_it_was_seen(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic()
    broker.send(name, texts(0, 3))
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    it.query.stop()
    broker.add_partitions(name, 2)
    broker.send(name, texts(10, 20), 1)
    broker.truncate(name, 1, 4)
    it.start()
    with pytest.raises(Exception, match=f"partition 1 of topic {name} are gone.* at offset 0"):
        it.read_all()
    it.options["failOnDataLoss"] = "false"
    it.restart()
    it.read_all()
    assert it.progress[-1].sources[0].metrics["skippedOffsets"] == "4"
    it.query.stop()
    assert it.values == [*texts(0, 3), *texts(14, 20)]


def test_a_partition_that_is_not_named_any_more(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic(2)
    broker.send(name, texts(0, 3), 0)
    broker.send(name, texts(10, 13), 1)
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    it.query.stop()
    del it.options["subscribe"]
    it.options["assign"] = json.dumps({name: [1]})
    it.start()
    with pytest.raises(Exception, match=f"partition 0 of topic {name} is not among what the opt"):
        it.read_all()
    it.options["failOnDataLoss"] = "false"
    it.start()
    broker.send(name, texts(3, 5), 0)
    broker.send(name, texts(13, 15), 1)
    it.read_all()
    it.query.stop()
    # Named again, it goes on where it was.
    it.options.update(subscribe=name, failOnDataLoss="true")
    del it.options["assign"]
    it.start()
    it.read_all()
    it.query.stop()
    assert it.values == [*texts(0, 5), *texts(10, 15)]


def test_a_topic_that_goes_while_the_query_runs(
    broker: KafkaBroker, topic: Topics, spark: Any, tmp_path: Path
) -> None:
    name, other = topic(), topic()
    broker.send(name, texts(0, 5))
    topics = f"{name},{other}"
    strict = Reading(spark, broker, tmp_path / "1", subscribe=topics)
    easy = Reading(spark, broker, tmp_path / "2", subscribe=topics, failOnDataLoss=False)
    for it in (strict, easy):
        it.start()
        it.read_all()
    broker.delete(name)
    with pytest.raises(
        Exception, match=f"partition 0 of topic {name} are gone.*offset 5, and it does not exist"
    ):
        strict.query.awaitTermination(300)
    broker.send(other, texts(900, 905))
    wait_for(lambda: easy.read_all() or len(easy.rows) == 10, "the rows of the other topic")
    # It comes back with another number of partitions.
    broker.create(name, 3)
    broker.send(name, texts(10, 13), 0)
    broker.send(name, texts(20, 23), 2)
    wait_for(lambda: easy.read_all() or len(easy.rows) >= 16, "the new topic")
    easy.restart()
    easy.read_all()
    easy.query.stop()
    assert sorted(easy.values) == [
        *texts(0, 5),
        *texts(10, 13),
        *texts(20, 23),
        *texts(900, 905),
    ]


def test_gaps_of_compaction_are_no_loss(broker: KafkaBroker, topic: Topics, reading: Any) -> None:
    name = topic(
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
        segment_ms="100",
    )
    it = reading(subscribe=name, maxOffsetsPerTrigger=7)
    for number in range(40):
        broker.send(name, texts(number, number + 1), key=str(number % 2))

    def is_compacted() -> bool:
        # A segment is closed by the record after it.
        broker.send(name, ["last"], key="last")
        return len(broker.offsets(name)) < 20

    wait_for(is_compacted, "the log cleaner")
    it.start()
    it.read_all()
    it.query.stop()
    found = [row.offset for row in it.rows]
    assert found == sorted(set(found))
    assert {"v038", "v039", "last"} <= set(it.values)
    assert found[-1] == broker.latest(name) - 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_damaged_record_is_named_and_never_skipped(
    broker: KafkaBroker, topic: Topics, reading: Any, fails: bool
) -> None:
    name = topic()
    for first in (0, 10, 20):
        broker.send(name, texts(first, first + 10))
    broker.damage(name, b"v013")
    it = reading(subscribe=name, maxOffsetsPerTrigger=10, failOnDataLoss=fails)
    it.start()
    with pytest.raises(Exception, match=f"offset 10 of partition 0 of topic {name}.*failed CRC32C"):
        it.read_all()
    assert it.values == texts(0, 10)


def test_rows_behind_a_damaged_record_are_not_lost_with_it(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    """The administrator has given it up: what is left is a loss as any other."""
    name = topic()
    for first in (0, 10, 20):
        broker.send(name, texts(first, first + 10))
    broker.damage(name, b"v013")
    broker.truncate(name, 0, 20)
    with reading(subscribe=name, failOnDataLoss=False) as it:
        it.read_all()
        assert it.values == texts(20, 30)


def login(module: str, password: str = PASSWORD) -> str:
    return f'{module} required username="{USER}" password="{password}";'


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM)])
def test_a_login_that_is_right_and_one_that_is_wrong(
    broker: KafkaBroker,
    topic: Topics,
    reading: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
    module: str,
) -> None:
    caplog.set_level(logging.DEBUG, "tidemill")
    name = topic()
    broker.send(name, texts(0, 5))
    security = {
        "kafka.bootstrap.servers": broker.secure_address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": login(module),
    }
    it = reading(subscribe=name, **security)
    it.start()
    it.read_all()
    told = [*map(str, it.progress), it.status(), repr(it.query)]
    it.query.stop()
    assert it.values == texts(0, 5)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(PASSWORD.encode() in data for data in files)
    it.options["kafka.sasl.jaas.config"] = login(module, "a-guess")
    with pytest.raises(Exception, match="it refused the user or the password") as refused:
        it.start()
    assert len(str(refused.value).splitlines()) == 1
    told += [str(refused.value), caplog.text]
    assert not any(secret in text for text in told for secret in (PASSWORD, "a-guess"))
