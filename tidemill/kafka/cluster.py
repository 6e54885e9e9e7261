"""What the driver asks a Kafka cluster: which partitions there are, where they begin and where they end."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidemill.common.clock import SystemClock
from tidemill.errors import BrokerRefusedError, SourceError
from tidemill.kafka.clients.errors import ConnectionErrors, is_final, made, refused
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS, reads_committed
from tidemill.kafka.partitions import Positions, TopicPartition

logger = logging.getLogger(__name__)

FIRST_ANSWER_S = 10.0
"""How long a program that starts waits for a broker: a wrong address shows within seconds."""
ANSWER_S = 60.0
"""How long a running stream waits for a broker that has answered before."""
TRY_S = 1.0
"""How long the first try of a question may take. A cluster of many topics may need the longer ones after."""
LONGEST_TRY_S = 5.0
PAUSE_S = 0.2
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

# Settings of consumers and producers that an AdminClient does not need, and would warn of.
_CLIENT = re.compile(
    r"(bootstrap\.servers|client\.|security\.|sasl\.|ssl\.|socket\.|reconnect\.|retry\.|broker\.|api\.|"
    r"connections\.|allow\.|enable\.ssl|debug|log_level)"
)
_MISSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_HOPELESS = (
    KafkaError._INVALID_ARG,
    KafkaError._FATAL,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.INVALID_REQUEST,
    KafkaError.TOPIC_EXCEPTION,
    # What a cluster says of a topic that it does not want to make.
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION,
)

T = TypeVar("T")


class KafkaCluster:
    """One connection to a cluster. One thread at a time may call.

    Each question is asked again until somebody answers, for :data:`FIRST_ANSWER_S` at the start and for
    ``answer_s`` later. ``settings`` are librdkafka's.
    """

    def __init__(self, settings: Mapping[str, str], owner: str, answer_s: float = ANSWER_S) -> None:
        self.servers = settings[BOOTSTRAP_SERVERS]
        self._owner = owner
        self._answer_s = answer_s
        self._errors = ConnectionErrors(self.servers)
        self.committed_only = reads_committed(settings)
        self._settings = {**admin_settings(settings), "error_cb": self._errors.heard}
        self._admin: Any = made(AdminClient, self._settings, owner)
        self._clock = SystemClock()
        self._has_answered = False
        # Why the calling thread waits at this moment. Other threads may look.
        self.waits_because: str | None = None
        self._is_given_up = threading.Event()

    def partitions(self, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
        """Return the partitions of topics; a topic that does not exist is left out."""
        return self._topics(frozenset(topics).__contains__)

    def partitions_like(self, pattern: re.Pattern[str]) -> dict[str, list[TopicPartition]]:
        """Return the partitions of all topics whose whole name fits, without those of Kafka's own."""
        return self._topics(
            lambda name: name not in INTERNAL_TOPICS and pattern.fullmatch(name) is not None
        )

    def _topics(self, is_wanted: Callable[[str], bool]) -> dict[str, list[TopicPartition]]:
        def ask(try_s: float) -> dict[str, list[TopicPartition]]:
            topics = {}
            for name, topic in self._admin.list_topics(timeout=try_s).topics.items():
                if not is_wanted(name) or (topic.error and topic.error.code() in _MISSING):
                    continue
                if topic.error is not None:
                    # To leave it out would look as if it had been deleted.
                    raise KafkaException(topic.error)
                topics[name] = [TopicPartition(name, number) for number in sorted(topic.partitions)]
            return topics

        return self._ask("topics", ask)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics: a topic that is deleted and made again has another one."""
        if not topics:
            return {}

        def ask(try_s: float) -> dict[str, str]:
            asked = self._admin.describe_topics(
                TopicCollection(list(topics)), request_timeout=max(try_s, TRY_S * 5)
            )
            return {name: str(found.topic_id) for name, found in _answers(asked).items()}

        return self._ask("topic ids", ask)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return where partitions end now: for a reader of committed rows, before the first open one."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def latest_of_all(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return where partitions end now for readers that see the rows of open transactions as well.

        What lies between :meth:`latest` and this end is not gone: it can be read when a transaction ends.
        """
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), committed_only=False)

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after a time, None where there is none."""
        found = self._offsets(
            {part: OffsetSpec.for_timestamp(time) for part, time in times_ms.items()}
        )
        return {part: None if offset < 0 else offset for part, offset in found.items()}

    def _offsets(
        self, specs: Mapping[TopicPartition, Any], committed_only: bool | None = None
    ) -> Positions:
        """Return an offset for each partition; one that does not exist (any more) is left out."""
        if not specs:
            return {}
        if committed_only is None:
            committed_only = self.committed_only
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED

        def ask(try_s: float) -> Positions:
            asked = {KafkaPartition(*part): spec for part, spec in specs.items()}
            answers = _answers(
                self._admin.list_offsets(
                    asked, isolation_level=level, request_timeout=max(try_s, TRY_S * 5)
                )
            )
            if any(found.offset == OFFSET_INVALID for found in answers.values()):
                # While a broker comes back, this is an answer without an error.
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
            return {
                TopicPartition(part.topic, part.partition): int(found.offset)
                for part, found in answers.items()
            }

        return self._ask("offsets", ask)

    def create(self, topic: str) -> None:
        """Make a topic of one partition, with the cluster's own defaults. One that is there stays."""
        topics = [NewTopic(topic, 1, -1)]
        try:
            self._ask("a new topic", lambda _: _made(self._admin.create_topics(topics)))
        except (BrokerRefusedError, SourceError) as error:
            raise BrokerRefusedError(
                f"{self._owner} needs the topic {topic}, which is not there and which it may not create: let "
                f"somebody create it, with one partition. {error}",
                self.servers,
            ) from None

    def _ask(self, what: str, ask: Callable[[float], T]) -> T:
        try:
            return self._ask_until_answered(what, ask)
        finally:
            self.waits_because = None

    def _ask_until_answered(self, what: str, ask: Callable[[float], T]) -> T:
        patience_s = self._answer_s if self._has_answered else FIRST_ANSWER_S
        began_ms = self._clock.now_ms()
        is_waiting = False
        try_s = TRY_S
        while True:
            try:
                answer = ask(try_s)
            except KafkaException as error:
                self._admin.poll(0)  # calls heard()
                self._errors.raise_final()
                self._raise_if_hopeless(error.args[0], what)
                # Anything else may pass: brokers come back, and partitions find new leaders.
                self._errors.heard(error.args[0])
                if error.args[0].code() > 0:
                    # After an election, a client goes on asking with the epoch of the leader before.
                    self._admin = made(AdminClient, self._settings, self._owner)
                waited_s = (self._clock.now_ms() - began_ms) / 1000
                if waited_s >= patience_s or self._is_given_up.is_set():
                    raise self._errors.unavailable(waited_s) from None
                if not is_waiting and self._has_answered:
                    logger.warning(
                        "%s waits for the broker at %s (%s), for at most %.0f s",
                        self._owner,
                        self.servers,
                        self._errors.reason,
                        patience_s,
                    )
                is_waiting = True
                self.waits_because = self._errors.reason
                try_s = min(2 * try_s, LONGEST_TRY_S)
                self._is_given_up.wait(PAUSE_S)
            else:
                if is_waiting and self._has_answered:
                    logger.warning("%s: the broker at %s answers again", self._owner, self.servers)
                self._has_answered = True
                self._admin.poll(0)  # what it has to say piles up otherwise
                self._errors.forget()
                return answer

    def _raise_if_hopeless(self, cause: KafkaError, what: str) -> None:
        if is_final(cause):
            raise refused(self.servers, cause) from None
        if cause.code() in _HOPELESS:
            raise SourceError(
                f"{self._owner} asked the cluster at {self.servers} for {what}, and it answered: "
                f"{cause.str()}",
                self._owner,
            ) from None

    def give_up(self) -> None:
        """Let nobody wait for an answer any longer. From any thread."""
        self._is_given_up.set()

    def raise_if_given_up(self) -> None:
        if self._is_given_up.is_set():
            raise self._errors.unavailable(0)

    def close(self) -> None:
        """Let the connection go. Idempotent."""
        self._admin = None


def admin_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that an AdminClient takes, of those of a consumer or producer."""
    return {name: value for name, value in settings.items() if _CLIENT.match(name)}


def _made(asked: Mapping[Any, Future[Any]]) -> None:
    for answer in asked.values():
        try:
            answer.result(TRY_S * 10)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _answers(asked: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    """Return the answers, without those about what does not exist."""
    found = {}
    for key, answer in asked.items():
        try:
            found[key] = answer.result()
        except KafkaException as error:
            if error.args[0].code() not in _MISSING:
                raise
    return found
