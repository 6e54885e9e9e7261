"""Deleting blocks that no batch needs any more, wherever they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.checkpoint.log_segments import segments
from tidemill.checkpoint.storage import Storage
from tidemill.errors import TidemillError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.files import BlockFiles
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.executor.block_handler import DATA

SERVER_TRIES = 3
SWEEP_EVERY = 500
"""After how many batches segments are looked for that have no block."""

logger = logging.getLogger(__name__)


@dataclass
class BlockCleaner:
    """Deletes files of executors and segments of the write-ahead log.

    It deletes a segment when all its blocks are done, and its writer has said that it will report no other
    block from it: with each block, a receiver names the oldest segment that has a block which it has stored
    and not reported yet. ``files`` are the driver's own, in local mode; on a cluster the block servers delete
    theirs. What cannot be deleted is tried again with the next blocks: a segment until it works, the files of
    a block server that does not answer ``SERVER_TRIES`` times.

    A segment may have no block that was ever added: the driver refused it, or its write was given up and
    ended after all. Such segments are looked for now and then, because a listing of an object store is slow.
    """

    calls: ExecutorCalls
    files: BlockFiles | None = None
    storage: Storage | None = None
    # Leave the blocks of batches that are over where they are, for readers outside of the stream.
    keeps_files: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _blocks_in: dict[str, set[str]] = field(default_factory=dict)
    # For each folder of segments, the oldest one from which its receiver may report a block.
    _oldest_open: dict[str, str] = field(default_factory=dict)
    # For each block server that did not answer, what it has not deleted, and how often it was asked.
    _undeleted: dict[str, tuple[list[str], int]] = field(default_factory=dict)
    _batches_until_sweep: int = SWEEP_EVERY

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

    def on_new_block(self, block: BlockInfo, oldest_segment: str = "") -> None:
        """Remember the segment of a new block, whose receiver reports no block before ``oldest_segment``.

        Empty: none before the segment of this block.
        """
        with self._lock:
            self._add_to_segment(block)
            if block.slice_ is not None:
                # Segments sort in the order of writing, and what a receiver has said once holds for ever:
                # neither a report that was overtaken nor a receiver that was replaced takes it back.
                folder = _folder(block.slice_.path)
                oldest = oldest_segment or block.slice_.path
                self._oldest_open[folder] = max(self._oldest_open.get(folder, ""), oldest)

    def _add_to_segment(self, block: BlockInfo) -> None:
        if block.slice_ is not None:
            self._blocks_in.setdefault(block.slice_.path, set()).add(block.block_id)

    def clean(self, blocks: Sequence[BlockInfo]) -> None:
        """Delete blocks whose batches are done. Only log what cannot be deleted or reached."""
        if not self.keeps_files:
            self._delete_files(blocks)
        if self.storage is not None:
            for path in self._done_segments(blocks):
                if self._delete(self.storage, path):
                    with self._lock:
                        del self._blocks_in[path]
            self._batches_until_sweep -= 1
            if self._batches_until_sweep <= 0:
                self._batches_until_sweep = SWEEP_EVERY
                self._sweep(self.storage)

    def _sweep(self, storage: Storage) -> None:
        """Delete the segments that have no block, and from which none will be reported."""
        for folder in list(self._oldest_open):
            try:
                found = segments(storage, folder)
            except (OSError, TidemillError) as error:
                logger.warning("cannot look for what is no longer needed in %s: %s", folder, error)
                continue
            with self._lock:
                useless = [
                    segment.path
                    for segment in found
                    if segment.path not in self._blocks_in and self._is_shut(segment.path)
                ]
            for path in useless:
                self._delete(storage, path)

    def _delete_files(self, blocks: Sequence[BlockInfo]) -> None:
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
        self._clean_servers(by_server)

    def _done_segments(self, blocks: Sequence[BlockInfo]) -> list[str]:
        with self._lock:
            for block in blocks:
                if block.slice_ is not None:
                    self._blocks_in.get(block.slice_.path, set()).discard(block.block_id)
            return [
                path for path, ids in self._blocks_in.items() if not ids and self._is_shut(path)
            ]

    def _is_shut(self, path: str) -> bool:
        """Return True if no block will be reported from a segment any more.

        A folder from which no block was reported has segments of earlier drivers only.
        """
        oldest_open = self._oldest_open.get(_folder(path))
        return oldest_open is None or path < oldest_open

    def _clean_servers(self, by_server: dict[str, list[str]]) -> None:
        for server in {*by_server, *self._undeleted}:
            left, tries = self._undeleted.pop(server, ([], 0))
            block_ids = [*left, *by_server.get(server, [])]
            if self.calls.cleanup(server, tuple(block_ids)):
                continue
            if tries + 1 < SERVER_TRIES:
                self._undeleted[server] = (block_ids, tries + 1)

    def _delete(self, storage: Storage, path: str) -> bool:
        try:
            storage.delete(path)
            return True
        except (OSError, TidemillError) as error:
            logger.warning("cannot delete %s, which is no longer needed: %s", path, error)
            return False


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
