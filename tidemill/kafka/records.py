"""The messages of a range as rows: the columns of Spark's Kafka source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.common.clock import SystemClock
from tidemill.common.fault_points import fault_point
from tidemill.errors import DataLossError
from tidemill.kafka.consumers import PAUSE_MS, OffsetGoneError, pool, without_collection
from tidemill.kafka.partitions import TopicPartition
from tidemill.kafka.skips import Skips

if TYPE_CHECKING:
    from pyspark import Accumulator

logger = logging.getLogger(__name__)

MOST_TRIES = 10
"""How often a reader tries an offset that the partition has, although the broker has denied it."""

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
_ARROW = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}


def schema(with_headers: bool) -> StructType:
    """Return the columns of the source. All are nullable, as Spark's are."""
    columns = {**COLUMNS, "headers": HEADERS} if with_headers else COLUMNS
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


@dataclass(frozen=True)
class RangeReader:
    """Reads splits in tasks. A split is ``{"topic", "partition", "from", "to"}``, and ``"id"``, the topic's
    id, where it is known.

    ``columns`` are those that are made; the others of ``names`` are null. Making a column takes as long as
    fetching the messages, so a query that uses few of them asks for those only (:meth:`for_columns`).
    ``skipped`` is where tasks report offsets that were gone, if that is allowed, by topic, partition and the
    first of them.
    """

    settings: Mapping[str, str] = field(repr=False)  # it may have secrets
    owner: str
    names: Sequence[str]
    columns: frozenset[str]
    fail_on_data_loss: bool
    patience_s: float
    skipped: Accumulator[Skips] | None = None

    def for_columns(self, names: Sequence[str]) -> RangeReader:
        """Return a reader that gives only these columns, and makes no others."""
        return replace(self, names=tuple(names), columns=frozenset(names))

    def __call__(self, split: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        where = TopicPartition(split["topic"], split["partition"])
        found = self.messages(where, split["from"], split["to"], split.get("id", ""))
        for messages in found:
            yield self._batch(where, messages)

    def messages(
        self, where: TopicPartition, start: int, end: int, topic_id: str = ""
    ) -> Iterator[list[Message]]:
        """Yield the messages of a range in lists, or say that some of them are gone."""
        tries = 0
        while start < end:
            try:
                with pool.consumer(self.settings, where, self.owner, topic_id) as consumer:
                    try:
                        fault_point("kafka.before-fetch")
                        for messages in consumer.messages(start, end, self.patience_s):
                            fault_point("kafka.fetched")
                            yield messages
                        fault_point("kafka.range-read")
                        return
                    except OffsetGoneError:
                        bounds = consumer.bounds(self.patience_s)
                        raise
            except OffsetGoneError as gone:
                start = gone.offset
            if bounds is not None and bounds[0] <= start < bounds[1] and tries < MOST_TRIES:
                tries += 1  # it is there: the broker that said no was not up to date
                self.pause()
                continue
            if self.fail_on_data_loss:
                raise data_loss(where, start, end, bounds)
            # Of what is left, only what the partition begins with behind the gap can still come.
            goes_on_at = bounds[0] if bounds is not None and start < bounds[0] < end else end
            self._report_skipped(where, start, goes_on_at)
            start = goes_on_at

    @staticmethod
    def pause() -> None:
        clock = SystemClock()
        clock.wait_till(clock.now_ms() + PAUSE_MS)

    def _report_skipped(self, where: TopicPartition, start: int, end: int) -> None:
        logger.warning("%s: offsets %d to before %d are gone, and skipped", where, start, end)
        if self.skipped is not None:
            self.skipped.add({(*where, start): end - start})

    def _batch(self, where: TopicPartition, messages: list[Message]) -> pa.RecordBatch:
        """Return messages as a batch. Their list is empty afterwards, so that they go at once."""
        with without_collection():
            arrays = [
                _MAKERS[name](where, messages)
                if name in self.columns
                else pa.nulls(len(messages), _ARROW[name])
                for name in self.names
            ]
            messages.clear()
        fields = [pa.field(name, _ARROW[name]) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def data_loss(
    where: TopicPartition, start: int, end: int, bounds: tuple[int, int] | None
) -> DataLossError:
    """Return the error that names the partition, what the stream needs, and what there is."""
    if bounds is None:
        found, there = None, "it does not exist any more"
    else:
        found = bounds[0] if bounds[0] > start else bounds[1]
        there = f"it has offsets {bounds[0]} to before {bounds[1]}"
    batch = f", its batch ends before {end}" if end > start else ""
    return DataLossError(
        f"records of {where} are gone: the stream is at offset {start}{batch}, and {there}. They expired, "
        "or the topic was truncated, or deleted and made again. To go on with what is there, set "
        "failOnDataLoss to false; to begin anew, use a new checkpoint directory",
        str(where),
        start,
        found,
    )


def not_read_any_more(where: TopicPartition, start: int) -> DataLossError:
    """Return the error for a partition that the stream has read, and that its options leave out now."""
    return DataLossError(
        f"{where} is not among what the options of the reader name any more: the stream has read it up to "
        f"offset {start}, and what comes after that would never be read. Name it again; to leave it out, set "
        '.option("failOnDataLoss", "false")',
        str(where),
        start,
        None,
    )


def made_again(topic: str) -> DataLossError:
    """Return the error for a topic that was deleted and made again."""
    return DataLossError(
        f"topic {topic} was deleted and made again: what the stream had not read is gone, and offsets begin "
        "anew. To read the new topic from its beginning, use a new checkpoint directory or set "
        "failOnDataLoss to false",
        f"topic {topic}",
        0,
        None,
    )


def _timestamps(_: TopicPartition, messages: list[Message]) -> pa.Array:
    ms = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
    return pa.array(ms * 1000).view(pa.timestamp("us", tz="UTC"))


def _timestamp_types(_: TopicPartition, messages: list[Message]) -> pa.Array:
    # librdkafka counts from 0 for "none", Kafka's Java client from -1.
    kinds = (message.timestamp()[0] - 1 for message in messages)
    return pa.array(np.fromiter(kinds, np.int32, len(messages)))


def _headers(_: TopicPartition, messages: list[Message]) -> pa.Array:
    rows = []
    for message in messages:
        found = message.headers()
        rows.append([{"key": key, "value": value} for key, value in found] if found else None)
    return pa.array(rows, _ARROW["headers"])


_MAKERS: dict[str, Callable[[TopicPartition, list[Message]], pa.Array]] = {
    "key": lambda _, messages: pa.array(list(map(Message.key, messages)), pa.binary()),
    "value": lambda _, messages: pa.array(list(map(Message.value, messages)), pa.binary()),
    "topic": lambda where, messages: pa.repeat(pa.scalar(where.topic), len(messages)),
    "partition": lambda where, messages: pa.repeat(
        pa.scalar(where.partition, pa.int32()), len(messages)
    ),
    "offset": lambda _, messages: pa.array(
        np.fromiter(map(Message.offset, messages), np.int64, len(messages))
    ),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
