"""Consumers that stay open in a Python worker, each at its place in one partition.

A new consumer needs 20 to 40 ms before its first message, one that seeks 5, and one that already stands where
the next range begins less than one. So a worker keeps the consumers of the partitions that it has read last.
"""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import Clock, SystemClock
from tidemill.errors import SourceError
from tidemill.kafka.clients.errors import (
    ConnectionErrors,
    is_final,
    is_unreadable,
    made,
    refused,
    unreadable,
)
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS, reads_committed
from tidemill.kafka.partitions import TopicPartition

MOST_KEPT = 32
"""How many consumers a worker keeps: each has threads, a connection and fetched messages."""
KEPT_MS = 300_000
"""How long a worker keeps a consumer that nobody uses: its query may have ended."""
CHUNK = 10_000
POLL_S = 1.0
PAUSE_MS = 200
GAP_S = 0.1
END_S = 10.0
"""How long a partition may seem to end before the range that is read, as it does while replicas catch up."""
GONE_S = 3.0
"""How long a partition must have been unknown to the cluster before it is taken for deleted."""

# What a program may not change: a range is read from its first offset to its last, whatever a group says.
_OURS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
}
# What a program may change.
_DEFAULTS = {
    # The default of a second leaves librdkafka idle when its queue has been full for a moment.
    "fetch.queue.backoff.ms": "0",
    "queued.min.messages": "100000",
    "queued.max.messages.kbytes": "16384",
    # Java's default; librdkafka's own is read_committed.
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": "100",
    # As Java's clients do: a record that the disk of a broker has changed is no record.
    "check.crcs": "true",
    # librdkafka asks for one, and clusters may allow some only. Positions in it are neither read nor written.
    "group.id": "tidemill-reader",
}
_NO_PARTITION = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, *_NO_PARTITION)


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector from looking, again and again, at thousands of messages that all live on.

    That takes twice as long as fetching them.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class PartitionConsumer:
    """A consumer of one partition that knows where it stands."""

    def __init__(self, settings: Mapping[str, str], where: TopicPartition, owner: str) -> None:
        self._errors = ConnectionErrors(settings[BOOTSTRAP_SERVERS])
        self._where = where
        self._consumer: Any = _consumer(settings, owner, self._errors)
        self._settings = settings
        self._owner = owner
        self._clock = SystemClock()
        self._position = -1  # where the next range begins if it follows the last one
        self._fetched: list[Message] = []  # messages behind the last range
        self._partition_end = -1  # where the partition was said to end
        self._has_gaps = False  # it has had fewer messages than offsets
        # Messages from this offset on that cannot be read, and why.
        self._damage: tuple[int, KafkaError] | None = None

    def messages(self, start: int, end: int, patience_s: float) -> Iterator[list[Message]]:
        """Yield the messages with offsets from ``start`` to before ``end``, in lists.

        Offsets that no message has are no loss: compaction, aborted transactions and the marks of
        transactions leave gaps. Messages that cannot be read are an error, when everything before them has
        been given. Raises :class:`OffsetGoneError` if the partition does not have ``start``.
        """
        self._go_to(start)
        while self._position < end:
            with without_collection():
                found = self._next(end, patience_s)
            if found:
                yield found

    def _go_to(self, start: int) -> None:
        if self._position == start:
            return
        if self._fetched and self._position < start <= self._fetched[-1].offset():
            self._fetched = [each for each in self._fetched if each.offset() >= start]
        else:
            self._fetched, self._partition_end, self._damage = [], -1, None
            self._consumer.assign([KafkaPartition(*self._where, start)])
        self._position = start

    def _next(self, end: int, patience_s: float) -> list[Message]:
        """Return messages before ``end``, and keep those behind it for the next range."""
        messages, self._fetched = self._fetched, []
        if not messages and self._damage is not None:
            offset, error = self._damage
            if offset < end:
                raise unreadable(self._where, max(offset, self._position), error)
            self._position = end
            return []
        if not messages:
            messages = self._poll(min(CHUNK, end - self._position), patience_s)
        cut = len(messages)
        while cut and messages[cut - 1].offset() >= end:
            cut -= 1
        if cut < len(messages):
            self._fetched = messages[cut:]
            # Everything before these has been read, with gaps or without.
            self._position = end
        else:
            after_last = messages[-1].offset() + 1 if messages else self._position
            # Behind the last message may be marks of transactions, which nobody sees.
            self._position = max(after_last, self._partition_end)
        return messages[:cut]

    def _poll(self, most: int, patience_s: float) -> list[Message]:
        """Wait for a message, or for the partition's end, and take what has come with it."""
        began_ms = self._clock.now_ms()
        next_look_s = END_S
        while True:
            found = self._consume(most)
            self._errors.raise_final()
            if any(map(Message.error, found)):
                messages, said = self._without_errors(found)
            else:
                messages, said = found, bool(found)
            if said:
                self._errors.forget()
                self._notice_gaps(messages)
                return messages
            if self._errors.last_code in _NO_PARTITION:
                # librdkafka says so once, and waits for the topic to be made.
                raise OffsetGoneError(self._where, self._position)
            waited_s = (self._clock.now_ms() - began_ms) / 1000
            is_at_end = self._position == self._partition_end
            if waited_s >= next_look_s and is_at_end:
                # The rest of the range may be gone: a leader that had lost records was elected.
                if not self._has_open_transaction(patience_s):
                    raise OffsetGoneError(self._where, self._position)
                next_look_s += END_S
            if waited_s >= patience_s:
                if is_at_end and self._has_open_transaction(patience_s):
                    raise _open_transaction(self._where, self._position, waited_s)
                raise self._errors.unavailable(waited_s)

    def _without_errors(self, found: list[Message]) -> tuple[list[Message], bool]:
        """Return the messages among what has come, and whether it says how far the partition can be read."""
        messages: list[Message] = []
        says_something = False
        for message in found:
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._partition_end = message.offset()
                says_something = True
            elif is_unreadable(error):
                self._damage = message.offset(), error
                return messages, True
            else:
                self._handle(error)
        return messages, says_something or bool(messages)

    def _has_open_transaction(self, patience_s: float) -> bool:
        """Say whether there are rows behind the end that this consumer sees: nobody has committed them."""
        if not reads_committed(self._settings):
            return False
        bounds = self.bounds(patience_s)
        return bounds is not None and bounds[0] <= self._position < bounds[1]

    def _consume(self, most: int) -> list[Message]:
        """Return messages: ``most``, if no offset is without one, and at least one if there is any.

        librdkafka waits until it has as many as it is asked for. In a partition without gaps they all come,
        and taking many at once costs the least. In one with gaps it would wait in vain.
        """
        if most > 1 and not self._has_gaps and (found := self._consumer.consume(most, GAP_S)):
            return list(found)
        found = self._consumer.consume(1, POLL_S)
        if found and most > 1:
            found += self._consumer.consume(most - 1, 0)
        return list(found)

    def _notice_gaps(self, messages: list[Message]) -> None:
        after_last = messages[-1].offset() + 1 if messages else self._position
        passed = max(after_last, self._partition_end) - self._position
        self._has_gaps = self._has_gaps or passed > len(messages)

    def _handle(self, error: KafkaError) -> None:
        if error.code() in _GONE:
            raise OffsetGoneError(self._where, self._position)
        if is_final(error):
            raise refused(self._errors.servers, error)
        if error.fatal():
            raise SourceError(f"reading {self._where} failed: {error.str()}", "kafka")
        self._errors.heard(error)

    def bounds(self, patience_s: float) -> tuple[int, int] | None:
        """Return where the partition begins and ends now, None if it does not exist.

        The rows of open transactions count, whatever the consumer may see.
        """
        if not reads_committed(self._settings):
            return self._bounds(self._consumer, patience_s)
        every = {**self._settings, "isolation.level": "read_uncommitted"}
        consumer = _consumer(every, self._owner, self._errors)
        try:
            return self._bounds(consumer, patience_s)
        finally:
            consumer.close()

    def _bounds(self, consumer: Any, patience_s: float) -> tuple[int, int] | None:
        began_ms = self._clock.now_ms()
        while True:
            try:
                low, high = consumer.get_watermark_offsets(
                    KafkaPartition(*self._where), timeout=POLL_S * 5
                )
                return int(low), int(high)
            except KafkaException as error:
                cause = error.args[0]
            waited_s = (self._clock.now_ms() - began_ms) / 1000
            if cause.code() in _NO_PARTITION:
                # A broker that comes back may not know its partitions at first.
                if waited_s >= GONE_S:
                    return None
            elif is_final(cause):
                raise refused(self._errors.servers, cause)
            else:
                self._errors.heard(cause)
                if waited_s >= patience_s:
                    raise self._errors.unavailable(waited_s)
            self._clock.wait_till(self._clock.now_ms() + PAUSE_MS)

    def close(self) -> None:
        self._consumer.close()


