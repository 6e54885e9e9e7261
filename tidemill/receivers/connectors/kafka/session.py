"""One membership of a Kafka receiver in its consumer group. Only this module needs confluent-kafka.

**The protocol.** A *piece* is what a block has of one partition. It begins where the piece before it ended,
so the pieces of a partition are a chain, whoever stores them. Its key is the topic's id, the partition and
the offset at which it begins; with the key goes the offset at which it ends
(:mod:`tidemill.receivers.request_keys`).

1. The receiver gets partitions. Each begins where the group has committed. IF the group has committed nothing
   there, the receiver resolves ``auto.offset.reset`` and commits that: a crash does not move the beginning.
   A partition that has come while the receiver ran is read from its beginning.
2. It gathers messages, looks whether their topics are still those that it began with, and stores them as one
   block, with the key of each piece. (IF a topic was made again, these may be its messages from the middle.)
3. IF the driver knows one of the keys, nothing is stored: an earlier run, or another member of the group, has
   stored a piece that begins there. The receiver skips to where that piece ends, and goes back to 2.
4. ELSE block and keys are durable, in one record of the driver's log.
5. The receiver commits the ends of the pieces. It goes on meanwhile, but not for long: the driver remembers
   only so many pieces. Receiver or broker may die before it: then whoever gets the partition begins further
   back, and is led along the chain to its end.

So a message is stored at least once, because nothing is committed before 4, and at most once, because 3 and 4
are one step of the driver's, whatever dies, and however partitions change hands. A topic that is made again
has another id: its offsets are not those that were stored before.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import SystemClock
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedRecordError, SourceError
from tidemill.kafka.clients.bounded_call import GivenUpError, within
from tidemill.kafka.clients.errors import (
    ConnectionErrors,
    is_final,
    is_unreadable,
    made,
    refused,
    unreadable,
)
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.group import commit, positions_of
from tidemill.kafka.partitions import EARLIEST, Positions, TopicPartition, described
from tidemill.receivers.connectors.kafka.commits import MemberCommits
from tidemill.receivers.request_keys import RequestKey

if TYPE_CHECKING:
    from tidemill.receivers.connectors.kafka.receiver import KafkaReceiver

POLL_S = 0.5
COMMITTED_S = 30.0
LAST_COMMIT_S = 5.0
"""How long a member that gives up partitions waits for its last commit. A broker may never answer."""
GATHER_MS = 200
"""How long messages are gathered for a block, after the first one."""
BLOCK_BYTES = 8 << 20
LOOK_MS = 5_000
"""How often a receiver to which nothing comes looks whether its topics are still there."""
CHUNK = 200

_OURS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "false",
}
_DEFAULTS = {
    # A receiver that was killed leaves its partitions to others after so long.
    "session.timeout.ms": "10000",
    "heartbeat.interval.ms": "2000",
    # How soon a new partition is noticed.
    "topic.metadata.refresh.interval.ms": "30000",
    "isolation.level": "read_uncommitted",
    # As Java's clients do: a message that the disk of a broker has changed is no message.
    "check.crcs": "true",
    "fetch.queue.backoff.ms": "0",
    "queued.max.messages.kbytes": "16384",
}
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE)
logger = logging.getLogger(__name__)


class KafkaSession:
    """Runs on a thread of its own, from :meth:`run` until :meth:`close`, or until it fails."""

    def __init__(self, receiver: KafkaReceiver) -> None:
        self._receiver = receiver
        self._clock = SystemClock()
        self._is_closing = threading.Event()
        self._has_ended = threading.Event()
        self._consumer: Any = None
        self._cluster: KafkaCluster | None = None
        # Where the next piece of each partition begins that this member has, and what is gathered for it.
        self._next: Positions = {}
        self._gathered: dict[TopicPartition, list[Message]] = {}
        self._bytes = 0
        # A message that cannot be read. Those before it are stored first: the next run will not come further.
        self._damage: DamagedRecordError | None = None
        self._topic_ids: dict[str, str] = {}
        # Grows when partitions come or go.
        self._changes = 0
        self._is_waiting = self._is_leaving = False
        self._looked_ms = 0

    def run(self) -> None:
        try:
            self._open()
            while not self._is_closing.is_set():
                self._gather()
                if self._gathered or self._clock.now_ms() >= self._looked_ms + LOOK_MS:
                    self._require_same_topics()
                self._store()
                self._commit()
                self._wait_for_commits()
                if self._damage is not None:
                    raise self._damage
        except Exception as error:
            if not self._is_closing.is_set():
                self._receiver.on_ended(f"it cannot read from Kafka: {error}", error)
        finally:
            self._leave()
            self._has_ended.set()

    def close(self, timeout_s: float) -> None:
        """Leave the group, and wait for that. What is gathered and not stored, somebody else will read."""
        self._is_closing.set()
        self._has_ended.wait(timeout_s)

    # -- the group -----------------------------------------------------------------------------

    def _open(self) -> None:
        params = self._receiver.params
        settings = params.settings()
        self._errors = ConnectionErrors(settings["bootstrap.servers"])
        self._commits = MemberCommits(self._receiver.group, self._errors, self._clock)
        self._cluster = cluster = KafkaCluster(settings, params.owner)
        found = cluster.partitions(self._receiver.topics)
        if missing := [topic for topic in self._receiver.topics if topic not in found]:
            raise SourceError(
                f"there is no topic {' and no topic '.join(missing)} at {self._errors.servers}: create it, "
                "or correct the name",
                "kafka",
            )
        self._receiver.has_seen([part for parts in found.values() for part in parts])
        ours = {
            "group.id": self._receiver.group,
            "error_cb": self._on_error,
            "on_commit": self._commits.answered,
            **_OURS,
        }
        self._consumer = made(Consumer, {**_DEFAULTS, **settings, **ours}, params.owner)
        self._consumer.subscribe(
            list(self._receiver.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _on_assign(self, consumer: Any, assigned: list[KafkaPartition]) -> None:
        """Begin where the group stands: step 1."""
        parts = [TopicPartition(each.topic, each.partition) for each in assigned]
        cluster = self._cluster
        assert cluster is not None
        self._topic_ids = cluster.topic_ids({part.topic for part in parts})
        made_again = self._receiver.topics_made_again(self._topic_ids)
        committed = positions_of(consumer.committed(assigned, timeout=COMMITTED_S))
        first, last = cluster.earliest(parts), cluster.latest(parts)
        # A group may be behind an open transaction: its reader has read with another isolation level.
        ends = cluster.latest_of_all(parts) if cluster.committed_only else last
        if gone := {
            part for part in parts if part not in first or part not in last or part not in ends
        }:
            raise SourceError(f"these do not exist any more: {described(gone)}", "kafka")
        begins: Positions = {}
        for part in parts:
            at = committed.get(part)
            if part.topic in made_again:
                at = first[part]
            elif at is None:
                # A partition that has come since the group has begun has nothing that is older.
                is_all = self._receiver.params.reset == EARLIEST or self._receiver.is_new(part)
                at = first[part] if is_all else last[part]
            elif not first[part] <= at <= ends[part]:
                self._receiver.reportError(
                    f"messages of {part} are gone: the group {self._receiver.group} is at offset {at}, and "
                    f"the partition has offsets {first[part]} to before {ends[part]}; the receiver goes on "
                    "with the first of these"
                )
                at = first[part]
            begins[part] = at
        fresh = {part: at for part, at in begins.items() if committed.get(part) != at}
        if fresh:
            commit(consumer, fresh)
        self._receiver.topic_ids.update(self._topic_ids)
        self._next = begins
        self._commits.begin(begins)
        self._gathered = {}
        self._changes += 1
        consumer.assign(_as_kafka(begins))

    def _on_revoke(self, _: Any, revoked: list[KafkaPartition]) -> None:
        """Others get the partitions: what is stored is committed, what is gathered they will read again."""
        if not self._is_leaving:
            with suppress(KafkaException, GivenUpError):  # step 3 makes up for it
                within(LAST_COMMIT_S, self._commit_last)
        self._on_lost(_, revoked)

    def _on_lost(self, _: Any, lost: list[KafkaPartition]) -> None:
        for each in lost:
            part = TopicPartition(each.topic, each.partition)
            self._gathered.pop(part, None)
            self._next.pop(part, None)
        self._changes += 1

    def _commit(self) -> None:
        """Tell Kafka how far the pieces reach: step 5."""
        self._commits.ask(self._consumer, self._next)

    def _commit_last(self) -> None:
        self._commits.commit(self._consumer, self._next)

    def _wait_for_commits(self) -> None:
        """Store no more until Kafka has taken commits, if it has not for many pieces."""
        is_waiting = False
        while self._commits.must_wait and not self._is_closing.is_set():
            is_waiting = True
            # In each round: partitions that have come meanwhile are not paused.
            self._consumer.pause(self._consumer.assignment())
            self._take(self._consume(1, POLL_S))
            self._commit()
        if is_waiting:
            self._consumer.resume(self._consumer.assignment())

    def _leave(self) -> None:
        self._is_leaving = True
        if self._consumer is not None:
            with suppress(Exception):
                within(LAST_COMMIT_S, self._commit_and_close)
        if self._cluster is not None:
            self._cluster.close()

    def _commit_and_close(self) -> None:
        with suppress(KafkaException):
            self._commit_last()
        self._consumer.close()

    # -- messages ------------------------------------------------------------------------------

    def _gather(self) -> None:
        self._bytes = 0
        self._take(self._consume(1, POLL_S))
        until_ms = self._clock.now_ms() + GATHER_MS
        while (
            self._gathered
            and self._damage is None
            and self._bytes < BLOCK_BYTES
            and not self._is_closing.is_set()
        ):
            left_ms = until_ms - self._clock.now_ms()
            if left_ms <= 0:
                return
            self._take(self._consume(CHUNK, left_ms / 1000))

    def _require_same_topics(self) -> None:
        self._looked_ms = self._clock.now_ms()
        assert self._cluster is not None
        found = self._cluster.topic_ids(self._topic_ids)
        for topic, id_ in self._topic_ids.items():
            if topic not in found:
                raise SourceError(f"there is no topic {topic} any more", "kafka")
            if found[topic] != id_:
                raise SourceError(f"topic {topic} was deleted and made again", "kafka")

    def _consume(self, most: int, timeout_s: float) -> list[Message]:
        """Return messages that follow what was consumed before.

        IF partitions have changed hands meanwhile, some messages may have been fetched for the places where
        partitions stood before: then begin again where they stand now.
        """
        changes = self._changes
        messages: list[Message] = self._consumer.consume(most, timeout_s)
        if self._changes == changes:
            return messages
        self._gathered = {}
        if self._next:
            self._consumer.assign(_as_kafka(self._next))
        return []

    def _take(self, messages: list[Message]) -> None:
        self._errors.raise_final()
        for message in messages:
            if (error := message.error()) is not None:
                self._on_message_error(error, message)
                if self._damage is not None:
                    return  # what follows is not stored before it
                continue
            part = TopicPartition(message.topic(), message.partition())
            # Others have the partition by now, or have stored the message before.
            if part in self._next and message.offset() >= self._next[part]:
                self._gathered.setdefault(part, []).append(message)
                self._bytes += len(message)
            if self._is_waiting:
                self._is_waiting = False
                self._errors.forget()
                logger.warning("the Kafka broker at %s answers again", self._errors.servers)

    def _on_error(self, error: KafkaError) -> None:
        self._errors.heard(error)
        if error.code() in _AWAY and not self._is_waiting:
            self._is_waiting = True
            self._receiver.reportError(
                f"a Kafka broker of {self._errors.servers} does not answer ({self._errors.reason}): the "
                "receiver waits for it"
            )

    def _on_message_error(self, error: KafkaError, message: Message) -> None:
        if is_final(error):
            raise refused(self._errors.servers, error)
        if is_unreadable(error):
            where = TopicPartition(message.topic(), message.partition())
            self._damage = unreadable(where, max(message.offset(), self._next.get(where, 0)), error)
            return
        if error.code() in _GONE or error.fatal():
            raise SourceError(f"reading {message.topic()} failed: {error.str()}", "kafka")
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise SourceError(f"there is no topic {message.topic()} any more", "kafka")
        self._errors.heard(error)

    def _store(self) -> None:
        """Make what is gathered a block: steps 2 to 5."""
        while self._gathered and not self._is_closing.is_set():
            ends = {part: each[-1].offset() + 1 for part, each in self._gathered.items()}
            keys = {self._key(part, end).key: part for part, end in ends.items()}
            fault_point("kafka.gathered")
            known = self._receiver.store_pieces(
                [(each.key(), each.value()) for some in self._gathered.values() for each in some],
                [self._key(part, end) for part, end in ends.items()],
            )
            fault_point("kafka.stored")
            if known:
                for key in known:
                    self._skip(keys[key.key], key.records)
            else:
                self._next.update(ends)
                self._commits.stored(len(ends))
                self._gathered = {}
            self._commit()
            fault_point("kafka.committed")

    def _skip(self, part: TopicPartition, end: int) -> None:
        """Go on at the end of a piece that is stored."""
        self._next[part] = max(end, self._next[part])
        left = [each for each in self._gathered.pop(part) if each.offset() >= end]
        if left:
            self._gathered[part] = left

    def _key(self, part: TopicPartition, end: int) -> RequestKey:
        """Return the key of the piece that begins where the partition stands. Its end goes as a number."""
        topic = self._topic_ids.get(part.topic, part.topic)
        return RequestKey(
            _digest(f"{topic}/{part.partition}/{self._next[part]}"), _digest(part.topic), end
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _as_kafka(positions: Positions) -> list[KafkaPartition]:
    return [KafkaPartition(*part, at) for part, at in positions.items()]
