"""What a program reads: queues and files whose records follow from a seed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

BASE_MS = 1_700_000_000_000
"""The time at which every program starts, a full second."""
BATCH_MS = 1_000

WORDS = ["tide", "mill", "sluice", "gate", "wheel", "stone", "grain", "sea", "a", "ab", "abc"]
SIZES = (0, 1, 3, 3, 8, 40)

LINES, NUMBERS, PAIRS = "lines", "numbers", "pairs"


@dataclass(frozen=True)
class Input:
    """One input stream. ``source`` is ``queue``, ``text`` or ``binary``; files have lines only."""

    source: str
    records: str
    seed: int
    batches: int
    one_at_a_time: bool = True
    default: bool = False

    def batch(self, number: int) -> list[Any]:
        """Return the records of a batch, the first of which is number 0."""
        random = Random(f"{self.seed}-{number}")
        return [self._record(random) for _ in range(random.choice(SIZES))]

    def _record(self, random: Random) -> Any:
        match self.records:
            case "numbers":
                return random.randrange(-5, 20)
            case "pairs":
                return random.choice(WORDS), random.randrange(10)
        if self.source == "binary":
            return "".join(random.choice("abc") for _ in range(RECORD_LENGTH))
        return " ".join(random.choice(WORDS) for _ in range(random.randrange(4)))

    def open(self, ssc: Any, folder: Path) -> Any:
        """Return the stream; files of :meth:`feed` come into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        match self.source:
            case "text":
                return ssc.textFileStream(str(folder))
            case "binary":
                records = ssc.binaryRecordsStream(str(folder), RECORD_LENGTH)
                return records.map(lambda record: bytes(record).decode())
        queue = [self.batch(number) for number in range(self.batches)]
        default = self.batch(self.batches) or ["x"] if self.default else None
        return ssc.queueStream(queue, self.one_at_a_time, default)

    def feed(self, folder: Path, number: int) -> None:
        """Move the file of a batch into place, unless it is there: modified before the batch ends."""
        target = folder / f"batch-{number:03d}"
        records = [] if self.source == "queue" or number % 4 == 2 else self.batch(number)
        if not records or target.exists():  # of a file without bytes see ON_PURPOSE
            return
        staged = folder / f".staged-{number}"
        ending = "" if self.source == "binary" else "\n"
        staged.write_text("".join(f"{record}{ending}" for record in records))
        modified_s = BASE_MS / 1000 + number + 0.5
        os.utime(staged, (modified_s, modified_s))
        staged.rename(target)


RECORD_LENGTH = 2
