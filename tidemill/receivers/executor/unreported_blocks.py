"""The blocks of a run that the driver does not know yet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.receivers.blocks.block import BlockInfo


class UnreportedBlocks:
    """Numbers the blocks of one run of a receiver, and knows which of them may still be reported.

    Several threads store blocks. While one waits to report its block again, the others go on: their blocks
    get higher numbers, and perhaps other segments of the write-ahead log. With every report the receiver
    tells the driver the first number and the first segment that are still open, and the driver forgets
    nothing from there on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        # Numbers in the order in which they were given, with the segment of a block that is stored.
        self._segments: dict[int, str] = {}

    @contextmanager
    def next_block(self) -> Iterator[int]:
        """Give the next number; inside the block of code its block may be reported, and never after that."""
        with self._lock:
            number = next(self._numbers)
            self._segments[number] = ""
        try:
            yield number
        finally:
            with self._lock:
                del self._segments[number]

    def stored(self, number: int, info: BlockInfo) -> None:
        """Note which segment has a block."""
        with self._lock:
            self._segments[number] = "" if info.slice_ is None else info.slice_.path

    def oldest(self) -> tuple[int, str]:
        """Return the first number that may still be reported, and the oldest segment with such a block.

        The caller is about to report a stored block, and nobody else stores one meanwhile. What is stored
        later is in the newest segment, or in one after that.
        """
        with self._lock:
            segments = [path for path in self._segments.values() if path]
            return min(self._segments), min(segments, default="")
