"""Sending messages, Arrow batch by Arrow batch, and learning what has become of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from tidemill.errors import SinkError
from tidemill.kafka.clients.delivery_errors import not_delivered
from tidemill.kafka.clients.errors import ConnectionErrors, is_final, made, refused
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS
from tidemill.kafka.clients.waiting import Waiting

if TYPE_CHECKING:
    from confluent_kafka import Message

KEY, VALUE, HEADERS, TOPIC, PARTITION = "key", "value", "headers", "topic", "partition"
COLUMNS = (KEY, VALUE, HEADERS, TOPIC, PARTITION)
"""The columns of messages. All but the value may be missing."""

Header = tuple[str, bytes]

CALL_S = 2.0
FULL_QUEUE_S = 0.1
NEW_TOPIC_S = 5.0
"""How long a topic may be unknown: a cluster that makes topics by itself needs a moment."""

# What happens to a producer, not to its message: what a transaction has met, another attempt may mend.
_OF_THE_PRODUCER = (
    KafkaError._FATAL,
    KafkaError._FENCED,
    KafkaError._STATE,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
)
_QUEUE_KBYTES = "queue.buffering.max.kbytes"
_MOST_KBYTES = 2**31 - 1
# What a program may change.
_DEFAULTS = {
    "partitioner": "murmur2_random",  # a key goes to the same partition as from Kafka's Java clients
    "enable.idempotence": "true",
    "acks": "all",
    "delivery.timeout.ms": "120000",
    "retry.backoff.ms": "10",  # after a transaction, librdkafka waits that long before the next
    "queue.buffering.max.messages": "500000",
    _QUEUE_KBYTES: "65536",
}


def _large_enough(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the size of a queue that has room for the largest message that may be sent."""
    largest = settings.get("message.max.bytes", "").strip()
    if not largest.isdigit():
        return {}  # the default is small, and what is no number is refused by librdkafka
    kbytes = max(int(_DEFAULTS[_QUEUE_KBYTES]), 2 * int(largest) // 1024)
    return {_QUEUE_KBYTES: str(min(kbytes, _MOST_KBYTES))}


@contextmanager
def unmasked() -> Iterator[None]:
    """Raise a fatal error of a producer as the ``KafkaException`` that it is.

    confluent-kafka sets that exception and then calls back for messages: every call in there is a
    ``SystemError``, because an exception is set.
    """
    try:
        yield
    except SystemError as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, KafkaException):
            found = found.__cause__ or found.__context__
        raise found or KafkaException(KafkaError(KafkaError._FATAL)) from None


