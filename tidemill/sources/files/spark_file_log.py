"""The files that a query has taken, in the log of Spark's own file source.

One file for each offset of the source, with the files that were taken for it. ``sources/0/7``::

    v1
    {"path":"file:///in/orders-12.csv","timestamp":1772366400000,"batchId":7}
    {"path":"file:///in/orders%2013.csv","timestamp":1772366401000,"batchId":7}

``timestamp`` is when the file was modified. :mod:`tidemill.checkpoint.compact_log` describes the log itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.checkpoint.compact_log import CompactLog, CompactLogSettings
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point

REMEDY = (
    "Restore it from a backup: without it, nobody knows which files have been read. Or start over with "
    "another checkpoint directory. Nothing has been changed."
)


@dataclass(frozen=True)
class FileEntry:
    """One line: a file, as a URI."""

    path: str
    timestamp: int
    batch_id: int

    def to_line(self) -> str:
        record = {"path": self.path, "timestamp": self.timestamp, "batchId": self.batch_id}
        # Spark's URIs have letters of all languages as they are.
        return json.dumps(record, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str) -> FileEntry:
        record = json.loads(line)
        return cls(str(record["path"]), int(record["timestamp"]), int(record["batchId"]))


class SparkFileLog:
    """The log of one file source. One thread uses it."""

    def __init__(self, storage: Storage, clock: Clock, settings: CompactLogSettings) -> None:
        self._log = CompactLog(storage, settings, clock, remedy=REMEDY, kind="source")

    @property
    def last_id(self) -> int:
        """The last offset in the log, or -1."""
        return self._log.latest

    def load(self) -> list[FileEntry]:
        """Return all files that were ever taken, oldest first. Change nothing, even if a file is damaged."""
        return [entry for name, lines in self._log.files() for entry in self._parse(name, lines)]

    def add(self, batch_id: int, entries: Sequence[FileEntry]) -> None:
        """Write the files taken for an offset, durably. Offsets follow each other without gaps."""
        fault_point("source.before-log")
        self._log.add(batch_id, [entry.to_line() for entry in entries])
        fault_point("source.after-log")
        self._log.delete_expired()

    def get(self, batch_id: int) -> list[FileEntry]:
        """Return the files taken for one offset. Cheap for an offset that has a file of its own."""
        name, lines = self._log.file_of(batch_id)
        return [entry for entry in self._parse(name, lines) if entry.batch_id == batch_id]

    def _parse(self, name: str, lines: Iterable[str]) -> list[FileEntry]:
        try:
            return [FileEntry.parse(line) for line in lines]
        except (ValueError, LookupError, TypeError) as error:
            raise self._log.damaged(name, f"cannot be read ({error})") from None
