"""Topics as a batch: ``spark.read.format("kafka")``."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import SourceRuntime
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.common.options import Options
from tidemill.errors import DataLossError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.consumers import require_valid
from tidemill.kafka.partitions import Positions, TopicPartition, from_json, to_json
from tidemill.kafka.records import RangeReader, schema
from tidemill.sources.kafka.options import OWNER, KafkaReadOptions
from tidemill.sources.kafka.places import all_subscribed, resolve
from tidemill.sources.kafka.shares import PartitionRange, split


class KafkaBatchSource(SplitSource):
    """What lies between two places of topics when the batch is made. It has one range, and gives it once."""

    def __init__(self, options: Options) -> None:
        self._options = KafkaReadOptions.of_batch(options)
        self._cluster: KafkaCluster | None = None
        self._partitions: list[TopicPartition] = []

    def schema(self) -> StructType:
        return schema(self._options.include_headers)

    def description(self) -> str:
        return f"KafkaV2[{self._options.subscription}]"

    def start(self, runtime: SourceRuntime) -> None:
        require_valid(self._options.client, OWNER)
        self._cluster = KafkaCluster(self._options.client, OWNER, self._options.poll_timeout_s)
        self._partitions = all_subscribed(self._cluster, self._options.subscription).partitions

    @property
    def _kafka(self) -> KafkaCluster:
        assert self._cluster is not None, "the source has not been started"
        return self._cluster

    def initial_offset(self) -> Offset:
        return self._existing(
            resolve(self._kafka, self._options.starting, self._partitions, "starting"), "begin"
        )

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        return self._existing(
            resolve(self._kafka, self._options.ending, self._partitions, "ending"), "end"
        )

    def _existing(self, positions: Positions, which: str) -> Offset:
        """Refuse positions that are not there (any more): a task would wait for their records in vain."""
        first, last = self._kafka.earliest(positions), self._kafka.latest_of_all(positions)
        there = {
            part: min(max(at, first.get(part, 0)), last.get(part, 0))
            for part, at in positions.items()
        }
        for part, at in positions.items():
            if at != there[part] and self._options.fail_on_data_loss:
                raise DataLossError(
                    f"{part} has offsets {first.get(part, 0)} to before {last.get(part, 0)}, and the batch "
                    f"is to {which} at {at}. Correct the offsets, or read what is there: "
                    '.option("failOnDataLoss", "false")',
                    str(part),
                    at,
                    there[part],
                )
        return to_json(there)

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(sum(part.size for part in _ranges(range_)))

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        options = self._options
        parts = split(_ranges(range_), options.min_partitions, options.max_records_per_partition)
        return [
            {"topic": p.where.topic, "partition": p.where.partition, "from": p.start, "to": p.end}
            for p in parts
        ]

    def split_reader(self) -> SplitReader:
        names = self.schema().names
        options = self._options
        return RangeReader(
            options.client,
            OWNER,
            names,
            frozenset(names),
            options.fail_on_data_loss,
            options.poll_timeout_s,
        )

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()


def _ranges(range_: OffsetRange) -> list[PartitionRange]:
    starts, ends = from_json(range_.start), from_json(range_.end)
    return [PartitionRange(part, start, ends.get(part, start)) for part, start in starts.items()]
