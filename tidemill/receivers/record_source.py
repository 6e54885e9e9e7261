"""The blocks of a receiver as records, for DStreams."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import OffsetRange
from tidemill.batches.parallelism import tasks_for_bytes, tasks_for_records
from tidemill.batches.source import RecordSource
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.rdds.located_rdd import located_rdd

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tidemill.receivers.blocks.reader import BlockReader


class ReceiverSource(TrackedBlocksSource, RecordSource):
    """The blocks of a receiver, read as RDDs. A task runs where its blocks are, if a core is free there."""

    def __init__(self, spark_context: SparkContext, receiver: Receiver) -> None:
        super().__init__(receiver)
        self._sc = spark_context

    def read(self, range_: OffsetRange, tasks: int) -> RDD[Any]:
        blocks = self.kept_blocks(range_)
        if not blocks:
            return self._sc.emptyRDD()
        groups = group_blocks(blocks, tasks)
        return located_rdd(
            self._sc, [(pickle.dumps(tuple(group)), hosts_of(group)) for group in groups]
        ).mapPartitionsWithIndex(_ReadPickled(self._reader))


@dataclass(frozen=True)
class _ReadPickled:
    """Reads groups of blocks, which arrive pickled."""

    reader: BlockReader

    def __call__(self, index: int, groups: Iterable[bytes]) -> Iterator[Any]:
        # The pickles come from the driver, through Spark.
        return self.reader(index, (pickle.loads(group) for group in groups))  # noqa: S301


@dataclass(frozen=True)
class ReceiverSourceFactory:
    """Makes the source of a receiver: when the program defines it, and again when it is recovered."""

    receiver: Receiver

    def __call__(self, spark_context: SparkContext) -> ReceiverSource:
        return ReceiverSource(spark_context, self.receiver)

    def __str__(self) -> str:
        return type(self.receiver).__name__


def hosts_of(blocks: Iterable[BlockInfo]) -> list[str]:
    """Return the hosts that have these blocks, the one with most bytes first; none in local mode."""
    sizes: Counter[str] = Counter()
    for block in blocks:
        for host in {place.host for place in block.places if place.server}:
            sizes[host] += block.bytes
    return [host for host, _ in sizes.most_common()]


def group_blocks(blocks: Sequence[BlockInfo], parallelism: int) -> list[list[BlockInfo]]:
    """Distribute blocks, in order, over as many tasks as they are worth, in groups of about the same size."""
    size = sum(block.bytes for block in blocks)
    records = sum(block.records for block in blocks)
    tasks = max(tasks_for_bytes(size, parallelism), tasks_for_records(records, parallelism))
    bytes_per_task = max(1, -(-size // tasks))
    groups: list[list[BlockInfo]] = [[]]
    grouped_bytes = 0
    for block in blocks:
        if groups[-1] and grouped_bytes + block.bytes // 2 >= bytes_per_task * len(groups):
            groups.append([])
        groups[-1].append(block)
        grouped_bytes += block.bytes
    return groups
