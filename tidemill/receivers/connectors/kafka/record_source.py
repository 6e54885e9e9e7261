"""The messages that a Kafka receiver has stored, decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import OffsetRange
from tidemill.receivers.connectors.kafka.receiver import KafkaReceiver
from tidemill.receivers.record_source import ReceiverSource

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

Decoder = Callable[[bytes | None], Any]


@dataclass(frozen=True)
class KafkaReceiverStream:
    """Makes the source: when the program defines it, and again when it is recovered."""

    receiver: KafkaReceiver
    key_decoder: Decoder
    value_decoder: Decoder

    def __call__(self, spark_context: SparkContext) -> ReceiverSource:
        return _DecodedMessages(spark_context, self)

    def __str__(self) -> str:
        return type(self.receiver).__name__


class _DecodedMessages(ReceiverSource):
    def __init__(self, spark_context: SparkContext, stream: KafkaReceiverStream) -> None:
        super().__init__(spark_context, stream.receiver)
        self._decode = _Decode(stream.key_decoder, stream.value_decoder)

    def read(self, range_: OffsetRange, tasks: int) -> RDD[Any]:
        return super().read(range_, tasks).mapPartitions(self._decode)


@dataclass(frozen=True)
class _Decode:
    key: Decoder
    value: Decoder

    def __call__(self, messages: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        key, value = self.key, self.value
        return ((key(message[0]), value(message[1])) for message in messages)
