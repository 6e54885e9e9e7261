"""The files that a query has taken, in the log of Spark's own file source.

One file for each offset of the source, with the files that were taken for it. ``sources/0/7``::

    v1
    {"path":"file:///in/orders-12.csv","timestamp":1772366400000,"batchId":7}
    {"path":"file:///in/orders%2013.csv","timestamp":1772366401000,"batchId":7}

``timestamp`` is when the file was modified. Every tenth has a name that ends in ``.compact`` and begins with
everything that is in the files before it. So ``9.compact``, the first of them, has the entries of 0 to 8, and
then its own. What lies before a ``.compact`` is only needed to look back, and is deleted some time later.

Nothing here has a checksum, and the last line does not end: so Spark writes it, and either can go on where
the other stopped. Spark also leaves checksums of Hadoop (``.7.crc``), each for the one file it was made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.common.config import Conf, Setting, boolean, positive_int, time_ms
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError

VERSION = "v1"
COMPACT = ".compact"
_NAME = re.compile(r"(0|[1-9][0-9]*)(\.compact)?")


@dataclass(frozen=True)
class FileEntry:
    """One line: a file, as a URI."""

    path: str
    timestamp: int
    batch_id: int

    def to_line(self) -> str:
        # Letters of all languages as they are: so Spark has them in a URI.
        record = {"path": self.path, "timestamp": self.timestamp, "batchId": self.batch_id}
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str) -> FileEntry:
        record = json.loads(line)
        return cls(str(record["path"]), int(record["timestamp"]), int(record["batchId"]))


@dataclass(frozen=True)
class FileLogSettings:
    """How often the log is compacted and what is kept, with Spark's own settings and defaults."""

    compact_interval: int = 10
    deletion: bool = True
    cleanup_delay_ms: int = 600_000
    min_batches_to_retain: int = 100

    @classmethod
    def read(cls, conf: Conf) -> FileLogSettings:
        return cls(*(setting.read(conf) for setting in _SETTINGS))


def _milliseconds(text: str) -> int:
    return time_ms(text, "ms")


_LOG = "spark.sql.streaming.fileSource.log"
_SETTINGS: tuple[Setting[Any], ...] = (
    Setting(
        f"{_LOG}.compactInterval", 10, positive_int, "Every so many files, one with everything."
    ),
    Setting(f"{_LOG}.deletion", True, boolean, "Whether files that nobody needs are deleted."),
    Setting(f"{_LOG}.cleanupDelay", 600_000, _milliseconds, "How long they stay."),
    Setting(
        "spark.sql.streaming.minBatchesToRetain", 100, positive_int, "How many can be looked at."
    ),
)


def batch_files(names: Iterable[str]) -> dict[int, str]:
    """Which of the names in a folder are files of such a log, by their numbers, in order.

    A number may have two files, if the interval was changed in between: the compact one has more.
    """
    found: dict[int, str] = {}
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is not None:
            found[int(match[1])] = name  # "9" sorts before "9.compact"
    return dict(sorted(found.items()))


def valid_names(files: dict[int, str]) -> list[tuple[int, str]]:
    """The last compact file and all after it: together, everything that the log has."""
    last_compact = max((n for n, name in files.items() if name.endswith(COMPACT)), default=-1)
    return [(n, name) for n, name in files.items() if n >= last_compact]


def read_lines(storage: Storage, name: str) -> list[str]:
    """What follows the version line."""
    try:
        version, *lines = storage.read(name).decode().rstrip("\n").split("\n")
        if version != VERSION:
            raise ValueError(f"the first line is {version[:20]!r}, not {VERSION}")
        return lines
    except ValueError as error:
        raise damaged(storage, name, f"cannot be read ({error})") from None


def damaged(storage: Storage, name: str, finding: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        storage.full_name(name),
        finding,
        "Restore it from a backup: without it, nobody knows which files have been read. Or start over with "
        "another checkpoint directory. Nothing has been changed.",
        storage.uri,
    )


