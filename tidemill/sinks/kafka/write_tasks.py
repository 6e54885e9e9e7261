"""What the tasks of the Kafka sink do: ``mapInArrow`` functions that take messages and say what they did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import KafkaException

from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError, SinkError
from tidemill.kafka.clients.pool import ClientPool
from tidemill.kafka.producers import Header, MessageProducer
from tidemill.sinks.kafka.spool import Spool
from tidemill.tasks.batch_context import task_partition
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from tidemill.sinks.kafka.transactions import TransactionalWriter

WRITTEN = "task int, rows long"
"""The columns of the only row that a task returns."""

MOST_KEPT = 4

_pool: ClientPool[MessageProducer] = ClientPool(MOST_KEPT)


@dataclass(frozen=True)
class SendMessages:
    """Sends each message at least once. ``header`` is added to each."""

    settings: Mapping[str, str] = field(repr=False)
    owner: str
    topic: str | None
    header: Header | None
    patience_s: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_worker()
        rows = 0
        version = tuple(sorted(self.settings.items()))
        try:
            with _pool.lend(version, version, self._producer) as producer:
                for batch in batches:
                    producer.send(batch, self.topic, self.header)
                    rows += batch.num_rows
                fault_point("kafka.queued")
                producer.flush()
        except KafkaException as error:
            raise SinkError(
                f"{self.owner} cannot go on with its producer: {error.args[0].str()}", "kafka"
            ) from None
        fault_point("kafka.delivered")
        yield _report(task_partition(), rows)

    def _producer(self) -> MessageProducer:
        return MessageProducer(self.settings, self.owner, self.patience_s)


@dataclass(frozen=True)
class CommitMessages:
    """Writes the messages of a task in one transaction: see :mod:`tidemill.sinks.kafka.transactions`.

    ``writers`` has the writer of each task.
    """

    writers: tuple[TransactionalWriter, ...]
    batch_id: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_worker()
        task = task_partition()
        if task >= len(self.writers):
            raise IllegalStateError(
                f"task {task} of the kafka sink has no name of its own: there are {len(self.writers)}"
            )
        with Spool(batches) as messages:
            self.writers[task].write(self.batch_id, messages)
            rows = messages.rows
        yield _report(task, rows)


def _report(task: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"task": pa.array([task], pa.int32()), "rows": pa.array([rows], pa.int64())}
    )
