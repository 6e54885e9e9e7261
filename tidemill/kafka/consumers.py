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

from tidemill.common.clock import SystemClock
from tidemill.errors import BrokerUnavailableError, SourceError
from tidemill.kafka.client_errors import ConnectionErrors, is_final, made, refused
from tidemill.kafka.client_options import BOOTSTRAP_SERVERS
from tidemill.kafka.partitions import TopicPartition

MOST_KEPT = 32
"""How many consumers a worker keeps: each has threads, a connection and fetched messages."""
CHUNK = 10_000
POLL_S = 1.0
GAP_S = 0.1

# What a program may not change: a range is read from its first offset to its last, whatever a group says.
_OURS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "group.id": "tidemill-reader",  # librdkafka asks for one; assigned partitions do not use it
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
}
_NO_PARTITION = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
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
        self._clock = SystemClock()
        self._position = -1  # where the next range begins if it follows the last one
        self._fetched: list[Message] = []  # messages behind the last range
        self._partition_end = -1  # where the partition was said to end
        self._has_gaps = False  # it has had fewer messages than offsets

    def messages(self, start: int, end: int, patience_s: float) -> Iterator[list[Message]]:
        """Yield the messages with offsets from ``start`` to before ``end``, in lists.

        Offsets that no message has are no loss: compaction, aborted transactions and the marks of
        transactions leave gaps. Raises :class:`OffsetGoneError` if the partition does not have ``start``.
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
            self._fetched, self._partition_end = [], -1
            self._consumer.assign([KafkaPartition(*self._where, start)])
        self._position = start

    def _next(self, end: int, patience_s: float) -> list[Message]:
        """Return messages before ``end``, and keep those behind it for the next range."""
        messages, self._fetched = self._fetched, []
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
        while True:
            found = self._consume(most)
            self._errors.raise_final()
            if any(map(Message.error, found)):
                for message in found:
                    if (error := message.error()) is not None:
                        self._handle(error, message)
                messages = [message for message in found if message.error() is None]
                self._notice_gaps(messages)
                return messages
            if found:
                self._notice_gaps(found)
                return found
            waited_s = (self._clock.now_ms() - began_ms) / 1000
            if waited_s >= patience_s:
                raise self._errors.unavailable(waited_s)

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

    def _handle(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._partition_end = message.offset()
        elif code in _GONE:
            raise OffsetGoneError(self._where, self._position)
        elif is_final(error):
            raise refused(self._errors.servers, error)
        elif error.fatal():
            raise SourceError(f"reading {self._where} failed: {error.str()}", "kafka")
        else:
            self._errors.heard(error)

    def bounds(self) -> tuple[int, int] | None:
        """Return where the partition begins and ends now, None if it does not exist."""
        try:
            low, high = self._consumer.get_watermark_offsets(
                KafkaPartition(*self._where), timeout=10
            )
            return int(low), int(high)
        except KafkaException as error:
            if error.args[0].code() in _NO_PARTITION:
                return None
            raise BrokerUnavailableError(str(error.args[0].str()), self._errors.servers) from None

    def close(self) -> None:
        self._consumer.close()


def _consumer(settings: Mapping[str, str], owner: str, errors: ConnectionErrors) -> Any:
    return made(Consumer, {**_DEFAULTS, **settings, **_OURS, "error_cb": errors.heard}, owner)


def require_valid(settings: Mapping[str, str], owner: str) -> None:
    """Raise for a setting that no consumer takes: on the driver, before any task meets it."""
    _consumer(settings, owner, ConnectionErrors("")).close()


class OffsetGoneError(Exception):
    """The partition has no such offset: it was deleted, truncated or made again."""

    def __init__(self, where: TopicPartition, offset: int) -> None:
        super().__init__(f"{where} has no offset {offset}")
        self.where = where
        self.offset = offset


class ConsumerPool:
    """The consumers of one process. A consumer is taken out while it is used, so that nobody shares it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: OrderedDict[Any, PartitionConsumer] = OrderedDict()

    @contextmanager
    def consumer(
        self, settings: Mapping[str, str], where: TopicPartition, owner: str
    ) -> Iterator[PartitionConsumer]:
        """Lend a consumer. One that has met an error is not kept."""
        if self._pid != os.getpid():
            # A forked process has the memory of librdkafka, and none of its threads.
            self._idle, self._pid = OrderedDict(), os.getpid()
        key = (where, tuple(sorted(settings.items())))
        consumer = self._idle.pop(key, None) or PartitionConsumer(settings, where, owner)
        try:
            yield consumer
        except BaseException:
            consumer.close()
            raise
        self._idle[key] = consumer
        while len(self._idle) > MOST_KEPT:
            _, oldest = self._idle.popitem(last=False)
            oldest.close()

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()


pool = ConsumerPool()
