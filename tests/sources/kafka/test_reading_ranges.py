"""Reading ranges of offsets as tasks do, without Spark."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka.broker import KafkaBroker, open_transaction
from tidemill.errors import SourceError
from tidemill.kafka import consumers
from tidemill.kafka.consumers import PartitionConsumer, pool
from tidemill.kafka.partitions import TopicPartition
from tidemill.kafka.records import RangeReader, schema


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    return broker.create(f"t-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def consumer(broker: KafkaBroker, topic: str) -> Iterator[PartitionConsumer]:
    settings = {"bootstrap.servers": broker.address}
    made = PartitionConsumer(settings, TopicPartition(topic, 0), "the test")
    yield made
    made.close()


def values(consumer: PartitionConsumer, start: int, end: int) -> list[int]:
    return [
        int(message.value())
        for messages in consumer.messages(start, end, 60.0)
        for message in messages
    ]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_a_reader_makes_the_columns_that_it_is_asked_for(broker: KafkaBroker, topic: str) -> None:
    broker.send(topic, ["a", None], key="k")
    names = tuple(schema(False).names)
    settings = {"bootstrap.servers": broker.address}
    every = RangeReader(settings, "the test", names, frozenset(names), True, 60.0)
    split = {"topic": topic, "partition": 0, "from": 0, "to": 2}
    (whole,) = every(split)
    for wanted in (["offset", "value"], ["partition"], ["timestamp"]):
        (batch,) = every.for_columns(wanted)(split)
        assert batch == whole.select(wanted)
    assert gc.isenabled()
    pool.close()


def test_ranges_of_a_partition_without_gaps_come_whole(
    broker: KafkaBroker, topic: str, consumer: PartitionConsumer
) -> None:
    broker.send(topic, numbers(0, 30))
    for start, end in ((0, 10), (10, 11), (11, 30), (5, 25), (25, 30)):
        assert values(consumer, start, end) == list(range(start, end))
    broker.send(topic, numbers(30, 35))
    assert values(consumer, 30, 35) == list(range(30, 35))
    assert not consumer._has_gaps


def test_gaps_are_noticed(broker: KafkaBroker, topic: str, consumer: PartitionConsumer) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(60)
    for first in (0, 10, 20):
        producer.begin_transaction()
        for value in numbers(first, first + 10):
            producer.produce(topic, value)
        producer.commit_transaction(60)
    # Each transaction ends with a mark, which has an offset and is no message.
    assert values(consumer, 0, 33) == list(range(30))
    assert consumer._has_gaps
    assert values(consumer, 11, 22) == list(range(10, 20))


def test_a_batch_over_an_open_transaction_waits_for_its_end(
    broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = open_transaction(broker, topic, *numbers(0, 3))
    broker.send(topic, numbers(3, 5))
    settings = {"bootstrap.servers": broker.address, "isolation.level": "read_committed"}
    reader = RangeReader(settings, "the test", (), frozenset(), False, 1.0)
    monkeypatch.setattr(consumers, "END_S", 0.2)
    part = TopicPartition(topic, 0)
    with pytest.raises(SourceError, match=f"transaction that begins at offset 0 of {part}"):
        list(reader.messages(part, 0, 5))
    found = replace(reader, patience_s=60.0).messages(part, 0, 5)
    looked: list[int] = []
    bounds = PartitionConsumer.bounds

    def committing(consumer: PartitionConsumer, patience_s: float) -> Any:
        if not looked:
            producer.commit_transaction(60)
        looked.append(0)
        return bounds(consumer, patience_s)

    monkeypatch.setattr(PartitionConsumer, "bounds", committing)
    assert [m.value() for messages in found for m in messages] == numbers(0, 5)
    assert looked
    pool.close()
