"""A batch in a Kafka transaction, exactly once, whoever dies.

Each sink task of a query, numbered p, has an identity: ``tidemill-<query id>-<sink>-<p>``. It is the
``transactional.id`` of its producer, and the consumer group under whose name its **marker** is kept: the
committed offset of partition 0 of the marker topic, which holds no messages. The marker is the id of the
first batch that the task has not written. One transaction holds the rows of a batch and its marker.

What happens to the rows of batch N in task p, and what is durable after each step:

1. On the driver: ``offsets/N`` is written, and ``sinks/<sink>/tasks`` says how many sink tasks write it. So
   the task has the same rows whenever the batch runs.
2. The task has all of its rows. It takes the producer that an earlier batch has left in this worker, with
   the marker that it remembers; or makes one. ``init_transactions`` fences all other producers of this
   identity, and aborts what they have left open: they can commit nothing any more.
3. Only then it reads the marker: nobody else can change it now. IF it is N + 1, the batch is written, and
   the task is done. IF it is neither that nor N, the task has been replaced, or the marker is not the one
   that belongs to the checkpoint: an error, and nothing is written. A marker that is only remembered may be
   older, because another worker has written since: then the task makes a producer after all.
4. A transaction begins; the rows are sent, and the marker N + 1. No reader of committed rows sees them.
5. ``commit_transaction``: rows and marker are durable and visible, together. Or neither.
6. The producer is kept in the worker, with the marker N + 1.
7. The driver hears of it. When all tasks are done, it goes on to ``commits/N``.

Whoever dies between 1 and 5 leaves nothing, and between 5 and 7 a marker that lets the batch that runs again
do nothing. An error after which the outcome is not known (a commit that timed out, a producer that was
fenced) drops the producer with all that it remembers, and goes to 2. A worker that was paused while another
took its place finds itself fenced in 4 or 5, and in 3 that its batch is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import SystemClock
from tidemill.common.fault_points import fault_point
from tidemill.errors import SinkError, TidemillError
from tidemill.kafka.clients.bounded_call import GivenUpError, within
from tidemill.kafka.clients.delivery_errors import AWAY
from tidemill.kafka.clients.errors import ConnectionErrors, is_final, made, refused
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS
from tidemill.kafka.clients.pool import ClientPool
from tidemill.kafka.clients.waiting import PAUSE_MS
from tidemill.kafka.producers import CALL_S, NEW_TOPIC_S, MessageProducer, unmasked

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MOST_KEPT = 8
"""How many producers of transactions a worker keeps: each has threads and connections."""
ABORT_S = 5.0
STUCK_S = 15.0
"""How long the marker may take to be sent, before a new producer tries."""

T = TypeVar("T")


@dataclass(frozen=True)
class MarkerPlace:
    """Where the marker of a sink task is, and the name under which the task writes."""

    topic: str
    identity: str

    def __str__(self) -> str:
        return f"the marker of {self.identity} in topic {self.topic}"


class MarkedProducer(MessageProducer):
    """A producer of one identity that has fenced all others, and knows the marker: steps 2 and 3.

    ``marker`` is None if there is none. With ``is_kept`` it is what an earlier batch has left, and another
    worker may have written since: the next transaction of this one would fail.
    """

    is_kept = False

    def __init__(
        self, settings: Mapping[str, str], owner: str, place: MarkerPlace, patience_s: float
    ) -> None:
        super().__init__({**settings, "transactional.id": place.identity}, owner, patience_s)
        self._place = place
        self._stuck_s = min(STUCK_S, patience_s)
        self._is_open = False
        self._left = 0  # messages that were still on their way when it was last looked
        try:
            self._again(lambda: self.client.init_transactions(CALL_S))  # 2
            fault_point("kafka.fenced")
            self.marker, self._group = self._read_marker()  # 3
            self.waiting.answered()
        except BaseException:
            self.close()
            raise
        fault_point("kafka.marker-read")

    def _again(self, call: Callable[[], T]) -> T:
        """Make a call until it succeeds, or fails in a way that another call does not mend."""
        while True:
            try:
                with unmasked():
                    return call()
            except KafkaException as error:
                with unmasked():
                    self.client.poll(0)  # calls back with what has been heard
                self.raise_failed()
                cause = error.args[0]
                if is_final(cause) or not cause.retriable():
                    raise
                left = len(self.client)
                if left < self._left:  # a slow broker is a broker
                    self.waiting.answered()
                self._left = left
                self.waiting.after(cause)

    def _read_marker(self) -> tuple[int | None, Any]:
        """Read the marker. A look at rows that are not committed would lie."""
        settings = {
            "group.id": self._place.identity,
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
        }
        consumer = made(
            Consumer,
            {**self._settings, **settings, "error_cb": self._errors.heard},
            self._owner,
        )
        try:
            while True:
                try:
                    (found,) = consumer.committed(
                        [KafkaPartition(self._place.topic, 0)], timeout=CALL_S
                    )
                    if found.error is not None:
                        raise KafkaException(found.error)
                except KafkaException as error:
                    self._errors.listen(consumer)
                    self.waiting.after(error.args[0])
                else:
                    marker = None if found.offset < 0 else int(found.offset)
                    return marker, consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def commit(
        self, messages: Iterable[pa.RecordBatch], topic: str | None, next_batch: int
    ) -> None:
        """Write messages and the marker ``next_batch``, both or neither."""
        self._is_open = True
        self.client.begin_transaction()  # 4
        for each in messages:
            self.send(each, topic)
        fault_point("kafka.sent")
        self._send_marker(next_batch)
        fault_point("kafka.marked")
        self._again(lambda: self.client.commit_transaction(CALL_S))  # 5
        fault_point("kafka.committed")
        self._is_open = False
        self.marker = next_batch
        self.waiting.answered()

    def _send_marker(self, next_batch: int) -> None:
        client, group = self.client, self._group
        mark = [KafkaPartition(self._place.topic, 0, next_batch)]
        try:
            self._again(
                lambda: within(
                    self._stuck_s, lambda: client.send_offsets_to_transaction(mark, group, CALL_S)
                )
            )
        except GivenUpError:
            # The call still uses the client. It can do no harm: the next producer fences this one.
            self.client, self._is_open = None, False
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    def close(self) -> None:
        """Abort what is open, so that readers need not wait for its time to run out, and drop the rest."""
        if self._is_open and self.client is not None:
            self._is_open = False
            try:
                with unmasked():
                    self.client.purge()
                    self.client.abort_transaction(ABORT_S)
            except KafkaException as error:  # fenced, committed after all, or nobody answers
                logger.debug("no transaction was aborted: %s", error)
        super().close()


_pool: ClientPool[MarkedProducer] = ClientPool(MOST_KEPT)


@dataclass(frozen=True)
class TransactionalWriter:
    """Writes the batches of one sink task. It can be pickled, and remembers nothing itself.

    ``run`` is another one for each start of a query: its workers keep no producer of an earlier run.
    """

    settings: Mapping[str, str] = field(repr=False)
    owner: str
    place: MarkerPlace
    topic: str | None
    patience_s: float
    run: str = ""

    def write(self, batch_id: int, messages: Iterable[pa.RecordBatch]) -> bool:
        """Write a batch unless it is written. Return whether it was necessary.

        ``messages`` are iterated over once for each attempt.
        """

        def attempt(producer: MarkedProducer) -> bool:
            was_kept, producer.is_kept = producer.is_kept, True
            if producer.marker == batch_id + 1:
                return False
            if producer.marker != batch_id and was_kept:
                # Another worker has written since: fence it, and read the marker.
                raise KafkaException(KafkaError(KafkaError._FENCED))
            if producer.marker != batch_id:
                raise does_not_fit(self.place, producer.marker, batch_id)
            producer.commit(messages, self.topic, batch_id + 1)
            return True

        fault_point("kafka.begun")
        written = self._again(self._kept_producer, attempt)
        fault_point("kafka.written")
        return written

    def on_driver(self, use: Callable[[MarkedProducer], T]) -> T:
        """Do something with a new producer, which has fenced all others, and close it."""
        return self._again(lambda: closing(self._producer()), use)

    def _again(
        self,
        lent: Callable[[], AbstractContextManager[MarkedProducer]],
        use: Callable[[MarkedProducer], T],
    ) -> T:
        """Go to step 2 until nothing unknown has happened on the way, at least once more after a failure."""
        clock = SystemClock()
        failed_ms: int | None = None
        while True:
            try:
                with lent() as producer:
                    return use(producer)
            except KafkaException as error:
                if is_final(error.args[0]):
                    is_about_topic = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
                    what = f"topic {self.topic}" if is_about_topic and self.topic else ""
                    raise refused(self.settings[BOOTSTRAP_SERVERS], error.args[0], what) from None
                now_ms = clock.now_ms()
                if failed_ms is None:
                    failed_ms = now_ms
                is_topic_gone = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                patience_s = min(NEW_TOPIC_S, self.patience_s) if is_topic_gone else self.patience_s
                if now_ms > failed_ms + round(patience_s * 1000):
                    raise self._gives_up(error.args[0]) from None
                logger.info("%s: %s, and tries again", self.place.identity, error)
                clock.wait_till(now_ms + PAUSE_MS)

    def _kept_producer(self) -> AbstractContextManager[MarkedProducer]:
        version = (self.run, tuple(sorted(self.settings.items())))
        return _pool.lend(self.place.identity, version, self._producer)

    def _producer(self) -> MarkedProducer:
        return MarkedProducer(self.settings, self.owner, self.place, self.patience_s)

    def _gives_up(self, error: KafkaError) -> TidemillError:
        if error.code() in AWAY:
            errors = ConnectionErrors(self.settings[BOOTSTRAP_SERVERS])
            errors.heard(error)
            return errors.unavailable(self.patience_s)
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return SinkError(
                f"{self.owner} cannot keep {self.place}: there is no such topic. Start the query again: it "
                "creates the topic. If it was deleted, so were the markers, and with a batch that was "
                "interrupted the option unknownMarker has to say whether that is written",
                "kafka",
            )
        timeout = self.settings["transaction.timeout.ms"]
        return SinkError(
            f"{self.owner} could not commit a transaction as {self.place.identity} in "
            f"{self.patience_s:.0f} s ({error.str()}): if batches need longer than "
            f"kafka.transaction.timeout.ms ({timeout}), raise it or make them smaller; and nobody else may "
            "write under this transactional id",
            "kafka",
        )


def does_not_fit(place: MarkerPlace, marker: int | None, batch_id: int) -> SinkError:
    """Return the error of a task that finds another marker than its driver has left."""
    found = "is gone" if marker is None else f"says that batch {marker} is next"
    return SinkError(
        f"batch {batch_id} is not written to Kafka: {place} {found}. Another program has written under this "
        "name, or the topic of markers was deleted. Start the query again: it finds out which batches there "
        "are",
        "kafka",
    )
