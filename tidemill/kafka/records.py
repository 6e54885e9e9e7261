"""The messages of a range as rows: the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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

from tidemill.errors import DataLossError
from tidemill.kafka.consumers import OffsetGoneError, pool, without_collection
from tidemill.kafka.partitions import TopicPartition

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
    """Reads splits in tasks. A split is ``{"topic", "partition", "from", "to"}``.

    ``columns`` are those that are made; the others of ``names`` are null. Making a column takes as long as
    fetching the messages, so a query that uses few of them asks for those only (:meth:`for_columns`).
    """

    settings: Mapping[str, str]
    owner: str
    names: Sequence[str]
    columns: frozenset[str]
    fail_on_data_loss: bool
    patience_s: float

    def for_columns(self, names: Sequence[str]) -> RangeReader:
        """Return a reader that gives only these columns, and makes no others."""
        return replace(self, names=tuple(names), columns=frozenset(names))

    def __call__(self, split: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        where = TopicPartition(split["topic"], split["partition"])
        for messages in self.messages(where, split["from"], split["to"]):
            yield self._batch(where, messages)

    def messages(self, where: TopicPartition, start: int, end: int) -> Iterator[list[Message]]:
        """Yield the messages of a range in lists, or say that some of them are gone."""
        while True:
            with pool.consumer(self.settings, where, self.owner) as consumer:
                try:
                    yield from consumer.messages(start, end, self.patience_s)
                    return
                except OffsetGoneError as gone:
                    bounds = consumer.bounds()
                    if self.fail_on_data_loss:
                        raise data_loss(where, gone.offset, end, bounds) from None
                    at = gone.offset
                if bounds is None or not at < bounds[0] < end:
                    return
                start = bounds[0]

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
    return DataLossError(
        f"records of {where} are gone: the stream is at offset {start}, its batch ends before {end}, and "
        f"{there}. They expired, or the topic was truncated, or deleted and made again. To go on with what "
        'is there, set .option("failOnDataLoss", "false"); to begin anew, use a new checkpointLocation',
        str(where),
        start,
        found,
    )


def made_again(topic: str) -> DataLossError:
    """Return the error for a topic that was deleted and made again."""
    return DataLossError(
        f"topic {topic} was deleted and made again: what the stream had not read is gone, and offsets begin "
        "anew. To read the new topic from its beginning, use a new checkpointLocation or set "
        '.option("failOnDataLoss", "false")',
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