def _consumer(settings: Mapping[str, str], owner: str, errors: ConnectionErrors) -> Any:
    return made(Consumer, {**_DEFAULTS, **settings, **_OURS, "error_cb": errors.heard}, owner)


def new_consumer(settings: Mapping[str, str], owner: str) -> Any:
    """Return a consumer for a short look, which reads what others cannot see of it and says nothing."""
    return _consumer(settings, owner, ConnectionErrors(settings[BOOTSTRAP_SERVERS]))


def require_valid(settings: Mapping[str, str], owner: str) -> None:
    """Raise for a setting that no consumer takes: on the driver, before any task meets it."""
    _consumer(settings, owner, ConnectionErrors("")).close()


def _open_transaction(where: TopicPartition, offset: int, waited_s: float) -> SourceError:
    return SourceError(
        f"a transaction that begins at offset {offset} of {where} has been open for the {waited_s:.0f} s "
        "that the reader has waited, and with isolation.level=read_committed nobody may read on. Start the "
        "query again when the producer has ended it, or its transaction.timeout.ms has",
        "kafka",
    )


class OffsetGoneError(Exception):
    """The partition has no such offset: it was deleted, truncated or made again."""

    def __init__(self, where: TopicPartition, offset: int) -> None:
        super().__init__(f"{where} has no offset {offset}")
        self.where = where
        self.offset = offset


