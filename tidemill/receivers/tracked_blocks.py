"""The blocks that a receiver has stored, as something that has offsets.

What is read of them depends on the front end: records (:mod:`tidemill.receivers.record_source`) or rows
(:mod:`tidemill.receivers.table_source`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.source import Source
from tidemill.errors import DamagedCheckpointError, TidemillError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.receiver import Receiver

if TYPE_CHECKING:
    from tidemill.receivers.blocks.reader import BlockReader

MOST_NAMES = 10

logger = logging.getLogger(__name__)


class TrackedBlocksSource(Source):
    """Offset: how many blocks of the receiver have been planned.

    The blocks are the tracker's: :meth:`bind` is called before the stream starts.
    """

    replayable = True

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._planned = 0

    def bind(
        self,
        name: str,
        blocks: BlockTracker,
        reader: BlockReader,
        on_forgotten: Callable[[Sequence[BlockInfo]], None],
        has_log: bool = True,
    ) -> None:
        """``reader`` is for tasks; ``on_forgotten`` is told of blocks that nobody will read any more;
        ``has_log`` says whether blocks are in a write-ahead log.
        """
        self.replayable = has_log
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

    def kept_blocks(self, range_: OffsetRange) -> list[BlockInfo]:
        """The blocks of a range, without those that are lost: they have been counted."""
        return [
            block
            for block in self._blocks.blocks(self._name, range_.start, range_.end)
            if not _is_lost(block)
        ]

    def commit(self, end: Offset) -> None:
        try:
            self._on_forgotten(self._blocks.forget(self._name, end))
        except (OSError, TidemillError) as error:
            # They are only kept for longer: the next commit forgets them, too.
            logger.warning(
                "blocks of %s that are done are not forgotten yet: %s", self._name, error
            )


def _is_lost(block: BlockInfo) -> bool:
    return not block.places and block.slice_ is None


def _names_of(blocks: Sequence[BlockInfo]) -> str:
    names = ", ".join(block.block_id for block in blocks[:MOST_NAMES])
    more = len(blocks) - MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names
