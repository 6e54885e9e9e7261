"""Which blocks there are, and that each belongs to exactly one batch.

Every block of a stream gets a number, in the order in which it was reported: 0, 1, 2, ... A batch has a
range of numbers, which is what ``offsets/N`` says of it. So a block belongs to exactly one batch, and
what belongs to which is written down before anything of it runs, by the same log as for every source.

The rest is in the tracker's own log, with the write-ahead log on, below ``received/blocks/`` of the
checkpoint directory, one JSON object a record (:mod:`tidemill.checkpoint.write_ahead_log`)::

    {"add":{"stream":0,"block":"input-0-5e1f-3","records":120,"bytes":4096,"sha256":"…","places":[…],"log":[…]},"to":"clicks","number":7}
    {"forget":"clicks","before":5}
    {"known":{"clicks":[5,{…},{…},{…}]}}

``add`` is written before a block is known, ``forget`` before it is forgotten. ``known`` replaces everything
before it: it begins a new piece of the log, after which the old ones are deleted.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import LogWriter, replay, segments
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.receivers.blocks import BlockInfo

FOLDER = "received/blocks"
COMPACT_AFTER = 1000
"""So many records after the last ``known``, a new one is due."""

logger = logging.getLogger(__name__)


@dataclass
class _Stream:
    """The blocks of one stream that have not been forgotten: the first of them has the number ``first``."""

    first: int = 0
    blocks: deque[BlockInfo] = field(default_factory=deque)
    bytes: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)


class BlockTracker:
    """All blocks of all streams, by the names of the streams. Safe for threads.

    Without a storage nothing is written: the blocks live and die with the driver.
    """

    def __init__(self, storage: Storage | None, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._received = threading.Condition(self._lock)
        self.records_received = 0
        self._streams: dict[str, _Stream] = {}
        self._numbers: dict[str, int] = {}  # of each block that has not been forgotten
        self._is_closed = False
        self._log: LogWriter | None = None
        self._logged = 0
        if storage is not None:
            self._recover(storage)

    def _recover(self, storage: Storage) -> None:
        """Be where the driver was that wrote the log.

        IF a record says ``known``, it stands for all before it. ELSE the records are done again, in their
        order. An ``add`` of a block that is known already (its answer was lost, and it came again) is the
        same block. What has been cut off at the end was never answered.

        The executors of that driver are gone, and their files with them: what is left of a block is what
        the write-ahead log has.
        """
        for segment in replay(storage, FOLDER):
            for _, payload in segment.records:
                self._apply(json.loads(payload))
        for of in self._streams.values():
            of.blocks = deque(replace(block, places=()) for block in of.blocks)
        self._log = LogWriter(storage, FOLDER, self._clock)
        self._compact()

    # -- blocks are reported -------------------------------------------------------------------

    def add(self, stream: str, info: BlockInfo) -> bool:
        """Take a block over. False if that is too late, or could not be written down.

        1. A block that is known is the same block, reported twice.
        2. It is written to the log: from now on it is not lost, whatever happens to the driver.
        3. It is known, and the next batch can have it.
        """
        with self._lock:
            if info.block_id in self._numbers:  # 1
                return True
            if self._is_closed:
                return False
            fault_point("block.before-add")
            number = self._stream(stream).end
            self._write({"add": info.to_json(), "to": stream, "number": number})  # 2
            fault_point("block.after-add")
            self._add(stream, info)  # 3
            self.records_received += info.records
            self._received.notify_all()
            return True

    def wait_received(self, records: int, timeout_s: float) -> bool:
        """Until so many records have been reported since the start. False if that took too long."""
        with self._received:
            return self._received.wait_for(lambda: self.records_received >= records, timeout_s)

    def close(self) -> None:
        """Take no more blocks."""
        with self._lock:
            self._is_closed = True
            if self._log is not None:
                self._log.close()

    # -- batches take them ---------------------------------------------------------------------

    def end(self, stream: str) -> int:
        """The number that the next block of a stream will get."""
        with self._lock:
            return self._stream(stream).end

    def blocks(self, stream: str, start: int, end: int) -> list[BlockInfo]:
        """The blocks with the numbers in ``[start, end)``. ``LookupError`` if they have been forgotten."""
        with self._lock:
            return self._between(stream, start, end)

    def _between(self, stream: str, start: int, end: int) -> list[BlockInfo]:
        of = self._stream(stream)
        if start < of.first or end > of.end:
            raise LookupError(
                f"blocks {start} to {end} of {stream} are not known: there are {of.first} to {of.end}"
            )
        known = list(of.blocks)
        return known[start - of.first : end - of.first]

    def held_bytes(self, stream: str) -> int:
        """How much of a stream has been taken over and is not forgotten."""
        with self._lock:
            return self._stream(stream).bytes

    # -- batches are done ----------------------------------------------------------------------

    def forget(self, stream: str, before: int) -> list[BlockInfo]:
        """The blocks up to ``before`` belong to batches that are done. Those that were still known."""
        with self._lock:
            of = self._stream(stream)
            before = min(before, of.end)
            if before <= of.first:
                return []
            forgotten = list(of.blocks)[: before - of.first]
            self._write({"forget": stream, "before": before})
            self._forget(stream, before)
            if self._logged >= COMPACT_AFTER:
                self._compact()
            return forgotten

    def known(self, stream: str) -> list[BlockInfo]:
        """The blocks of a stream that have not been forgotten."""
        with self._lock:
            return list(self._stream(stream).blocks)

    def all_blocks(self) -> list[BlockInfo]:
        with self._lock:
            return [block for of in self._streams.values() for block in of.blocks]

    # -- memory and log ------------------------------------------------------------------------

    def _stream(self, stream: str) -> _Stream:
        return self._streams.setdefault(stream, _Stream())

    def _add(self, stream: str, info: BlockInfo) -> None:
        of = self._stream(stream)
        self._numbers[info.block_id] = of.end
        of.blocks.append(info)
        of.bytes += info.bytes

    def _forget(self, stream: str, before: int) -> None:
        of = self._stream(stream)
        while of.blocks and of.first < before:
            block = of.blocks.popleft()
            of.first += 1
            of.bytes -= block.bytes
            del self._numbers[block.block_id]

    def _apply(self, record: dict[str, Any]) -> None:
        if "known" in record:
            self._streams.clear()
            self._numbers.clear()
            for stream, (first, *blocks) in record["known"].items():
                self._streams[stream] = _Stream(first)
                self._add_all(stream, map(BlockInfo.from_json, blocks))
        elif "forget" in record:
            self._forget(record["forget"], record["before"])
        elif record["add"]["block"] not in self._numbers:
            self._add(record["to"], BlockInfo.from_json(record["add"]))

    def _add_all(self, stream: str, blocks: Iterable[BlockInfo]) -> None:
        for block in blocks:
            self._add(stream, block)

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(json.dumps(record, separators=(",", ":")).encode())
            self._logged += 1

    def _compact(self) -> None:
        """Begin a new piece of the log with all that is known, then delete the old ones."""
        assert self._storage is not None
        assert self._log is not None
        old = [segment.path for segment in segments(self._storage, FOLDER)]
        self._log.close()
        self._log = LogWriter(self._storage, FOLDER, self._clock)
        self._write(
            {
                "known": {
                    stream: [of.first, *(block.to_json() for block in of.blocks)]
                    for stream, of in self._streams.items()
                }
            }
        )
        self._logged = 0
        fault_point("block.before-compact")
        for path in old:
            self._storage.delete(path)
