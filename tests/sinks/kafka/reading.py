"""What a reader of a topic sees."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from tests.kafka.broker import KafkaBroker, quiet
from tests.waiting import wait_for


class TopicReader:
    """Reads a topic from its beginning, each time a bit further. ``level`` is that of its isolation."""

    def __init__(
        self, address: str, topic: str, partitions: int = 1, level: str = "read_committed"
    ) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"reader-{uuid.uuid4()}",
                "isolation.level": level,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "logger": quiet(),
            }
        )
        self._parts = [KafkaPartition(topic, number, 0) for number in range(partitions)]
        self._consumer.assign(self._parts)
        self._ended: set[int] = set()
        self.messages: list[Any] = []
        # Before this offset, of a topic with one partition, everything has been read.
        self.read_before = 0

    def read(self) -> None:
        """Read what there is, up to the first transaction that is still open."""
        for message in self._consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                self.messages.append(message)
                self._ended.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
                self.read_before = message.offset()

    def read_to_end(self) -> list[Any]:
        """Read until every partition has said that there is no more."""
        self._ended.clear()

        def is_over() -> bool:
            self.read()
            return len(self._ended) == len(self._parts)

        wait_for(is_over, "the end of the topic")
        return self.messages

    def close(self) -> None:
        self._consumer.close()


def messages_of(
    broker: KafkaBroker, topic: str, partitions: int = 1, level: str = "read_committed"
) -> Sequence[Any]:
    """Return all messages of a topic."""
    reader = TopicReader(broker.address, topic, partitions, level)
    try:
        return reader.read_to_end()
    finally:
        reader.close()


def values_of(broker: KafkaBroker, topic: str, partitions: int = 1) -> list[str]:
    """Return the values of a topic that a reader of committed rows sees, in their order."""
    return [message.value().decode() for message in messages_of(broker, topic, partitions)]