class SparkFileLog:
    """The folder of one file source. One thread uses it."""

    def __init__(self, storage: Storage, clock: Clock, settings: FileLogSettings) -> None:
        self._storage = storage
        self._clock = clock
        self._settings = settings
        self._files = batch_files(storage.list(""))
        self._written_ms: dict[int, int] = {}
        self._interval = self._compatible_interval()
        self.last_id = max(self._files, default=-1)

    def _compatible_interval(self) -> int:
        """An interval by which the compact files that are there would have been written.

        It is what two of them lie apart. If there is one only, it is the least divisor of its number + 1 that
        is not below the setting. Spark reads the log by the same rules.
        """
        compact = sorted(
            (n for n, name in self._files.items() if name.endswith(COMPACT)), reverse=True
        )
        wanted = self._settings.compact_interval
        if len(compact) >= 2:
            return compact[0] - compact[1]
        if not compact:
            return wanted
        length = compact[0] + 1
        if wanted < length // 2:
            divisors = [n for n in range(wanted, length // 2 + 1) if length % n == 0]
            return min(divisors, default=length)
        return length

    def load(self) -> list[FileEntry]:
        """All files that were ever taken, oldest first. Nothing is changed, whatever is found."""
        valid = valid_names(self._files)
        entries: list[FileEntry] = []
        expected = valid[0][0] if valid and valid[0][1].endswith(COMPACT) else 0
        for number, name in valid:
            if number != expected:
                raise damaged(self._storage, str(expected), "is missing")
            expected += 1
            entries += self._entries(name)
        return entries

    def add(self, batch_id: int, entries: Sequence[FileEntry]) -> None:
        """Write what was taken for an offset, durably. Offsets follow each other without gaps."""
        if batch_id != self.last_id + 1:
            raise ValueError(f"offset {batch_id} does not follow {self.last_id}")
        lines = [entry.to_line() for entry in entries]
        name = str(batch_id)
        if (batch_id + 1) % self._interval == 0:
            name += COMPACT
            # Lines as they are: what is in them was checked when it was read first.
            before = [line for _, old in valid_names(self._files) for line in self._lines(old)]
            lines = before + lines
        self._forget_checksum(name)
        fault_point("source.before-log")
        self._storage.write(name, "\n".join([VERSION, *lines]).encode())
        fault_point("source.after-log")
        self._files[batch_id] = name
        self._written_ms[batch_id] = self._clock.wall_ms()
        self.last_id = batch_id
        if self._settings.deletion:
            self._delete_expired()

    def get(self, batch_id: int) -> list[FileEntry]:
        """What was taken for one offset. Cheap for one that is not in a compact file."""
        name = self._files.get(batch_id)
        if name is None:  # deleted, and so in every compact file after it
            later = [
                n for n, name in self._files.items() if n > batch_id and name.endswith(COMPACT)
            ]
            if not later:
                raise damaged(self._storage, str(batch_id), "is missing")
            name = self._files[min(later)]
        return [entry for entry in self._entries(name) if entry.batch_id == batch_id]

    def _entries(self, name: str) -> list[FileEntry]:
        try:
            return [FileEntry.parse(line) for line in self._lines(name)]
        except (ValueError, LookupError, TypeError) as error:
            raise damaged(self._storage, name, f"cannot be read ({error})") from None

    def _lines(self, name: str) -> list[str]:
        try:
            return read_lines(self._storage, name)
        except FileNotFoundError:
            raise damaged(self._storage, name, "is missing") from None

    def _delete_expired(self) -> None:
        """Delete what lies before the compact file with which the last batches can be looked at again.

        Not at once: where a new file is not seen by everybody at the same time, somebody may read the old.
        """
        oldest_kept = self.last_id + 1 - self._settings.min_batches_to_retain
        if oldest_kept < self._interval:
            return
        compact_id = oldest_kept - oldest_kept % self._interval - 1
        latest_ms = self._clock.wall_ms() - self._settings.cleanup_delay_ms
        for number in [n for n in self._files if n < compact_id]:
            name = self._files[number]
            written_ms = self._written_ms.get(number)
            if written_ms is None:
                written_ms = self._storage.modified_ms(name) or 0
                self._written_ms[number] = written_ms
            if written_ms <= latest_ms:
                fault_point("source.before-cleanup")
                self._storage.delete(name)
                self._forget_checksum(name)
                del self._files[number], self._written_ms[number]

    def _forget_checksum(self, name: str) -> None:
        """One that Hadoop made for another file of this name would make Spark refuse the new one."""
        if "://" not in self._storage.uri:
            self._storage.delete(f".{name}.crc")