class MessageProducer:
    """A producer that remembers which topics there are, and which message could not be delivered.

    After an error, :meth:`close` it: what has become of its messages is not known.
    """

    def __init__(self, settings: Mapping[str, str], owner: str, patience_s: float) -> None:
        self._owner = owner
        self._errors = ConnectionErrors(settings[BOOTSTRAP_SERVERS])
        self.waiting = Waiting(owner, self._errors, patience_s)
        self._failed: tuple[KafkaError, str, int] | None = None
        self._settings = {**_DEFAULTS, **_large_enough(settings), **settings}
        self.client: Any = made(
            Producer,
            {
                **self._settings,
                "error_cb": self._errors.heard,
                "on_delivery": self._not_delivered,
                "delivery.report.only.error": True,
            },
            owner,
        )
        self._partitions: dict[str, int] = {}

    def _not_delivered(self, error: KafkaError, message: Message) -> None:
        if self._failed is None or self._failed[0].code() in _OF_THE_PRODUCER:
            self._failed = error, message.topic(), len(message.value() or b"")

    def raise_failed(self) -> None:
        """Raise if a message could not be delivered, or if no message ever will be.

        A ``KafkaException`` is about this producer: a new one may have more luck.
        """
        if self._failed is not None:
            raise self._reason(*self._failed)
        self._errors.raise_final()

    def _reason(self, error: KafkaError, topic: str, size: int) -> Exception:
        if error.fatal() or error.code() in _OF_THE_PRODUCER:
            failure: Exception = KafkaException(error)
            return failure
        return not_delivered(error, topic, size, self._owner, self._errors)

    def send(
        self, messages: pa.RecordBatch, topic: str | None = None, header: Header | None = None
    ) -> None:
        """Queue messages: columns of :data:`COLUMNS`. ``topic`` is for all of them, ``header`` the last of
        each.
        """
        with unmasked():
            self._send(messages, topic, header)

    def _send(self, messages: pa.RecordBatch, topic: str | None, header: Header | None) -> None:
        produce = self.client.produce
        for to, partition, key, value, headers in _rows(messages, topic):
            where = self._where(to, partition)
            while True:
                try:
                    if headers is None and header is None:
                        produce(to, value, key, where)
                    else:
                        produce(to, value, key, where, headers=_all_headers(headers, header, to))
                    break
                except BufferError:
                    if not len(self.client):  # nothing will make room for it
                        raise self._larger_than_the_queue(to, key, value) from None
                    self.client.poll(FULL_QUEUE_S)
                    self.raise_failed()
                except KafkaException as error:
                    self.client.poll(0)
                    self.raise_failed()  # an earlier message may have spoilt the transaction
                    raise self._reason(error.args[0], to, len(value or b"")) from None
        self.client.poll(0)
        self.raise_failed()

    def _larger_than_the_queue(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> SinkError:
        size = len(key or b"") + len(value or b"")
        kbytes = self._settings[_QUEUE_KBYTES]
        return SinkError(
            f"{self._owner} has a message with a key and a value of {size} bytes for topic {topic}, more "
            f"than the producer keeps at once, {kbytes} KiB: leave out the option kafka.buffer.memory "
            "(queue.buffering.max.kbytes), or raise it",
            "kafka",
        )

    def _where(self, topic: str | None, partition: int | None) -> int:
        """Return the partition for a message, -1 for any, and make sure that there is such a place."""
        if not topic:
            raise SinkError(
                f"{self._owner} got a row whose topic is {'null' if topic is None else 'empty'}: every row "
                'needs one, or set .option("topic", ...) for all of them',
                "kafka",
            )
        known = self._partitions.get(topic)
        if known is None:
            known = self._look_up(topic)
        if partition is None:
            return -1
        if partition >= known:  # it may be new
            known = self._look_up(topic)
        if not 0 <= partition < known:
            raise SinkError(
                f"{self._owner} got a row for partition {partition} of topic {topic}, which has the "
                f"partitions 0 to {known - 1}: correct the column partition, or leave it out",
                "kafka",
            )
        return partition

    def require(self, topic: str) -> None:
        """Raise if there is no such topic, and none comes within seconds."""
        self._look_up(topic)

    def _look_up(self, topic: str) -> int:
        """Ask how many partitions a topic has. A cluster that makes topics by itself makes it now."""
        attempts_left = round(NEW_TOPIC_S * 10)
        while True:
            try:
                found = self.client.list_topics(topic, timeout=CALL_S).topics[topic]
            except KafkaException as error:
                self.client.poll(0)
                self.waiting.after(error.args[0])
                continue
            problem = found.error
            if problem is None and found.partitions:
                self.waiting.answered()
                self._partitions[topic] = len(found.partitions)
                return len(found.partitions)
            if problem is not None and is_final(problem):
                raise refused(self._errors.servers, problem, f"topic {topic}")
            attempts_left -= 1
            if attempts_left < 0 or (problem and problem.code() == KafkaError.TOPIC_EXCEPTION):
                raise no_topic(topic, self._errors.servers, self._owner)
            self.waiting.after(problem)

    def flush(self) -> None:
        """Return when the brokers have all messages, or raise: each message has a deadline of its own."""
        with unmasked():
            while self.client.flush(CALL_S):
                self.raise_failed()
                self.waiting.goes_on()
        self.raise_failed()
        self.waiting.answered()

    def close(self) -> None:
        """Drop what has not been sent, and the connections. Idempotent."""
        client, self.client = self.client, None
        if client is not None:
            with suppress(KafkaException), unmasked():
                client.purge()


def no_topic(topic: str, servers: str, owner: str) -> SinkError:
    return SinkError(
        f"{owner} cannot write to topic {topic}: there is none at {servers}. Create it, or correct the name",
        "kafka",
    )


def _rows(messages: pa.RecordBatch, topic: str | None) -> Iterator[Sequence[Any]]:
    """Return topic, partition, key, value and headers of each message."""
    names = messages.schema.names

    def values(name: str) -> Any:
        return messages.column(name).to_pylist() if name in names else repeat(None)

    topics = repeat(topic) if topic is not None else values(TOPIC)
    count = range(messages.num_rows)
    rows = zip(
        topics, values(PARTITION), values(KEY), values(VALUE), values(HEADERS), count, strict=False
    )
    return (row[:5] for row in rows)


def _all_headers(
    headers: Sequence[Mapping[str, Any]] | None, last: Header | None, topic: str
) -> list[tuple[str, bytes | None]]:
    found = []
    for each in headers or ():
        if each is None or each["key"] is None:
            raise SinkError(
                f"a row for topic {topic} has a header without a key: Kafka's headers need one",
                "kafka",
            )
        found.append((each["key"], each["value"]))
    if last is not None:
        found.append(last)
    return found
