"""Topics of Kafka as a source of rows.

The driver decides which offsets a batch has, and tasks read them. An offset of the source is the JSON of
Spark's own Kafka source, so that a query's checkpoint can be continued by either:
``{"orders": {"0": 23, "1": 45}}`` ends before record 23 of partition 0 and before record 45 of partition 1.

A partition that appears while the stream runs joins in two steps:

1. The batch that first sees it gets its beginning as the end: no record of it is in that batch.
2. The next batch begins there.

So the log says where its first record is, and a batch that runs again has the same. A topic that was deleted
and made again joins in the same way, if the reader does not want to fail because of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import Any

from pyspark.sql.types import StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.clock import Clock
from tidemill.common.options import Options
from tidemill.errors import DamagedCheckpointError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.consumers import require_valid
from tidemill.kafka.partitions import Positions, TopicPartition, from_json, to_json
from tidemill.kafka.records import RangeReader, data_loss, made_again, schema
from tidemill.sources.kafka.options import OWNER, KafkaReadOptions
from tidemill.sources.kafka.places import resolve, subscribed
from tidemill.sources.kafka.shares import PartitionRange, share, split

logger = logging.getLogger(__name__)

METADATA_AGE_MS = 30_000
"""How long the driver goes on with the topics and partitions that it knows."""
SPARK_INITIAL = "0"
TOPIC_IDS = "topic-ids"


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
        self._partitions: list[TopicPartition] = []
        self._looked_ms: int | None = None
        self._newest: Positions = {}
        self._available: Positions | None = None
        self._last_batch_ms: int | None = None
        # Topics that were made again: where they begin, and the ids to write down then.
        self._begin_at: Positions = {}
        self._topic_ids: dict[str, str] | None = None

    def schema(self) -> StructType:
        return self._schema

    def description(self) -> str:
        return f"KafkaV2[{self._options.subscription}]"

    def start(self, runtime: SourceRuntime) -> None:
        self._clock: Clock = runtime.clock
        self._log = runtime.log
        require_valid(self._options.client, self._owner)
        self._cluster = KafkaCluster(
            self._options.client, self._owner, self._options.poll_timeout_s
        )
        self._look_around(self._clock.now_ms())

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
        where = resolve(self._kafka, self._options.starting, self._partitions, "starting")
        initial = to_json(where)
        if self._log is not None:
            text = json.dumps(initial, separators=(",", ":"))
            self._log.storage.write(SPARK_INITIAL, b"\0v1\n" + text.encode())
        return initial

    def prepare_available_now(self) -> None:
        self._available = self._kafka.latest(self._partitions)

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        starts = from_json(start)
        if self._available is None:
            if self._looked_ms is None or time_ms >= self._looked_ms + METADATA_AGE_MS:
                self._look_around(time_ms)
            latest = self._kafka.latest(self._partitions)
        else:
            latest = self._available
        self._newest = latest
        ends = self._without_losses(starts, latest)
        new = [part for part in ends if part not in starts]
        ends.update(self._kafka.earliest(new))
        ends.update(
            {
                part: at
                for part, at in self._begin_at.items()
                if self._topic_ids and starts[part] != at
            }
        )
        if not limit.everything:
            if self._waits_for_more(starts, ends, time_ms):
                return start
            bounds = [most for most in (self._options.max_offsets, limit.max_records) if most]
            if bounds:
                ends = share(starts, ends, min(bounds))
        if ends != starts:
            self._last_batch_ms = time_ms
        return to_json(ends)

    def _without_losses(self, starts: Positions, latest: Positions) -> Positions:
        """Return where partitions end. What is gone is an error, or left out if the reader says so."""
        ends = dict(latest)
        for part, start in starts.items():
            end = latest.get(part)
            if end is not None and end >= start:
                continue
            if self._available is not None and part not in self._available:
                ends[part] = start  # it came after the stream was told to read what is there
                continue
            bounds = None if end is None else (0, end)
            if self._options.fail_on_data_loss:
                raise data_loss(part, start, start, bounds)
            logger.warning(
                "%s", f"{part} has lost records behind offset {start}: the stream skips them"
            )
        return ends

    def _waits_for_more(self, starts: Positions, ends: Positions, time_ms: int) -> bool:
        least = self._options.min_offsets
        if least is None or _offsets_between(starts, ends) >= least:
            return False
        if self._last_batch_ms is None:
            self._last_batch_ms = time_ms
        return time_ms < self._last_batch_ms + self._options.max_trigger_delay_ms

    def _look_around(self, time_ms: int) -> None:
        """Find out which partitions there are, and that topics are still those that they were."""
        self._partitions = subscribed(self._kafka, self._options.subscription)
        self._looked_ms = time_ms
        if self._log is not None:
            self._check_topic_ids(self._log, {part.topic for part in self._partitions})

    def _check_topic_ids(self, log: SourceLog, topics: Collection[str]) -> None:
        """Notice topics that were deleted and made again: their offsets mean other records."""
        found = self._kafka.topic_ids(topics)
        (known,) = log.get(TOPIC_IDS) or [{}]
        again = {topic for topic, id_ in found.items() if known.get(topic, id_) != id_}
        if again and self._options.fail_on_data_loss:
            raise made_again(min(again))
        if again:
            logger.warning("%s: made again, the stream reads from the beginning", ", ".join(again))
            parts = [part for part in self._partitions if part.topic in again]
            self._begin_at = self._kafka.earliest(parts)
        new = {**known, **found}
        if again:
            self._topic_ids = new  # written when a batch is done that knows of it
        elif new != known:
            log.put(TOPIC_IDS, [new])

    def processed(self, end: Offset) -> None:
        if self._topic_ids is not None and self._log is not None:
            positions = from_json(end)
            if all(positions.get(part) == at for part, at in self._begin_at.items()):
                self._log.put(TOPIC_IDS, [self._topic_ids])
                self._topic_ids = None

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
        starts, ends = from_json(range_.start), from_json(range_.end)
        new = [part for part, end in ends.items() if part not in starts and end > 0]
        if new:
            # A batch of ours has nothing of them, and one that Spark has planned begins at their beginning.
            starts.update(self._kafka.earliest(new))
        parts = split(
            _ranges(starts, ends),
            self._options.min_partitions,
            self._options.max_records_per_partition,
        )
        return [
            {
                "topic": part.where.topic,
                "partition": part.where.partition,
                "from": part.start,
                "to": part.end,
            }
            for part in parts
        ]

    def split_reader(self) -> SplitReader:
        names = self._schema.names
        return RangeReader(
            self._options.client,
            OWNER,
            names,
            frozenset(names),
            self._options.fail_on_data_loss,
            self._options.poll_timeout_s,
        )

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


def _ranges(starts: Positions, ends: Positions) -> list[PartitionRange]:
    return [PartitionRange(part, starts.get(part, end), end) for part, end in sorted(ends.items())]


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
