"""Topics of Kafka as a source of records, for direct streams.

1. When a batch is planned, the driver asks where partitions end, and decides which offsets the batch has.
2. They are in ``offsets/N`` before the batch runs.
3. Each task reads one range. A batch that runs again, after whatever has died, has the same ranges.
4. When the batch is done, its offsets are committed to the consumer group, if the program wants that.

The offset of the source is the JSON of Spark's Kafka source, as for queries
(:mod:`tidemill.sources.kafka.source`, which also finds new partitions and loss of data).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import UNLIMITED, AdmissionLimit, Offset, RangeSize
from tidemill.batches.batch import OffsetRange as BatchRange
from tidemill.batches.source import RecordSource, SourceRuntime
from tidemill.checkpoint.source_log import SourceLog
from tidemill.errors import OptionError
from tidemill.kafka.consumer_params import ConsumerParams
from tidemill.kafka.group import ConsumerGroup
from tidemill.kafka.partitions import (
    EARLIEST,
    LATEST,
    Positions,
    TopicPartition,
    described,
    from_json,
    to_json,
)
from tidemill.kafka.ranges import OffsetRange
from tidemill.kafka.settings import KAFKA_POLL_MS
from tidemill.kafka.skips import new_skips, take_skips_between
from tidemill.sources.kafka.direct.group import GroupCommits
from tidemill.sources.kafka.direct.limits import PartitionLimits
from tidemill.sources.kafka.direct.rdd import Decoders, KafkaRDD, RangeTask
from tidemill.sources.kafka.options import KafkaReadOptions, Place, Subscription
from tidemill.sources.kafka.shares import PartitionRange, split
from tidemill.sources.kafka.source import KafkaSource

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DirectStream:
    """What a program says of a direct stream. It makes the source when the stream starts or is recovered."""

    params: ConsumerParams
    subscription: Subscription
    from_offsets: Positions
    decoders: Decoders
    batch_ms: int
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    commits: bool = False
    fail_on_data_loss: bool = True

    def __call__(self, spark_context: SparkContext) -> KafkaDirectSource:
        return KafkaDirectSource(spark_context, self)

    def __str__(self) -> str:
        # A new version of the program may read more or fewer topics.
        return "topics of Kafka"

    def read_options(self, client: dict[str, str], patience_s: float) -> KafkaReadOptions:
        return KafkaReadOptions(
            client=client,
            subscription=self.subscription,
            starting=Place(everywhere=self._reset),
            ending=Place(everywhere=LATEST),
            max_offsets=None,
            min_offsets=None,
            max_trigger_delay_ms=0,
            min_partitions=self.min_partitions,
            max_records_per_partition=self.max_records_per_partition,
            fail_on_data_loss=self.fail_on_data_loss,
            include_headers=False,
            poll_timeout_s=patience_s,
        )

    @property
    def _reset(self) -> int:
        """Where partitions begin that the program names no offset for.

        Without a word about it that is the end, as in PySpark; but where the program has offsets of its own,
        a partition that they lack has come since they were written down.
        """
        if self.params.reset is not None:
            return self.params.reset
        return EARLIEST if self.from_offsets else LATEST


class KafkaDirectSource(RecordSource):
    """Gives the messages of topics to a DStream, as RDDs that know their ranges of offsets."""

    def __init__(self, spark_context: SparkContext, stream: DirectStream) -> None:
        self._sc = spark_context
        self._stream = stream
        self._owner = stream.params.owner
        conf = spark_context.getConf()
        self._limits = PartitionLimits.from_conf(conf, stream.batch_ms)
        self._patience_s = KAFKA_POLL_MS.read(conf) / 1000
        self._topics: KafkaSource | None = None
        self._group: GroupCommits | None = None
        self._left: set[str] = set()
        self._has_failed = False
        # Offsets that tasks have skipped because they were gone, if that is allowed.
        self._skips = None if stream.fail_on_data_loss else new_skips(spark_context)

    @property
    def _source(self) -> KafkaSource:
        assert self._topics is not None, "the source has not been started"
        return self._topics

    def start(self, runtime: SourceRuntime) -> None:
        self._client = self._stream.params.settings()
        options = self._stream.read_options(self._client, self._patience_s)
        self._topics = KafkaSource(options, self._owner)
        log = _NotesInMemory() if runtime.log is None else runtime.log
        self._topics.start(replace(runtime, log=log))
        if self._stream.commits:
            self._group = GroupCommits(self._consumer_group())

    def _consumer_group(self) -> ConsumerGroup:
        name = self._stream.params.group_id
        assert name is not None
        return ConsumerGroup(self._client, name, self._owner, self._patience_s)

    def initial_offset(self) -> Offset:
        """Return where the stream begins.

        Where ``fromOffsets`` says; ELSE, IF offsets are committed to the group, where the group stands; ELSE
        where ``auto.offset.reset`` says.
        """
        partitions = self._source.partitions
        known = dict(self._stream.from_offsets)
        if unknown := set(known) - set(partitions):
            raise OptionError(
                f"fromOffsets of {self._owner} names partitions that do not exist: {described(unknown)}",
                "fromOffsets",
            )
        if self._stream.commits:
            group = self._consumer_group()
            try:
                known |= group.committed([part for part in partitions if part not in known])
            finally:
                group.close()
        rest = [part for part in partitions if part not in known]
        return to_json(known | self._source.starting_positions(rest))

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        starts = self._still_read(from_json(start))
        found = from_json(self._source.latest_offset(to_json(starts), UNLIMITED, time_ms))
        ends = {part: end for part, end in found.items() if part in starts}
        if not limit.everything:
            ends = self._limits.apply(starts, ends, limit.max_records)
        # The batch that first sees a partition has nothing of it, and logs where the next one begins.
        new = self._source.cluster.earliest([part for part in found if part not in starts])
        return to_json(ends | new)

    def _still_read(self, starts: Positions) -> Positions:
        """Leave out topics that an earlier version of the program has read, and this one does not."""
        kept = {part: at for part, at in starts.items() if self._reads(part)}
        if gone := {part.topic for part in starts.keys() - kept.keys()} - self._left:
            self._left |= gone
            logger.warning("the stream no longer reads %s", ", ".join(sorted(gone)))
        return kept

    def _reads(self, part: TopicPartition) -> bool:
        subscription = self._stream.subscription
        if subscription.pattern is not None:
            return subscription.pattern.fullmatch(part.topic) is not None
        return part in subscription.partitions or part.topic in subscription.topics

    def newest_offset(self) -> Offset | None:
        return self._source.newest_offset()

    def size(self, range_: BatchRange) -> RangeSize:
        ends = from_json(range_.end)
        starts = ends | from_json(range_.start)
        return self._source.size(
            replace(range_, start=to_json({part: starts[part] for part in ends}))
        )

    def records_read(self, range_: BatchRange) -> int | None:
        records = self.size(range_).records
        if self._skips is None or records is None:
            return records
        skipped = take_skips_between(self._skips, from_json(range_.start), from_json(range_.end))
        if skipped:
            logger.warning("%d messages were gone before a batch has read them: skipped", skipped)
        return records - skipped

    def read(self, range_: BatchRange, tasks: int) -> KafkaRDD:
        # Only what the log has decides which offsets a task reads, never what the driver has heard since.
        starts, ends = from_json(range_.start), from_json(range_.end)
        ranges = [PartitionRange(part, starts.get(part, end), end) for part, end in ends.items()]
        pieces = split(ranges, self._stream.min_partitions, self._stream.max_records_per_partition)
        pieces += [each for each in ranges if not each.size]
        task = RangeTask(
            self._client,
            self._owner,
            self._stream.decoders,
            self._stream.fail_on_data_loss,
            self._patience_s,
            {part.topic: self._source.topic_id(part.topic) for part in ends},
            self._skips,
        )
        return KafkaRDD(self._sc, map(_offset_range, pieces), task)

    def processed(self, end: Offset) -> None:
        self._source.processed(end)
        if self._group is not None and not self._has_failed:
            self._group.put(from_json(end))

    def failed(self, range_: BatchRange) -> None:
        """Commit nothing any more: who begins where the group stands is to read the failed batch again."""
        if self._group is not None and not self._has_failed:
            self._has_failed = True
            logger.warning(
                "a batch has failed: from now on no offsets are committed to the consumer group %s, so "
                "that a stream that is started again reads the batch again",
                self._stream.params.group_id,
            )

    def stop(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()
        if self._topics is not None:
            self._topics.stop()


def _offset_range(each: PartitionRange) -> OffsetRange:
    # A partition whose end went back has no messages.
    return OffsetRange(
        each.where.topic, each.where.partition, each.start, max(each.start, each.end)
    )


class _NotesInMemory(SourceLog):
    """What a source notes in a stream without a checkpoint directory."""

    def __init__(self) -> None:
        self._entries: dict[str, list[Any]] = {}

    def put(self, name: str, values: Iterable[Any]) -> None:
        self._entries[name] = list(values)

    def get(self, name: str) -> list[Any] | None:
        return self._entries.get(name)

    def entries(self) -> dict[str, list[Any]]:
        return dict(self._entries)

    def delete(self, name: str) -> None:
        self._entries.pop(name, None)

    def clear(self) -> None:
        self._entries.clear()
