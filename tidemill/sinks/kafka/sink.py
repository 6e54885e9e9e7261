"""The sink for ``format("kafka")``."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError, TidemillError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.producers import MessageProducer
from tidemill.kafka.watch import BrokerWatch, broker_of, watched
from tidemill.sinks.kafka.columns import messages_of, require_columns
from tidemill.sinks.kafka.markers import Markers
from tidemill.sinks.kafka.options import OWNER, KafkaWriteOptions
from tidemill.sinks.kafka.transactions import MarkerPlace, TransactionalWriter
from tidemill.sinks.kafka.write_tasks import WRITTEN, CommitMessages, SendMessages
from tidemill.spark.session.partitions import partitions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

RENEW_MS = 3_600_000
"""How long a query may be idle before it renews its markers."""
RETRY_MS = 60_000


def kafka_sink(options: Mapping[str, str], of_the_query: Collection[str] = ()) -> Sink:
    """Make the sink that a writer asks for."""
    asked = KafkaWriteOptions.of_stream(options, of_the_query)
    return ExactlyOnceKafkaSink(asked) if asked.exactly_once else KafkaSink(asked)


class KafkaSink(Sink):
    """Sends the rows of each batch to Kafka, at least once.

    Tasks send while they compute. Each message gets a header, after those of the user's, with the id of the
    query and of the batch, such as ``tidemill-batch: 3b9bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11/12``: a batch
    that runs again comes with the same.
    """

    exactly_once = False

    def __init__(self, options: KafkaWriteOptions) -> None:
        self._options = options
        self._owner = OWNER
        self._query_id = ""
        self._watch: BrokerWatch | None = None

    def description(self) -> str:
        return f"KafkaSink[{self._options.topic or 'column topic'}]"

    def start(self, runtime: SinkRuntime) -> None:
        require_columns(StructType.fromJson(json.loads(runtime.schema_json)), self._options.topic)
        self._owner = f"{OWNER} of {runtime.query_name or runtime.query_id}"
        self._query_id = runtime.query_id
        self._watch = BrokerWatch(self._options.client, self._owner)
        require_topic(self._options, self._owner)

    def stage(self, output: BatchOutput) -> int | None:
        options = self._options
        name = options.header
        header = None
        if name is not None:
            header = name, f"{self._query_id}/{output.batch_id}".encode()
        rows = output.dataframe(consumed_once=True)
        with watched(self._watch):
            return send(rows, options, self._owner, header)

    def commit(self, batch_id: int) -> None:
        pass

    def waiting_for(self) -> str | None:
        return broker_of(self._options.servers, self._watch)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()


def send(
    rows: DataFrame,
    options: KafkaWriteOptions,
    owner: str,
    header: tuple[str, bytes] | None = None,
) -> int:
    """Send rows at least once, in the tasks that compute them. Return how many there were."""
    task = SendMessages(options.client, owner, options.topic, header, options.patience_s)
    messages = messages_of(rows, options.topic)
    return sum(int(row.rows) for row in messages.mapInArrow(task, WRITTEN).collect())


def require_topic(options: KafkaWriteOptions, owner: str) -> None:
    """Refuse now a wrong address, a wrong password, a wrong setting, and a topic that is not there."""
    cluster = KafkaCluster(options.client, owner)
    try:
        cluster.partitions(())
    finally:
        cluster.close()
    producer = MessageProducer(options.client, owner, options.patience_s)
    try:
        if options.topic is not None:
            producer.require(options.topic)
    finally:
        producer.close()


class ExactlyOnceKafkaSink(Sink):
    """Writes each batch once, for readers of committed rows (``isolation.level=read_committed``).

    The tasks themselves commit, each its own transaction: see :mod:`tidemill.sinks.kafka.transactions` for
    the steps. So the rows of a batch are visible when it has been staged, and :meth:`commit` has nothing left
    to do. A batch that runs again, because the query ended before ``commits/N``, finds that it is written.

    With one task, no reader ever sees a half of a batch. With more of them (``exactlyOnceTasks``), a reader
    may see the part of one task before that of another. Rows go to tasks by what is in them.
    """

    def __init__(self, options: KafkaWriteOptions) -> None:
        self._options = options
        self._owner = OWNER
        self._watch: BrokerWatch | None = None
        self._markers: Markers | None = None
        self._writers: tuple[TransactionalWriter, ...] = ()
        # The last batch that all tasks have written, and the one that an earlier run has left.
        self._written = -1
        self._interrupted = -1
        # True from the start of a batch's tasks until they have ended well.
        self._may_be_open = False
        # When the query was first seen without work since the last batch, or the last renewal.
        self._idle_since_ms: int | None = None

    def description(self) -> str:
        return f"KafkaSink[{self._options.topic or 'column topic'}, exactly once]"

    def start(self, runtime: SinkRuntime) -> None:
        options = self._options
        require_columns(StructType.fromJson(json.loads(runtime.schema_json)), options.topic)
        self._owner = f"{OWNER} of {runtime.query_name or runtime.query_id}"
        plain = _without_transactions(options)
        self._watch = BrokerWatch(plain, self._owner)
        require_topic(replace(options, client=plain), self._owner)
        self._require_marker_topic()
        self._first = TransactionalWriter(
            options.client,
            self._owner,
            MarkerPlace(
                options.marker_topic,
                f"{options.id_prefix}-{runtime.query_id}-{runtime.sink_number}",
            ),
            options.topic,
            options.patience_s,
            uuid.uuid4().hex,
        )
        markers = Markers(
            runtime.checkpoint, runtime.sink_number, self._writer, options.unknown_marker
        )
        self._markers = markers
        next_batch = markers.open(options.tasks)
        self._written = next_batch - 1
        self._interrupted = markers.interrupted

    def _require_marker_topic(self) -> None:
        topic = self._options.marker_topic
        cluster = KafkaCluster(_without_transactions(self._options), self._owner)
        try:
            if topic not in cluster.partitions([topic]):
                cluster.create(topic)
        finally:
            cluster.close()

    def _writer(self, task: int) -> TransactionalWriter:
        place = self._first.place
        return replace(self._first, place=replace(place, identity=f"{place.identity}-{task}"))

    def has_batch(self, batch_id: int) -> bool:
        return batch_id <= self._written

    def stage(self, output: BatchOutput) -> int | None:
        markers = self._started()
        batch_id = output.batch_id
        if markers.tasks != self._options.tasks and batch_id != self._interrupted:
            markers.resize(self._options.tasks, batch_id)
        tasks = markers.tasks
        self._may_be_open = True
        rows = output.dataframe(consumed_once=True)
        is_one = tasks == 1 and partitions_of(rows) == 1
        messages = messages_of(rows, self._options.topic, None if is_one else tasks)
        task = CommitMessages(tuple(map(self._writer, range(tasks))), batch_id)
        with watched(self._watch):
            written = messages.mapInArrow(task, WRITTEN).collect()
        fault_point("kafka.staged")
        if sorted(row.task for row in written) != list(range(tasks)):
            raise IllegalStateError(
                f"batch {batch_id} was to be written by {tasks} tasks, and Spark has run {len(written)}"
            )
        self._may_be_open = False
        return sum(int(row.rows) for row in written)

    def stop(self) -> None:
        """Leave no transaction open: that of a task which was killed because the query was stopped."""
        if self._watch is not None:
            self._watch.close()
        if self._may_be_open and self._markers is not None:
            self._may_be_open = False
            try:
                self._markers.abort()
            except TidemillError as error:
                logger.info(
                    "a transaction of %s may be open until it expires: %s", self._owner, error
                )

    def commit(self, batch_id: int) -> None:
        self._written = max(self._written, batch_id)
        self._idle_since_ms = None

    def waiting_for(self) -> str | None:
        return broker_of(self._options.servers, self._watch)

    def idle(self, time_ms: int) -> None:
        """Renew the markers of a query that has long had nothing to do."""
        if self._idle_since_ms is None:
            self._idle_since_ms = time_ms
        elif time_ms >= self._idle_since_ms + RENEW_MS:
            try:
                self._started().renew()
                self._idle_since_ms = time_ms
            except TidemillError as error:
                logger.warning("the markers of %s were not renewed: %s", self._owner, error)
                self._idle_since_ms = time_ms - RENEW_MS + RETRY_MS

    def _started(self) -> Markers:
        if self._markers is None:
            raise IllegalStateError(f"{self.description()} has not started")
        return self._markers


def _without_transactions(options: KafkaWriteOptions) -> dict[str, str]:
    return {
        name: value for name, value in options.client.items() if not name.startswith("transact")
    }
