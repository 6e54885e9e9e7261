"""Deleting blocks that nobody needs any more, wherever they are."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import segments
from tidemill.receivers.block_files import BlockFiles
from tidemill.receivers.block_handler import data_folder
from tidemill.receivers.blocks import BlockInfo
from tidemill.receivers.executor_calls import ExecutorCalls

logger = logging.getLogger(__name__)


@dataclass
class BlockCleaner:
    """Files of executors, and segments of the write-ahead log.

    A segment is deleted when all its blocks are done and its writer has begun another one. ``files`` are
    the driver's own, in local mode; on a cluster the block servers delete theirs.
    """

    calls: ExecutorCalls
    files: BlockFiles | None = None
    storage: Storage | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _blocks_in: Counter[str] = field(default_factory=Counter)
    _latest: dict[int, str] = field(default_factory=dict)

    def restore(self, blocks: Iterable[BlockInfo], stream_names: Iterable[str]) -> None:
        """Before receivers start: nobody writes, so what no block is in is of no use."""
        if self.storage is None:
            return
        for block in blocks:
            if block.slice_ is not None:
                self._blocks_in[block.slice_.path] += 1
        for name in stream_names:
            for segment in segments(self.storage, data_folder(name)):
                if not self._blocks_in[segment.path]:
                    self.storage.delete(segment.path)

    def note(self, block: BlockInfo) -> None:
        """A block has been taken over."""
        if block.slice_ is not None:
            with self._lock:
                self._blocks_in[block.slice_.path] += 1
                self._latest[block.stream_id] = block.slice_.path

    def clean(self, blocks: Sequence[BlockInfo]) -> None:
        if self.files is not None:
            self.files.delete([block.block_id for block in blocks])
        by_server: dict[str, list[str]] = {}
        for block in blocks:
            for place in block.places:
                if place.server:
                    by_server.setdefault(place.server, []).append(block.block_id)
        for server, block_ids in by_server.items():
            self.calls.cleanup(server, tuple(block_ids), 0)
        if self.storage is not None:
            for path in self._done_segments(blocks):
                self.storage.delete(path)

    def _done_segments(self, blocks: Sequence[BlockInfo]) -> list[str]:
        with self._lock:
            for block in blocks:
                if block.slice_ is not None:
                    self._blocks_in[block.slice_.path] -= 1
            written = set(self._latest.values())
            done = [
                path
                for path, count in self._blocks_in.items()
                if count <= 0 and path not in written
            ]
            for path in done:
                del self._blocks_in[path]
            return done
