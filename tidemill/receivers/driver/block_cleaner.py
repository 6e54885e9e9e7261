"""Deleting blocks that nobody needs any more, wherever they are."""

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
    """Files of executors, and segments of the write-ahead log.

    A segment is deleted when all its blocks are done and its writer has begun another one. ``files`` are
    the driver's own, in local mode; on a cluster the block servers delete theirs. What cannot be deleted
    is in nobody's way: it is reported, and a segment is tried again.
    """

    calls: ExecutorCalls
    files: BlockFiles | None = None
    storage: Storage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _blocks_in: dict[str, set[str]] = field(default_factory=dict)
    _latest: dict[int, str] = field(default_factory=dict)

    def restore(self, blocks: Iterable[BlockInfo]) -> None:
        """Before receivers start: nobody writes, and what none of these blocks is in is of no use."""
        if self.storage is None:
            return
        for block in blocks:
            self._enter(block)
        for folder in self.storage.list(DATA):
            for segment in segments(self.storage, f"{DATA}/{folder}"):
                if segment.path not in self._blocks_in:
                    self._delete(self.storage, segment.path)

    def note(self, block: BlockInfo) -> None:
        """A new block has been taken over."""
        with self._lock:
            self._enter(block)
            if block.slice_ is not None:
                # Segments sort as they were begun: a block of a receiver that has been replaced since
                # may be reported late, and must not hide the segment that is being written.
                latest = self._latest.get(block.stream_id, "")
                self._latest[block.stream_id] = max(latest, block.slice_.path)

    def _enter(self, block: BlockInfo) -> None:
        if block.slice_ is not None:
            self._blocks_in.setdefault(block.slice_.path, set()).add(block.block_id)

    def clean(self, blocks: Sequence[BlockInfo]) -> None:
        """These blocks are done. Never raises for something that cannot be deleted or reached."""
        if self.files is not None:
            try:
                self.files.delete([block.block_id for block in blocks])
            except OSError as error:
                logger.warning("blocks that are done cannot be deleted: %s", error)
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
            written = set(self._latest.values())
            return [
                path for path, ids in self._blocks_in.items() if not ids and path not in written
            ]

    def _delete(self, storage: Storage, path: str) -> bool:
        try:
            storage.delete(path)
            return True
        except (OSError, TidemillError) as error:
            logger.warning("%s is not needed and cannot be deleted: %s", path, error)
            return False
