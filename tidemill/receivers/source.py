"""The blocks of a receiver, as a source like any other."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_bytes, tasks_for_records
from tidemill.batches.source import RecordSource
from tidemill.errors import DamagedCheckpointError, TidemillError
from tidemill.receivers.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.blocks import BlockInfo
from tidemill.receivers.receiver import Receiver
from tidemill.spark.located_rdd import located_rdd

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tidemill.receivers.block_reader import BlockReader

MOST_NAMES = 10

logger = logging.getLogger(__name__)


class ReceiverSource(RecordSource):
    """Offset: how many blocks of the receiver have been planned.

    The blocks are the tracker's: :meth:`bind` is called before the stream starts.
    """

    def __init__(self, spark_context: SparkContext, receiver: Receiver) -> None:
        self._sc = spark_context
        self.receiver = receiver
        self._planned = 0

    def bind(
        self,
        name: str,
        blocks: BlockTracker,
        reader: BlockReader,
        on_forgotten: Callable[[Sequence[BlockInfo]], None],
    ) -> None:
        self._name = name
        self._blocks = blocks
        self._reader = reader
        self._on_forgotten = on_forgotten

    @property
    def has_unplanned(self) -> bool:
        """True while blocks have been taken over that belong to no batch yet."""
        return self._blocks.end(self._name) > self._planned

    def initial_offset(self) -> Offset:
        return 0

    def resumed(self, start: Offset) -> None:
        self._require_known(start)
        self._planned = start
        lost = [block for block in self._blocks.known(self._name) if _is_lost(block)]
        if lost:
            logger.warning(
                "%d blocks with %d records that %s had received are lost with the executors that had "
                "them, because the write-ahead log was off "
                "(spark.streaming.receiver.writeAheadLog.enable): %s",
                len(lost),
                sum(block.records for block in lost),
                self._name,
                _names_of(lost),
            )

    def _require_known(self, end: Offset) -> None:
        known = self._blocks.end(self._name)
        if known < end:
            raise DamagedCheckpointError(
                FOLDER,
                f"knows {known} blocks of {self._name}, where batches have been planned with {end}",
                "Restore the folder from a backup: without it nobody knows what the receivers have stored.",
            )

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        # All that has been taken over: what comes in is limited where it comes in, by the receiver.
        self._planned = self._blocks.end(self._name)
        return self._planned

    def size(self, range_: OffsetRange) -> RangeSize:
        self._require_known(range_.end)
        blocks = self._blocks.blocks(self._name, range_.start, range_.end)
        lost = [block for block in blocks if _is_lost(block)]
        kept = [block for block in blocks if not _is_lost(block)]
        description = f"{len(kept)} blocks"
        if lost:
            records = sum(block.records for block in lost)
            description += (
                f", {len(lost)} blocks with {records} records are lost: {_names_of(lost)}"
            )
        return RangeSize(
            sum(block.records for block in kept), sum(block.bytes for block in kept), description
        )

    def read(self, range_: OffsetRange) -> RDD[Any]:
        blocks = [
            block
            for block in self._blocks.blocks(self._name, range_.start, range_.end)
            if not _is_lost(block)
        ]
        if not blocks:
            return self._sc.emptyRDD()
        groups = group_blocks(blocks, self._sc.defaultParallelism)
        return located_rdd(
            self._sc, [(pickle.dumps(tuple(group)), hosts_of(group)) for group in groups]
        ).mapPartitionsWithIndex(_Unpickle(self._reader))

    def commit(self, end: Offset) -> None:
        try:
            self._on_forgotten(self._blocks.forget(self._name, end))
        except (OSError, TidemillError) as error:
            # They are only kept for longer: the next commit forgets them, too.
            logger.warning(
                "blocks of %s that are done are not forgotten yet: %s", self._name, error
            )


@dataclass(frozen=True)
class _Unpickle:
    reader: BlockReader

    def __call__(self, index: int, groups: Iterable[bytes]) -> Iterator[Any]:
        # From the driver, by Spark.
        return self.reader(index, (pickle.loads(group) for group in groups))  # noqa: S301


@dataclass(frozen=True)
class ReceiverReader:
    """Makes the source of a receiver, when the program is written and again when it is recovered."""

    receiver: Receiver

    def __call__(self, spark_context: SparkContext) -> ReceiverSource:
        return ReceiverSource(spark_context, self.receiver)

    def __str__(self) -> str:
        return type(self.receiver).__name__


def _is_lost(block: BlockInfo) -> bool:
    return not block.places and block.slice_ is None


def _names_of(blocks: Sequence[BlockInfo]) -> str:
    names = ", ".join(block.block_id for block in blocks[:MOST_NAMES])
    more = len(blocks) - MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names


def hosts_of(blocks: Iterable[BlockInfo]) -> list[str]:
    """The hosts that have most of these blocks, first. In local mode there is nothing to prefer."""
    sizes: Counter[str] = Counter()
    for block in blocks:
        for host in {place.host for place in block.places if place.server}:
            sizes[host] += block.bytes
    return [host for host, _ in sizes.most_common()]


def group_blocks(blocks: Sequence[BlockInfo], parallelism: int) -> list[list[BlockInfo]]:
    """Blocks for tasks: as many tasks as they are worth, of about the same size, in order."""
    size = sum(block.bytes for block in blocks)
    records = sum(block.records for block in blocks)
    tasks = max(tasks_for_bytes(size, parallelism), tasks_for_records(records, parallelism))
    share = max(1, -(-size // tasks))
    groups: list[list[BlockInfo]] = [[]]
    filled = 0
    for block in blocks:
        if groups[-1] and filled + block.bytes // 2 >= share * len(groups):
            groups.append([])
        groups[-1].append(block)
        filled += block.bytes
    return groups
