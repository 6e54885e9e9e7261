"""Topics of Kafka as a source of rows.

The driver decides which offsets a batch has, and tasks read them. An offset of the source is the JSON of
Spark's own Kafka source, so that a query's checkpoint can be continued by either:
``{"orders": {"0": 23, "1": 45}}`` ends before record 23 of partition 0 and before record 45 of partition 1.

A partition that appears while the stream runs, or before it starts again, begins at offset 0, whatever the
log says of others. If its first records have expired by then, that is a loss like any other. A partition that
disappears keeps its place in the log: should it come back, the stream goes on there. A topic that was deleted
and made again is another topic: see :mod:`tidemill.sources.kafka.topic_ids`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.types import StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.clock import SystemClock
from tidemill.common.options import Options
from tidemill.errors import DamagedCheckpointError, DataLossError, SourceError
from tidemill.kafka.clients.options import BOOTSTRAP_SERVERS
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.consumers import GONE_S, PAUSE_MS, require_valid
from tidemill.kafka.partitions import Positions, TopicPartition, described, from_json, to_json
from tidemill.kafka.records import RangeReader, data_loss, not_read_any_more, schema
from tidemill.kafka.skips import Skips, new_skips, take_skips
from tidemill.kafka.watch import BrokerWatch, broker_of
from tidemill.sources.kafka.lag import LagMeter
from tidemill.sources.kafka.options import OWNER, KafkaReadOptions
from tidemill.sources.kafka.places import all_subscribed, resolve, subscribed
from tidemill.sources.kafka.shares import PartitionRange, share, split
from tidemill.sources.kafka.topic_ids import TopicIds

if TYPE_CHECKING:
    from pyspark import Accumulator

logger = logging.getLogger(__name__)

METADATA_AGE_MS = 30_000
"""How long the driver goes on with the topics and partitions that it knows."""
SPARK_INITIAL = "0"


class KafkaSource(SplitSource):
    """``format("kafka")``."""

    def __init__(self, options: Options | KafkaReadOptions, owner: str = OWNER) -> None:
        self._owner = owner
        self._options = (
            options
            if isinstance(options, KafkaReadOptions)
            else KafkaReadOptions.of_stream(options)
        )
        self._schema = schema(self._options.include_headers)
        self._cluster: KafkaCluster | None = None
        self._watch: BrokerWatch | None = None
        self._partitions: list[TopicPartition] = []
        self._looked_ms = 0
        self._newest: Positions = {}
        self._available: Positions | None = None
        self._last_batch_ms: int | None = None
        # Partitions that do not exist any more, as of the last look.
        self._gone: set[TopicPartition] = set()
        # Offsets that tasks have skipped because they were gone, and how many were reported before.
        self._skips: Accumulator[Skips] | None = None
        self._skipped = 0

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"KafkaV2[{self._options.subscription}]"

    def start(self, runtime: SourceRuntime) -> None:
        client = self._options.client
        self._log = runtime.log
        require_valid(client, self._owner)
        self._cluster = KafkaCluster(client, self._owner, self._options.poll_timeout_s)
        self._watch = BrokerWatch(client, self._owner)
        self._lag = LagMeter(client, self._owner, runtime.clock)
        self._topic_ids = TopicIds(self._cluster, runtime.log, not self._options.fail_on_data_loss)
        self._look_around(runtime.clock.now_ms(), must_exist=True)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are read, as they were at the last look."""
        return self._partitions

    @property
    def cluster(self) -> KafkaCluster:
        return self._kafka

    @property
    def _kafka(self) -> KafkaCluster:
        assert self._cluster is not None, "the source has not been started"
        return self._cluster

    def initial_offset(self) -> Offset:
        """Return where the stream begins, and write it where Spark's source writes and looks for it."""
        known = None if self._log is None else _spark_initial(self._log)
        if known is not None:
            return known
        where = self.starting_positions(self._partitions)
        initial = to_json(where)
        if self._log is not None:
            text = json.dumps(initial, separators=(",", ":"))
            self._log.storage.write(SPARK_INITIAL, b"\0v1\n" + text.encode())
        return initial

    def starting_positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Return where each partition begins. One left out would begin at 0, whatever the options say."""
        clock = SystemClock()
        until_ms = clock.now_ms() + int(GONE_S * 1000)
        while True:
            where = resolve(self._kafka, self._options.starting, partitions, "starting")
            missing = set(partitions) - set(where)
            if not missing:
                return where
            if clock.now_ms() >= until_ms:
                raise SourceError(
                    f"the cluster at {self._kafka.servers} does not say where {described(missing)} begins: "
                    "look whether the topic is being deleted, and start again",
                    "kafka",
                )
            clock.wait_till(clock.now_ms() + PAUSE_MS)

    def prepare_available_now(self) -> None:
        self._available = self._kafka.latest(self._partitions)

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        starts = from_json(start)
        self._tasks_have_read()
        if self._available is None:
            if time_ms >= self._looked_ms + METADATA_AGE_MS:
                self._look_around(time_ms)
            self._newest = self._kafka.latest(self._partitions)
        else:
            self._newest = self._available
        jumps = self._topic_ids.jumps(starts, self._partitions)
        ends = self._without_losses(starts, set(jumps)) | jumps
        if not limit.everything:
            if self._available is None and self._waits_for_more(starts, ends, time_ms):
                return start
            bounds = [most for most in (self._options.max_offsets, limit.max_records) if most]
            if bounds:
                ends = share(starts, ends, min(bounds))
        if ends != starts:
            self._last_batch_ms = time_ms
        return to_json(ends)

    def _without_losses(self, starts: Positions, expected: Collection[TopicPartition]) -> Positions:
        """Return where partitions end. What is gone is an error, or left out if the reader says so.

        A broker that comes back, or leads a partition only now, may know less than there is at first. So a
        loss counts when it has been one for a moment. ``expected`` are losses that are known of already.
        """
        clock = SystemClock()
        until_ms = clock.now_ms() + int(GONE_S * 1000)
        while True:
            ends = dict(self._newest)
            lost = {part: at for part, at in starts.items() if ends.get(part, -1) < at}
            ends.update(self._behind_open_transactions(lost))
            for part, start in list(lost.items()):
                if part in expected or part in self._gone or ends.get(part) == start:
                    del lost[part]
                if part not in ends:
                    ends[part] = start
            if not lost:
                return ends
            self._kafka.raise_if_given_up()
            if clock.now_ms() >= until_ms:
                break
            clock.wait_till(clock.now_ms() + PAUSE_MS)
            self._look_around(self._looked_ms)
            self._newest = self._kafka.latest(self._partitions)
            if self._available is not None:
                self._available = self._newest
        for part, start in lost.items():
            loss = self._loss(part, start)
            if self._options.fail_on_data_loss:
                raise loss
            logger.warning("%s. The stream goes on without it", str(loss).split(". ")[0])
            if part not in self._newest:
                self._gone.add(part)
        return ends

    def _behind_open_transactions(self, starts: Positions) -> Positions:
        """Return those positions that exist, and that a reader of committed rows may not reach yet.

        A stream is there that has read with another isolation level until now.
        """
        if not starts or not self._kafka.committed_only:
            return {}
        ends = self._kafka.latest_of_all(starts)
        return {part: at for part, at in starts.items() if ends.get(part, -1) >= at}

    def _loss(self, part: TopicPartition, start: int) -> DataLossError:
        end = self._newest.get(part)
        if end is not None:
            begin = self._kafka.earliest([part]).get(part, 0)
            return data_loss(part, start, start, (begin, end))
        if part in self._kafka.partitions([part.topic]).get(part.topic, ()):
            return not_read_any_more(part, start)
        return data_loss(part, start, start, None)

    def _waits_for_more(self, starts: Positions, ends: Positions, time_ms: int) -> bool:
        """Say whether a batch has too little to be worth it. As in Spark, the first look finds it is not."""
        least = self._options.min_offsets
        if self._last_batch_ms is None:
            self._last_batch_ms = time_ms
            return False
        if least is None:
            return False
        if _offsets_between(starts, ends) >= least:
            return False
        return time_ms < self._last_batch_ms + self._options.max_trigger_delay_ms

    def _look_around(self, time_ms: int, must_exist: bool = False) -> None:
        """Find out which partitions there are, and that topics are still those that they were.

        With ``must_exist``, what the options name and nobody has is an error.
        """
        look = all_subscribed if must_exist else subscribed
        self._partitions = look(self._kafka, self._options.subscription).partitions
        self._looked_ms = time_ms
        self._gone.difference_update(self._partitions)
        self._topic_ids.look({part.topic for part in self._partitions})

    def newest_offset(self) -> Offset:
        return to_json(self._newest)

    def size(self, range_: OffsetRange) -> RangeSize:
        ranges = _ranges(from_json(range_.start), from_json(range_.end))
        described = ", ".join(
            f"{part.where.topic}-{part.where.partition} {part.start}..{part.end}"
            for part in ranges
            if part.size
        )
        return RangeSize(sum(part.size for part in ranges), None, described)

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        if self._watch is not None:
            self._watch.begin()
        parts = split(
            _ranges(from_json(range_.start), from_json(range_.end)),
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )
        return [
            {
                "topic": part.where.topic,
                "partition": part.where.partition,
                "from": part.start,
                "to": part.end,
                "id": self.topic_id(part.where.topic),
            }
            for part in parts
        ]

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic as of the last look; nothing where it is not known."""
        return "" if self._cluster is None else self._topic_ids.of(topic)

    def processed(self, end: Offset) -> None:
        self._tasks_have_read()

    def _tasks_have_read(self) -> None:
        if self._watch is not None:
            self._watch.end()

    def metrics(self, end: Offset) -> Mapping[str, str]:
        found = self._lag.metrics(from_json(end), self._newest)
        if self._skips is not None:
            self._skipped += take_skips(self._skips)
            found["skippedOffsets"] = str(self._skipped)
        return found

    def waiting_for(self) -> str | None:
        return broker_of(self._options.client[BOOTSTRAP_SERVERS], self._cluster, self._watch)

    def split_reader(self) -> SplitReader:
        names = self._schema.names
        context = SparkContext._active_spark_context
        if not self._options.fail_on_data_loss and self._skips is None and context is not None:
            self._skips = new_skips(context)
        return RangeReader(
            self._options.client,
            self._owner,
            names,
            frozenset(names),
            self._options.fail_on_data_loss,
            self._options.poll_timeout_s,
            self._skips,
        )

    def give_up(self) -> None:
        if self._cluster is not None:
            self._cluster.give_up()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._cluster is not None:
            self._cluster.close()


def _ranges(starts: Positions, ends: Positions) -> list[PartitionRange]:
    return [PartitionRange(part, starts.get(part, 0), end) for part, end in sorted(ends.items())]


def _offsets_between(starts: Positions, ends: Positions) -> int:
    return sum(part.size for part in _ranges(starts, ends))


def _spark_initial(log: SourceLog) -> Any:
    """Return the offset in ``sources/N/0``, which Spark's source and ours write::

    <a zero byte>v1
    {"orders":{"0":0,"1":0}}
    """
    try:
        data = log.storage.read(SPARK_INITIAL)
    except FileNotFoundError:
        return None
    version, _, text = data.decode(errors="replace").partition("\n")
    try:
        if version != "\0v1":
            raise ValueError(f"the first line is {version[:20]!r}")
        positions = from_json(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise DamagedCheckpointError(
            log.storage.full_name(SPARK_INITIAL),
            f"cannot be read as the first offsets of a Kafka source ({error})",
            "If the query has read another source until now, give it a new checkpointLocation. If not, "
            "restore the file from a backup: without it, the stream cannot know where it began.",
            log.storage.uri,
        ) from None
    return to_json(positions)
