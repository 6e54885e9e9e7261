"""The blocks of one stream, as the block tracker knows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.request_keys import KeyMemory, RequestKey

REMEMBERED_RUNS = 16
"""How many runs of a receiver to remember. Reports of a run that was replaced are refused anyway."""


@dataclass
class _Run:
    """The blocks of one run of a receiver that were added: all up to ``low``, and those in ``above``.

    A receiver that stores on several threads does not report its blocks in the order of their numbers.
    """

    low: int = -1
    above: set[int] = field(default_factory=set)

    def __contains__(self, count: int) -> bool:
        return count <= self.low or count in self.above

    def add(self, count: int, first_unreported: int) -> None:
        """Note that block ``count`` was added, and that none below ``first_unreported`` is still to come."""
        self.above.add(count)
        self.low = max(self.low, first_unreported - 1)
        while self.low + 1 in self.above:
            self.low += 1
        self.above = {each for each in self.above if each > self.low}


@dataclass(frozen=True, eq=False)
class BlockReport:
    """A block that a receiver reports, as :meth:`BlockTracker.add` gets it."""

    stream: str
    info: BlockInfo
    on_new: Callable[[BlockInfo], None] | None
    keys: Sequence[RequestKey]
    first_unreported: int
    admit: Callable[[], None] | None

    def to_json(self, number: int) -> dict[str, Any]:
        """Return the record of a block that gets this number in its stream."""
        record: dict[str, Any] = {"add": self.info.to_json(), "to": self.stream, "number": number}
        if self.keys:
            record["keys"] = [key.to_json() for key in self.keys]
        return record


@dataclass
class StreamBlocks:
    """The blocks of one stream that are not forgotten; the number of the first of them is ``first``.

    Those before number ``done`` have been processed, and are kept for windows that look back. The others,
    which have ``held_bytes``, wait for their batches.
    """

    first: int = 0
    blocks: deque[BlockInfo] = field(default_factory=deque)
    done: int = 0
    held_bytes: int = 0
    runs: dict[str, _Run] = field(default_factory=dict)
    keys: KeyMemory = field(default_factory=KeyMemory)

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)

    def has_seen(self, block_id: str) -> bool:
        """Return True if a block was ever added, even if it is forgotten by now."""
        run, count = _split_id(block_id)
        return run in self.runs and count in self.runs[run]

    def add(
        self, info: BlockInfo, keys: Sequence[RequestKey] = (), first_unreported: int = 0
    ) -> None:
        self.blocks.append(info)
        self.held_bytes += info.bytes
        self.keys.add(info.block_id, keys)
        run, count = _split_id(info.block_id)
        self.runs.setdefault(run, _Run()).add(count, first_unreported)
        if len(self.runs) > REMEMBERED_RUNS:
            del self.runs[next(iter(self.runs))]

    def process(self, before: int) -> None:
        """Note that the blocks before number ``before`` have been processed."""
        if before > self.done:
            done = islice(self.blocks, self.done - self.first, before - self.first)
            self.held_bytes -= sum(block.bytes for block in done)
            self.done = before

    def forget(self, before: int) -> list[BlockInfo]:
        self.process(before)
        forgotten = [self.blocks.popleft() for _ in range(before - self.first)]
        self.first += len(forgotten)
        return forgotten

    def cut(self, end: int) -> None:
        """Remove the blocks from number ``end`` on, as if they had never been added. None is processed."""
        while self.blocks and self.end > end:
            removed = self.blocks.pop()
            self.held_bytes -= removed.bytes
            self.keys.remove(removed.block_id)

    def to_json(self) -> dict[str, Any]:
        blocks = [block.to_json() for block in self.blocks]
        runs = {run_id: [run.low, sorted(run.above)] for run_id, run in self.runs.items()}
        return {"first": self.first, "runs": runs, "blocks": blocks, "keys": self.keys.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamBlocks:
        stream = cls(value["first"], done=value["first"])
        for block in value["blocks"]:
            stream.add(BlockInfo.from_json(block))
        stream.keys = KeyMemory.from_json(value.get("keys", ()))
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
