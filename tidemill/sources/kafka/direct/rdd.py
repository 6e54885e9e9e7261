"""An RDD of ranges of offsets: one task reads one range."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Message
from pyspark.core.rdd import PipelinedRDD

from tidemill.common.fault_points import fault_point
from tidemill.kafka.partitions import TopicPartition
from tidemill.kafka.ranges import Decoder, KafkaMessageAndMetadata, OffsetRange, utf8_decoder
from tidemill.kafka.records import RangeReader
from tidemill.tasks.worker import tune_worker

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from tidemill.kafka.skips import Skips

Handler = Callable[[KafkaMessageAndMetadata], Any]


@dataclass(frozen=True)
class Decoders:
    """What becomes of a message: a pair of key and value, or what ``handler`` makes of it."""

    key: Decoder = utf8_decoder
    value: Decoder = utf8_decoder
    handler: Handler | None = None

    def records(self, where: TopicPartition, messages: Sequence[Message]) -> list[Any]:
        """Decode messages. An error says which one could not be decoded."""
        decoded = self._decoded(where, messages)
        # Thousands of objects that all stay alive make the collector look at them in vain.
        collecting = gc.isenabled()
        gc.disable()
        done: list[Any] = []
        try:
            done.extend(decoded)
            if len(done) < len(messages):
                # It would look as if there were no more messages.
                raise RuntimeError("a function for messages raised StopIteration")
        except Exception as error:
            at = messages[len(done)].offset() if len(done) < len(messages) else "?"
            error.add_note(f"This was the message with offset {at} of {where}.")
            raise
        finally:
            if collecting:
                gc.enable()
        return done

    def _decoded(self, where: TopicPartition, messages: Sequence[Message]) -> Iterable[Any]:
        key, value, handler = self.key, self.value, self.handler
        if handler is None:
            # No call of Python for a message but those of the decoders.
            keys, values = map(Message.key, messages), map(Message.value, messages)
            return zip(map(key, keys), map(value, values), strict=True)
        topic, partition = where

        def handled(message: Message) -> Any:
            made = KafkaMessageAndMetadata(
                topic, partition, message.offset(), message.key(), message.value()
            )
            return handler(made._decoded_by(key, value))

        return map(handled, messages)


@dataclass(frozen=True)
class RangeTask:
    """``mapPartitionsWithIndex`` function that reads ranges of offsets. Settings may have secrets."""

    settings: Mapping[str, str] = field(repr=False)
    owner: str
    decoders: Decoders
    fail_on_data_loss: bool
    patience_s: float
    # A topic that is made again under its name has another id.
    topic_ids: Mapping[str, str]
    skipped: Accumulator[Skips] | None = None

    def __call__(self, _: int, ranges: Iterable[OffsetRange]) -> Iterator[Any]:
        tune_worker()
        reader = RangeReader(
            self.settings,
            self.owner,
            (),
            frozenset(),
            self.fail_on_data_loss,
            self.patience_s,
            self.skipped,
        )
        for each in ranges:
            if not each.count():
                continue
            where = each.topicAndPartition
            id_ = self.topic_ids.get(each.topic, "")
            for messages in reader.messages(where, each.fromOffset, each.untilOffset, id_):
                fault_point("kafka.fetched")
                yield from self.decoders.records(where, messages)


class KafkaRDD(PipelinedRDD[Any, Any]):
    """The messages of some ranges of offsets.

    Partition N of the RDD is range N of :meth:`offsetRanges`. Ranges without messages come last, and no task
    is spent on them.
    """

    def __init__(
        self, spark_context: SparkContext, ranges: Iterable[OffsetRange], task: RangeTask
    ) -> None:
        given = list(ranges)
        full = [each for each in given if each.count()]
        self._ranges = [*full, *(each for each in given if not each.count())]
        # An RDD without partitions would have no count, instead of a count of 0.
        parts = full or self._ranges[:1]
        super().__init__(spark_context.parallelize(parts, max(1, len(parts))), task)

    def offsetRanges(self) -> list[OffsetRange]:
        """Return the ranges of this RDD."""
        return list(self._ranges)
