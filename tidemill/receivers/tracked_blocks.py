"""The blocks that a receiver has stored, as a source with offsets.

DStreams read records from them (:mod:`tidemill.receivers.record_source`), queries read rows
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
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records
from tidemill.receivers.driver.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.receiver import Receiver

if TYPE_CHECKING:
    from tidemill.receivers.blocks.reader import BlockReader

MAX_LISTED_BLOCKS = 10

logger = logging.getLogger(__name__)


class TrackedBlocksSource(Source):
    """A source whose offset is the number of the receiver's blocks planned so far.

    The block tracker has the blocks: :meth:`bind` must be called before the stream starts.
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
        on_processed: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect the source to the blocks of its stream.

        ``reader`` reads blocks in tasks; ``on_forgotten`` is called with blocks that no batch will read any
        more, ``on_processed`` when batches are done; ``has_log`` is True if the blocks are in a write-ahead
        log.
        """
        self.replayable = has_log
        self._name = name
        self._blocks = blocks
        self._reader = reader
        self._on_forgotten = on_forgotten
        self._on_processed = on_processed

    def read_back(self) -> ReadBack:
        """Return the function that reads a block as the tasks of this source will."""
        return read_back_records

    @property
    def has_unplanned(self) -> bool:
        """True while some blocks belong to no batch yet."""
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
                f"knows {known} blocks of {self._name}, but batches have been planned with {end}",
                "Restore the folder from a backup: nothing else says which blocks the receivers have stored.",
            )

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        # All blocks: the rate limiter of the receiver has limited them where they came in.
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
        """Return the blocks of a range without the lost ones, which ``size`` has reported."""
        return [
            block
            for block in self._blocks.blocks(self._name, range_.start, range_.end)
            if not _is_lost(block)
        ]

    def processed(self, end: Offset) -> None:
        self._blocks.process(self._name, end)
        self._on_processed()

    def commit(self, end: Offset) -> None:
        try:
            self._on_forgotten(self._blocks.forget(self._name, end))
        except (OSError, TidemillError) as error:
            # They are only kept for longer: the next commit forgets them as well.
            logger.warning(
                "blocks of %s that are done could not be forgotten yet: %s", self._name, error
            )


def _is_lost(block: BlockInfo) -> bool:
    return not block.places and block.slice_ is None


def _names_of(blocks: Sequence[BlockInfo]) -> str:
    names = ", ".join(block.block_id for block in blocks[:MAX_LISTED_BLOCKS])
    more = len(blocks) - MAX_LISTED_BLOCKS
    return f"{names} and {more} more" if more > 0 else names
