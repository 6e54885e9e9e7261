"""What a program of DStreams sees of Kafka: ranges of offsets, brokers, messages with their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemill.kafka.partitions import TopicPartition

TopicAndPartition = TopicPartition
"""One partition of a topic, under the name that PySpark had for it."""

Decoder = Callable[[bytes | None], Any]


def utf8_decoder(s: bytes | None) -> str | None:
    """Decode UTF-8; None stays None."""
    return None if s is None else s.decode("utf-8")


@dataclass(frozen=True)
class OffsetRange:
    """The messages of one partition from ``fromOffset`` to before ``untilOffset``."""

    topic: str
    partition: int
    fromOffset: int
    untilOffset: int

    @property
    def topicAndPartition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def count(self) -> int:
        """Return the number of offsets in the range. Not all of them need to have a message."""
        return max(0, self.untilOffset - self.fromOffset)

    def __str__(self) -> str:
        return (
            f"OffsetRange(topic: {self.topic}, partition: {self.partition}, "
            f"range: [{self.fromOffset} -> {self.untilOffset}])"
        )


class Broker(NamedTuple):
    """The address of a broker. Accepted where PySpark took one: librdkafka finds leaders by itself."""

    host: str
    port: int


class KafkaMessageAndMetadata:
    """A message and where it stood, for a ``messageHandler``. Key and message are decoded when asked for."""

    def __init__(
        self, topic: str, partition: int, offset: int, key: bytes | None, message: bytes | None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self._raw_key = key
        self._raw_message = message
        self._key_decoder: Decoder = utf8_decoder
        self._value_decoder: Decoder = utf8_decoder

    def _decoded_by(self, key_decoder: Decoder, value_decoder: Decoder) -> KafkaMessageAndMetadata:
        self._key_decoder, self._value_decoder = key_decoder, value_decoder
        return self

    @property
    def key(self) -> Any:
        return self._key_decoder(self._raw_key)

    @property
    def message(self) -> Any:
        return self._value_decoder(self._raw_message)

    def __repr__(self) -> str:
        where = f"topic={self.topic}, partition={self.partition}, offset={self.offset}"
        return f"KafkaMessageAndMetadata({where})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KafkaMessageAndMetadata) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return (self.topic, self.partition, self.offset)

    def __reduce__(self) -> Any:
        # Decoders may be functions that only a program can write down: a message travels decoded.
        return _decoded_message, (*self._identity, self.key, self.message)


def _decoded_message(*fields: Any) -> KafkaMessageAndMetadata:
    return KafkaMessageAndMetadata(*fields)._decoded_by(_as_it_is, _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value
