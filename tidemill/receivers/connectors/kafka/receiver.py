"""A receiver that reads topics of Kafka as a member of a consumer group."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.errors import ReceiverError
from tidemill.kafka.consumer_params import ConsumerParams
from tidemill.kafka.partitions import TopicPartition
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import KeySettings, RequestKey

if TYPE_CHECKING:
    from tidemill.receivers.connectors.kafka.session import KafkaSession

REMEMBERED_PIECES = 20_000
"""How many of the last pieces of partitions the driver remembers for each stream. Only those after the last
commit to Kafka matter."""
DRAIN_S = 10.0


class KafkaReceiver(Receiver):
    """Stores messages as pairs of bytes, key and value, and commits offsets when messages are safe.

    How a message is stored exactly once is written in :mod:`tidemill.receivers.connectors.kafka.session`.
    """

    def __init__(
        self, params: ConsumerParams, topics: Sequence[str], storage_level: StorageLevel
    ) -> None:
        super().__init__(storage_level)
        assert params.group_id is not None
        self.params = params
        self.topics = tuple(topics)
        self.group = params.group_id
        # Members of a group, each with a stream of its own, recognise each other's pieces.
        self._key_settings = KeySettings(REMEMBERED_PIECES, f"kafka {self.group}")
        self._session: KafkaSession | None = None
        # Of the topics in which this receiver has begun to read.
        self.topic_ids: dict[str, str] = {}
        # The partitions that its topics had when it first looked.
        self._first_partitions: set[TopicPartition] = set()

    def onStart(self) -> None:
        try:
            # Here, not above: librdkafka does not survive a fork, and is an optional dependency.
            from tidemill.receivers.connectors.kafka.session import KafkaSession
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "confluent_kafka":
                raise
            raise ReceiverError(
                "a Kafka receiver needs confluent-kafka, which this executor does not have: "
                "pip install 'tidemill[kafka]' on all of them"
            ) from None
        session = KafkaSession(self)
        self._session = session
        threading.Thread(target=session.run, name="tidemill-kafka", daemon=True).start()

    def onStop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(DRAIN_S)

    # -- calls of the session ------------------------------------------------------------------

    def store_pieces(
        self, records: list[Any], keys: Sequence[RequestKey]
    ) -> tuple[RequestKey, ...]:
        """Store records as one block. Return the pieces that were stored before: then nothing is stored."""
        return self._running_supervisor().store_requests(records, keys)

    def has_seen(self, partitions: Collection[TopicPartition]) -> None:
        """Remember which partitions there are, the first time."""
        if not self._first_partitions:
            self._first_partitions = set(partitions)

    def is_new(self, partition: TopicPartition) -> bool:
        """Say whether a partition has come since this receiver has begun."""
        return partition not in self._first_partitions

    def topics_made_again(self, ids: Mapping[str, str]) -> set[str]:
        """Return the topics that had other ids when this receiver began to read them."""
        again = {topic for topic, id_ in ids.items() if self.topic_ids.get(topic, id_) != id_}
        for topic in again:
            self.reportError(
                f"topic {topic} was deleted and made again: what was not received is gone, and the receiver "
                "begins with the first message of the new one"
            )
        return again

    def on_ended(self, message: str, error: BaseException | None) -> None:
        if not self.isStopped():
            self.restart(message, error)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "_session": None,
            "topic_ids": {},
            "_first_partitions": set(),
        }
