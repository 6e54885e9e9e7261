"""The offsets that a consumer group has committed, for a stream that is no member of it.

By a consumer that reads nothing: the ``AdminClient`` of confluent-kafka 2.16 has calls for this, and the
process dies by a segmentation fault when the group's coordinator is not there yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import SystemClock
from tidemill.errors import SourceError
from tidemill.kafka.clients.errors import ConnectionErrors, is_final, made, refused
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS
from tidemill.kafka.partitions import Positions, TopicPartition

PAUSE_MS = 200
TRY_S = 5.0
# The group has no members, or it has some: then it is not the stream's to move.
_MEMBERS = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
)


class ConsumerGroup:
    """Reads and sets the offsets of a group. Made by the first call; one thread at a time may call."""

    def __init__(
        self, settings: Mapping[str, str], group: str, owner: str, patience_s: float
    ) -> None:
        self.name = group
        self._settings = settings
        self._owner = owner
        self._patience_s = patience_s
        self._errors = ConnectionErrors(settings[BOOTSTRAP_SERVERS])
        self._clock = SystemClock()
        self._consumer: Any = None

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        """Return what the group has committed; a partition without a commit is left out."""
        if not partitions:
            return {}
        wanted = [KafkaPartition(*part) for part in partitions]
        began_ms = self._clock.now_ms()
        while True:
            try:
                return positions_of(self._client().committed(wanted, timeout=TRY_S))
            except KafkaException as error:
                # A cluster that has no group yet needs a moment to make the coordinator's topic.
                self._errors.listen(self._client())
                self._errors.raise_final()
                cause = error.args[0]
                if is_final(cause):
                    raise refused(self._errors.servers, cause) from None
                self._errors.heard(cause)
                waited_s = (self._clock.now_ms() - began_ms) / 1000
                if waited_s >= self._patience_s:
                    raise self._errors.unavailable(waited_s) from None
                self._clock.wait_till(self._clock.now_ms() + PAUSE_MS)

    def commit(self, positions: Positions) -> None:
        """Set offsets, and return when the broker has them; raise ``SourceError`` if it refuses them."""
        try:
            commit(self._client(), positions)
        except KafkaException as error:
            cause = error.args[0]
            why = "it has members" if cause.code() in _MEMBERS else cause.str()
            raise SourceError(why, self._owner) from None

    def _client(self) -> Any:
        if self._consumer is None:
            ours = {
                "group.id": self.name,
                "enable.auto.commit": "false",
                "error_cb": self._errors.heard,
            }
            self._consumer = made(Consumer, {**self._settings, **ours}, self._owner)
        return self._consumer

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def commit(consumer: Any, positions: Positions) -> None:
    """Commit positions, and wait for the answer. Raise ``KafkaException`` if one is not taken."""
    offsets = [KafkaPartition(*part, at) for part, at in positions.items()]
    for each in consumer.commit(offsets=offsets, asynchronous=False):
        if each.error is not None:
            raise KafkaException(each.error)


def positions_of(found: Collection[KafkaPartition]) -> Positions:
    """Return the offsets of an answer; raise ``KafkaException`` if it has an error."""
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return {
        TopicPartition(each.topic, each.partition): int(each.offset)
        for each in found
        if each.offset >= 0
    }
