"""The blocks of a run that the driver does not know yet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.receivers.blocks.block import BlockInfo


class UnreportedBlocks:
    """Numbers the blocks of one run of a receiver, and knows which of them may still be reported.

    Several threads store blocks at the same time. While one waits to report its block again, the others go
    on: their blocks get higher numbers, and perhaps other segments of the write-ahead log. With every report
    the receiver tells the driver the first number and the first segment that are still open, and the driver
    forgets nothing from there on.

    A block that is being stored will be in no segment before the newest that was known when it got its
    number: segments are written in the order of their names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Numbers in the order in which they were given. The segment of each block, or one before it.
        self._segments: dict[int, str] = {}
        self._newest_segment = ""

    @contextmanager
    def next_block(self) -> Iterator[int]:
        """Give the next number; inside the block of code its block may be reported, and never after that."""
        with self._lock:
            number = next(self._numbers)
            self._segments[number] = self._newest_segment
        try:
            yield number
        finally:
            with self._lock:
                del self._segments[number]

    def stored(self, number: int, info: BlockInfo) -> None:
        """Note which segment has a block."""
        if info.slice_ is not None:
            with self._lock:
                self._segments[number] = info.slice_.path
                self._newest_segment = max(self._newest_segment, info.slice_.path)

    def oldest(self, info: BlockInfo) -> tuple[int, str]:
        """Return the first number that may still be reported, and a name that no segment with such a block
        comes before. The caller is about to report ``info``, which is stored.
        """
        with self._lock:
            segment = min(self._segments.values())
            if info.slice_ is not None and not segment:
                # A block is being stored since before any segment was known: it may be in the very first.
                segment = info.slice_.path.rpartition("/")[0] + "/"
            return min(self._segments), segment
