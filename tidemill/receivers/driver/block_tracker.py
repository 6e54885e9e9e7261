"""The block tracker: gives every block to exactly one batch.

Every block of a stream gets a number, in the order of the reports: 0, 1, 2, ... A batch has a range of
numbers, which ``offsets/N`` records. So a block belongs to exactly one batch, and the batch log says to
which one, as for every source, before the batch runs.

The tracker's own log has the rest. It is below ``received/blocks/`` of the checkpoint directory, one JSON
object a record (:mod:`tidemill.checkpoint.write_ahead_log`)::

    {"known":{"clicks":{"first":5,"runs":{"input-0-5e1f":[2,[4]]},"blocks":[]}}}
    {"add":{"stream":0,"block":"input-0-5e1f-3","records":120,"bytes":4096,"sha256":"9f86d0",
     "places":[["1","node7","/tmp/b/input-0-5e1f-3",""]],"log":["received/data/clicks/1.log",24,4096]},
     "to":"clicks","number":5}
    {"forget":"clicks","before":6}

``known`` replaces everything before it: it begins a new piece of the log; then the old pieces are deleted.
``first`` is the number of its first block. The tracker writes ``add`` before it knows a block, and ``forget``
before it forgets one.

A receiver reports a block again when the answer was lost, and the second report may come long after the batch
of the block is done. So ``runs`` has, for the latest runs of a receiver, the blocks that were added: a run
counts its blocks (``input-<stream>-<run>-<n>``), and here blocks 0 to 2 and block 4 were added.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.checkpoint.write_ahead_log import LogWriter, replay, segments
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError
from tidemill.receivers.blocks.block import BlockInfo

FOLDER = "received/blocks"
COMPACT_AFTER = 1000
"""Write a new ``known`` after this many records."""
REMEMBERED_RUNS = 16
"""How many runs of a receiver to remember. Reports of a run that was replaced are refused anyway."""
MAX_OUT_OF_ORDER = 1000
"""How many blocks of a run to remember that overtook another one, which may never come."""

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    """The blocks of one run of a receiver that were added: all up to ``low``, and those in ``above``.

    A receiver that stores on several threads does not report its blocks in the order of their numbers.
    """

    low: int = -1
    above: set[int] = field(default_factory=set)

    def __contains__(self, count: int) -> bool:
        return count <= self.low or count in self.above

    def add(self, count: int) -> None:
        self.above.add(count)
        if len(self.above) > MAX_OUT_OF_ORDER:
            self.low = min(self.above)
        while self.low + 1 in self.above:
            self.low += 1
        self.above = {each for each in self.above if each > self.low}


@dataclass
class _StreamBlocks:
    """The blocks of one stream that are not forgotten; the number of the first of them is ``first``."""

    first: int = 0
    blocks: deque[BlockInfo] = field(default_factory=deque)
    bytes: int = 0
    runs: dict[str, _Run] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)

    def has_seen(self, block_id: str) -> bool:
        """Return True if a block was ever added, even if it is forgotten by now."""
        run, count = _split_id(block_id)
        return run in self.runs and count in self.runs[run]

    def add(self, info: BlockInfo) -> None:
        self.blocks.append(info)
        self.bytes += info.bytes
        run, count = _split_id(info.block_id)
        self.runs.setdefault(run, _Run()).add(count)
        if len(self.runs) > REMEMBERED_RUNS:
            del self.runs[next(iter(self.runs))]

    def forget(self, before: int) -> list[BlockInfo]:
        forgotten = [self.blocks.popleft() for _ in range(before - self.first)]
        self.first += len(forgotten)
        self.bytes -= sum(block.bytes for block in forgotten)
        return forgotten

    def cut(self, end: int) -> None:
        """Remove the blocks from number ``end`` on, as if they had never been added."""
        while self.end > end:
            self.bytes -= self.blocks.pop().bytes

    def to_json(self) -> dict[str, Any]:
        blocks = [block.to_json() for block in self.blocks]
        runs = {run_id: [run.low, sorted(run.above)] for run_id, run in self.runs.items()}
        return {"first": self.first, "runs": runs, "blocks": blocks}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> _StreamBlocks:
        stream = cls(value["first"])
        for block in value["blocks"]:
            stream.add(BlockInfo.from_json(block))
        stream.runs = {
            run_id: _Run(low, set(above)) for run_id, (low, above) in value["runs"].items()
        }
        return stream


def _split_id(block_id: str) -> tuple[str, int]:
    """Split the id of a block into the run of its receiver and its number within the run."""
    run, _, count = block_id.rpartition("-")
    if not run or not count.isascii() or not count.isdigit():
        raise ValueError(
            f"{block_id!r} is not the id of a block: expected input-<stream>-<run>-<n>"
        )
    return run, int(count)


class BlockTracker:
    """Knows all blocks of all streams, by the names of the streams. Thread-safe.

    Without a storage, the blocks live and die with the driver. With one, nothing is written to it before
    :meth:`start`. Of the streams of an earlier run, only those named in ``streams`` are kept.
    """

    def __init__(
        self, storage: Storage | None, clock: Clock, streams: Collection[str] | None = None
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._received = threading.Condition(self._lock)
        self.records_received = 0
        self._streams: dict[str, _StreamBlocks] = {}
        self._is_closed = False
        self._log: LogWriter | None = None
        self._logged = 0
        if storage is not None:
            self._recover(storage)
        if streams is not None:
            self._streams = {
                name: tracked for name, tracked in self._streams.items() if name in streams
            }

    def _recover(self, storage: Storage) -> None:
        """Restore the blocks that the driver knew when it wrote the log.

        IF a record says ``known``, it replaces all records before it. ELSE apply the records in their order.
        IF an ``add`` has the number of an earlier one, writing the earlier one failed and nobody was told
        that it is known: drop it. IF a number is missing, a piece of the log is missing: raise. A record that
        is cut off at the end was never answered.

        The executors of that driver are gone, and their files with them: only the write-ahead log still has
        the blocks.
        """
        missing = ""
        for segment in replay(storage, FOLDER):
            for _, payload in segment.records:
                record = json.loads(payload)
                gap = self._apply(record)
                # A log whose deletion was interrupted has gaps, and a ``known`` after them.
                missing = "" if "known" in record else missing or gap
        if missing:
            raise DamagedCheckpointError(
                storage.full_name(FOLDER),
                f"has lost a part: {missing}",
                "Restore the folder from a backup: nothing else says which blocks the receivers have "
                "stored. Nothing has been changed.",
                storage.uri,
            )
        for tracked in self._streams.values():
            tracked.blocks = deque(replace(block, places=()) for block in tracked.blocks)

    def start(self) -> BlockTracker:
        """Begin to write the log. Called once, before the first block is added or forgotten."""
        if self._storage is not None:
            with self._lock:
                self._compact()
        return self

    # -- blocks are reported -------------------------------------------------------------------

    def add(
        self, stream: str, info: BlockInfo, on_new: Callable[[BlockInfo], None] | None = None
    ) -> bool:
        """Add a block. Return False after :meth:`close`; raise if the log cannot be written.

        1. Do nothing if the block was added before, even if it is forgotten by now: it is reported twice.
        2. Write it to the log: from now on it survives the driver.
        3. Call ``on_new``, then make it known, so that a batch can have it.
        """
        with self._lock:
            tracked = self._stream(stream)
            if tracked.has_seen(info.block_id):  # 1
                return True
            if self._is_closed:
                return False
            fault_point("block.before-add")
            self._write({"add": info.to_json(), "to": stream, "number": tracked.end})  # 2
            fault_point("block.after-add")
            if on_new is not None:  # 3
                on_new(info)
            tracked.add(info)
            self.records_received += info.records
            self._received.notify_all()
            return True

    def wait_received(self, records: int, timeout_s: float) -> bool:
        """Wait until ``records`` records have been reported since the start. Return False after a timeout."""
        with self._received:
            return self._received.wait_for(lambda: self.records_received >= records, timeout_s)

    def close(self) -> None:
        """Refuse new blocks, and forget none from now on."""
        with self._lock:
            self._is_closed = True
            if self._log is not None:
                self._log.close()

    # -- batches read them ---------------------------------------------------------------------

    def end(self, stream: str) -> int:
        """Return the number that the next block of a stream will get."""
        with self._lock:
            return self._stream(stream).end

    def blocks(self, stream: str, start: int, end: int) -> list[BlockInfo]:
        """Return the blocks with the numbers in ``[start, end)``. ``LookupError`` if some are forgotten."""
        with self._lock:
            tracked = self._stream(stream)
            if start < tracked.first or end > tracked.end:
                raise LookupError(
                    f"blocks {start} to {end} of {stream} are not known: there are {tracked.first} to "
                    f"{tracked.end}"
                )
            return list(islice(tracked.blocks, start - tracked.first, end - tracked.first))

    def held_bytes(self, stream: str) -> int:
        """Return the size of all blocks of a stream that are not forgotten."""
        with self._lock:
            return self._stream(stream).bytes

    # -- batches are done ----------------------------------------------------------------------

    def forget(self, stream: str, before: int) -> list[BlockInfo]:
        """Forget the blocks before number ``before``, whose batches are done, and return them."""
        with self._lock:
            tracked = self._stream(stream)
            before = min(before, tracked.end)
            if before <= tracked.first or self._is_closed:
                return []
            self._write({"forget": stream, "before": before})
            forgotten = tracked.forget(before)
            if self._logged >= COMPACT_AFTER:
                try:
                    self._compact()
                except Exception:
                    # The log is complete, only longer than it need be: try again next time.
                    logger.warning("the log of blocks could not be compacted", exc_info=True)
            return forgotten

    def known(self, stream: str) -> list[BlockInfo]:
        """Return the blocks of a stream that are not forgotten."""
        with self._lock:
            return list(self._stream(stream).blocks)

    def all_blocks(self) -> list[BlockInfo]:
        """Return the blocks of all streams that are not forgotten."""
        with self._lock:
            return [block for tracked in self._streams.values() for block in tracked.blocks]

    # -- memory and log ------------------------------------------------------------------------

    def _stream(self, stream: str) -> _StreamBlocks:
        return self._streams.setdefault(stream, _StreamBlocks())

    def _apply(self, record: dict[str, Any]) -> str:
        """Apply a record. Return a description of the gap in the log before it, or an empty text."""
        match record:
            case {"known": streams}:
                self._streams = {
                    name: _StreamBlocks.from_json(value) for name, value in streams.items()
                }
                return ""
            case {"forget": stream, "before": number}:
                tracked = self._stream(stream)
                is_whole = number <= tracked.end
                tracked.forget(min(number, tracked.end))
            case {"add": info, "to": stream, "number": number}:
                tracked = self._stream(stream)
                is_whole = tracked.first <= number <= tracked.end
                tracked.cut(number)
                tracked.add(BlockInfo.from_json(info))
            case _:
                raise ValueError(f"not a record of blocks: {str(record)[:200]}")
        if is_whole:
            return ""
        return (
            f"after blocks {tracked.first} to {tracked.end} of {stream} comes a record of {number}"
        )

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(json.dumps(record, separators=(",", ":")).encode())
            self._logged += 1

    def _compact(self) -> None:
        """Begin a new piece of the log with a ``known`` of all blocks, then delete the old pieces."""
        assert self._storage is not None
        old = [segment.path for segment in segments(self._storage, FOLDER)]
        if self._log is not None:
            self._log.close()
        self._log = LogWriter(self._storage, FOLDER, self._clock)
        self._write({"known": {name: tracked.to_json() for name, tracked in self._streams.items()}})
        self._logged = 0
        fault_point("block.before-compact")
        for path in old:
            self._storage.delete(path)
