"""Which blocks there are, and that each belongs to exactly one batch.

Every block of a stream gets a number, in the order in which it was reported: 0, 1, 2, ... A batch has a
range of numbers, which is what ``offsets/N`` says of it. So a block belongs to exactly one batch, and
what belongs to which is written down before anything of it runs, by the same log as for every source.

The rest is in the tracker's own log, below ``received/blocks/`` of the checkpoint directory, one JSON
object a record (:mod:`tidemill.checkpoint.write_ahead_log`)::

    {"known":{"clicks":{"first":5,"runs":{"input-0-5e1f":[2,[4]]},"blocks":[]}}}
    {"add":{"stream":0,"block":"input-0-5e1f-3","records":120,"bytes":4096,"sha256":"9f86d0",
     "places":[["1","node7","/tmp/b/input-0-5e1f-3",""]],"log":["received/data/clicks/1.log",24,4096]},
     "to":"clicks","number":5}
    {"forget":"clicks","before":6}

``known`` replaces everything before it: it begins a new piece of the log, after which the old ones are
deleted. ``first`` is the number of the first of its blocks. ``add`` is written before a block is known,
``forget`` before it is forgotten.

A block may be reported more than once, because an answer was lost, and the second report may come when the
batch of the block is long done. So ``runs`` remembers of the latest runs of a receiver which of its blocks
it had: a run counts its blocks (``input-<stream>-<run>-<n>``), and here all up to 2, and 4, have been added.
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
"""So many records after the last ``known``, a new one is due."""
RUNS = 16
"""So many runs of a receiver are remembered; who is replaced is not listened to any more anyway."""

OUT_OF_ORDER = 1000
"""So many blocks of a run are told apart that overtook another, which may have been given up."""

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    """Which blocks of one run of a receiver were added: all up to ``low``, and those in ``above``.

    A receiver that stores on several threads does not report its blocks in the order of their numbers.
    """

    low: int = -1
    above: set[int] = field(default_factory=set)

    def __contains__(self, count: int) -> bool:
        return count <= self.low or count in self.above

    def add(self, count: int) -> None:
        self.above.add(count)
        if len(self.above) > OUT_OF_ORDER:
            self.low = min(self.above)
        while self.low + 1 in self.above:
            self.low += 1
        self.above = {each for each in self.above if each > self.low}


@dataclass
class _Stream:
    """The blocks of one stream that have not been forgotten: the first of them has the number ``first``."""

    first: int = 0
    blocks: deque[BlockInfo] = field(default_factory=deque)
    bytes: int = 0
    runs: dict[str, _Run] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)

    def has_had(self, block_id: str) -> bool:
        """True for a block that was added at some time, whether it has been forgotten or not."""
        run, count = _run_of(block_id)
        return run in self.runs and count in self.runs[run]

    def add(self, info: BlockInfo) -> None:
        self.blocks.append(info)
        self.bytes += info.bytes
        run, count = _run_of(info.block_id)
        self.runs.setdefault(run, _Run()).add(count)
        if len(self.runs) > RUNS:
            del self.runs[next(iter(self.runs))]

    def forget(self, before: int) -> list[BlockInfo]:
        forgotten = [self.blocks.popleft() for _ in range(before - self.first)]
        self.first += len(forgotten)
        self.bytes -= sum(block.bytes for block in forgotten)
        return forgotten

    def cut(self, end: int) -> None:
        """Be as if the blocks from the number ``end`` on had never been added."""
        while self.end > end:
            self.bytes -= self.blocks.pop().bytes

    def to_json(self) -> dict[str, Any]:
        blocks = [block.to_json() for block in self.blocks]
        runs = {run: [of.low, sorted(of.above)] for run, of in self.runs.items()}
        return {"first": self.first, "runs": runs, "blocks": blocks}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> _Stream:
        stream = cls(value["first"])
        for block in value["blocks"]:
            stream.add(BlockInfo.from_json(block))
        stream.runs = {run: _Run(low, set(above)) for run, (low, above) in value["runs"].items()}
        return stream


def _run_of(block_id: str) -> tuple[str, int]:
    """The run of a receiver that a block is of, and which of its blocks it is."""
    run, _, count = block_id.rpartition("-")
    if not run or not count.isascii() or not count.isdigit():
        raise ValueError(
            f"{block_id!r} is not the id of a block: expected input-<stream>-<run>-<n>"
        )
    return run, int(count)


class BlockTracker:
    """All blocks of all streams, by the names of the streams. Safe for threads.

    Without a storage nothing is written: the blocks live and die with the driver. With one, nothing is
    changed in it before :meth:`start`. Of an earlier run's streams only those called ``streams`` are gone
    on with.
    """

    def __init__(
        self, storage: Storage | None, clock: Clock, streams: Collection[str] | None = None
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._received = threading.Condition(self._lock)
        self.records_received = 0
        self._streams: dict[str, _Stream] = {}
        self._is_closed = False
        self._log: LogWriter | None = None
        self._logged = 0
        if storage is not None:
            self._recover(storage)
        if streams is not None:
            self._streams = {name: of for name, of in self._streams.items() if name in streams}

    def _recover(self, storage: Storage) -> None:
        """Be where the driver was that wrote the log.

        IF a record says ``known``, it stands for all before it. ELSE the records are done again, in their
        order. IF an ``add`` has a number that another one had before, that other one is in the log although
        its writing failed: nobody was told that it is known, and it is not. IF a number is left out, a piece
        of the log is missing. What has been cut off at the end was never answered.

        The executors of that driver are gone, and their files with them: what is left of a block is what
        the write-ahead log has.
        """
        missing = ""
        for segment in replay(storage, FOLDER):
            for _, payload in segment.records:
                record = json.loads(payload)
                found = self._apply(record)
                # The rest of a log that was being deleted has gaps, and a ``known`` behind it.
                missing = "" if "known" in record else missing or found
        if missing:
            raise DamagedCheckpointError(
                storage.full_name(FOLDER),
                f"has lost a part: {missing}",
                "Restore the folder from a backup: what the receivers have stored is nowhere else. "
                "Nothing has been changed.",
                storage.uri,
            )
        for of in self._streams.values():
            of.blocks = deque(replace(block, places=()) for block in of.blocks)

    def start(self) -> BlockTracker:
        """Begin to write. Called once, before the first block is added or forgotten."""
        if self._storage is not None:
            with self._lock:
                self._compact()
        return self

    # -- blocks are reported -------------------------------------------------------------------

    def add(
        self, stream: str, info: BlockInfo, on_new: Callable[[BlockInfo], None] | None = None
    ) -> bool:
        """Take a block over. False if that is too late; an error if it could not be written down.

        1. A block that was added before is the same block, reported twice, also if it is forgotten by now.
        2. It is written to the log: from now on it is not lost, whatever happens to the driver.
        3. It is known. ``on_new`` is called before a batch can have it.
        """
        with self._lock:
            of = self._stream(stream)
            if of.has_had(info.block_id):  # 1
                return True
            if self._is_closed:
                return False
            fault_point("block.before-add")
            self._write({"add": info.to_json(), "to": stream, "number": of.end})  # 2
            fault_point("block.after-add")
            if on_new is not None:  # 3
                on_new(info)
            of.add(info)
            self.records_received += info.records
            self._received.notify_all()
            return True

    def wait_received(self, records: int, timeout_s: float) -> bool:
        """Until so many records have been reported since the start. False if that took too long."""
        with self._received:
            return self._received.wait_for(lambda: self.records_received >= records, timeout_s)

    def close(self) -> None:
        """Take no more blocks, and forget none."""
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
            of = self._stream(stream)
            if start < of.first or end > of.end:
                raise LookupError(
                    f"blocks {start} to {end} of {stream} are not known: there are {of.first} to {of.end}"
                )
            return list(islice(of.blocks, start - of.first, end - of.first))

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
            if before <= of.first or self._is_closed:
                return []
            self._write({"forget": stream, "before": before})
            forgotten = of.forget(before)
            if self._logged >= COMPACT_AFTER:
                try:
                    self._compact()
                except Exception:
                    # The log is as good as before, only longer: the next time will do.
                    logger.warning("the log of blocks could not be compacted", exc_info=True)
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

    def _apply(self, record: dict[str, Any]) -> str:
        """Do again what a record says. What must have been in the log before it, and was not; or nothing."""
        match record:
            case {"known": streams}:
                self._streams = {name: _Stream.from_json(of) for name, of in streams.items()}
                return ""
            case {"forget": stream, "before": number}:
                of = self._stream(stream)
                is_whole = number <= of.end
                of.forget(min(number, of.end))
            case {"add": info, "to": stream, "number": number}:
                of = self._stream(stream)
                is_whole = of.first <= number <= of.end
                of.cut(number)
                of.add(BlockInfo.from_json(info))
            case _:
                raise ValueError(f"not a record of blocks: {str(record)[:200]}")
        if is_whole:
            return ""
        return f"after blocks {of.first} to {of.end} of {stream} comes a record of {number}"

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            self._log.append(json.dumps(record, separators=(",", ":")).encode())
            self._logged += 1

    def _compact(self) -> None:
        """Begin a new piece of the log with all that is known, then delete the old ones."""
        assert self._storage is not None
        old = [segment.path for segment in segments(self._storage, FOLDER)]
        if self._log is not None:
            self._log.close()
        self._log = LogWriter(self._storage, FOLDER, self._clock)
        self._write({"known": {name: of.to_json() for name, of in self._streams.items()}})
        self._logged = 0
        fault_point("block.before-compact")
        for path in old:
            self._storage.delete(path)