class ConsumerPool:
    """The consumers of one process. A consumer is taken out while it is used, so that nobody shares it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._pid = os.getpid()
        self._clock = clock or SystemClock()
        # With the time since when each is idle, the longest first.
        self._idle: OrderedDict[Any, tuple[int, PartitionConsumer]] = OrderedDict()

    @contextmanager
    def consumer(
        self, settings: Mapping[str, str], where: TopicPartition, owner: str, topic_id: str = ""
    ) -> Iterator[PartitionConsumer]:
        """Lend a consumer. One that has met an error is not kept.

        ``topic_id`` is that of the topic, as far as it is known: a consumer may have fetched messages of a
        topic that was deleted and made again since, and so has nothing for a reader of the new one.
        """
        if self._pid != os.getpid():
            # A forked process has the memory of librdkafka, and none of its threads.
            self._idle, self._pid = OrderedDict(), os.getpid()
        key = (where, topic_id, tuple(sorted(settings.items())))
        _, consumer = self._idle.pop(key, (0, None))
        consumer = consumer or PartitionConsumer(settings, where, owner)
        try:
            yield consumer
        except GeneratorExit:
            # The task wants no more of the range, as for take(): the consumer knows where it stands.
            self._keep(key, consumer)
            raise
        except BaseException:
            consumer.close()
            raise
        self._keep(key, consumer)

    def _keep(self, key: Any, consumer: PartitionConsumer) -> None:
        self._idle[key] = self._clock.now_ms(), consumer
        self._drop_those_of_long_ago()

    def _drop_those_of_long_ago(self) -> None:
        last_ms = self._clock.now_ms() - KEPT_MS
        while self._idle:
            since_ms, _ = next(iter(self._idle.values()))
            if len(self._idle) <= MOST_KEPT and since_ms > last_ms:
                return
            self._idle.popitem(last=False)[1][1].close()

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1][1].close()


pool = ConsumerPool()
