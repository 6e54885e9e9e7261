"""Deleting blocks that no batch needs any more, wherever they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import segments
from tidemill.errors import TidemillError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.files import BlockFiles
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.executor.block_handler import DATA

logger = logging.getLogger(__name__)


@dataclass
class BlockCleaner:
    """Deletes files of executors and segments of the write-ahead log.

    It deletes a segment when all its blocks are done and its writer has begun another segment. ``files`` are
    the driver's own, in local mode; on a cluster the block servers delete theirs. A failure is only logged,
    because leftover files do no harm; a segment is tried again later.
    """

    calls: ExecutorCalls
    files: BlockFiles | None = None
    storage: Storage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _blocks_in: dict[str, set[str]] = field(default_factory=dict)
    _latest_segments: dict[int, str] = field(default_factory=dict)

    def restore(self, blocks: Iterable[BlockInfo]) -> None:
        """Before receivers start, delete all segments that have none of these blocks: nobody writes yet."""
        if self.storage is None:
            return
        for block in blocks:
            self._add_to_segment(block)
        for folder in self.storage.list(DATA):
            for segment in segments(self.storage, f"{DATA}/{folder}"):
                if segment.path not in self._blocks_in:
                    self._delete(self.storage, segment.path)

    def on_new_block(self, block: BlockInfo) -> None:
        """Remember the segment of a new block."""
        with self._lock:
            self._add_to_segment(block)
            if block.slice_ is not None:
                # Segments sort by their beginning: the late report of a receiver that has been replaced
                # must not hide the segment that is being written.
                latest = self._latest_segments.get(block.stream_id, "")
                self._latest_segments[block.stream_id] = max(latest, block.slice_.path)

    def _add_to_segment(self, block: BlockInfo) -> None:
        if block.slice_ is not None:
            self._blocks_in.setdefault(block.slice_.path, set()).add(block.block_id)

    def clean(self, blocks: Sequence[BlockInfo]) -> None:
        """Delete blocks whose batches are done. Only log what cannot be deleted or reached."""
        if self.files is not None:
            try:
                self.files.delete([block.block_id for block in blocks])
            except OSError as error:
                logger.warning("cannot delete blocks that are done: %s", error)
        by_server: dict[str, list[str]] = {}
        for block in blocks:
            for place in block.places:
                if place.server:
                    by_server.setdefault(place.server, []).append(block.block_id)
        for server, block_ids in by_server.items():
            self.calls.cleanup(server, tuple(block_ids), 0)
        if self.storage is not None:
            for path in self._done_segments(blocks):
                if self._delete(self.storage, path):
                    with self._lock:
                        del self._blocks_in[path]

    def _done_segments(self, blocks: Sequence[BlockInfo]) -> list[str]:
        with self._lock:
            for block in blocks:
                if block.slice_ is not None:
                    self._blocks_in.get(block.slice_.path, set()).discard(block.block_id)
            open_segments = set(self._latest_segments.values())
            return [
                path
                for path, ids in self._blocks_in.items()
                if not ids and path not in open_segments
            ]

    def _delete(self, storage: Storage, path: str) -> bool:
        try:
            storage.delete(path)
            return True
        except (OSError, TidemillError) as error:
            logger.warning("cannot delete %s, which is no longer needed: %s", path, error)
            return False
