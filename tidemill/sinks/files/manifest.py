"""The list of the files that a file sink has committed, in the format of Spark's own.

``_spark_metadata/7`` in the target directory has the files that batch 7 has added::

    v1
    {"path":"file:///data/out/part-00000-5c8bf0d5.snappy.parquet","size":1350,"isDir":false,"modificationTime":1772366400000,"blockReplication":1,"blockSize":33554432,"action":"add"}

Every tenth batch (``spark.sql.streaming.fileSink.log.compactInterval``) writes ``9.compact``, ``19.compact``,
... with the files of all batches up to it, so that readers need a few of these files only. Older ones are
deleted after a while (``...deletion``, ``...cleanupDelay``, ``spark.sql.streaming.minBatchesToRetain``).
Spark's readers and its file source see the files that the manifest lists and no others.

``_spark_metadata/.tidemill`` says which query writes here::

    {"queryId":"5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11","queryName":"clicks"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import Conf, Setting, boolean, positive_int, time_ms
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError
from tidemill.sinks.files.target_directory import TargetDirectory

FOLDER = "_spark_metadata"
OWNER = f"{FOLDER}/.tidemill"
VERSION = "v1"
COMPACT = ".compact"

COMPACT_INTERVAL = Setting(
    "spark.sql.streaming.fileSink.log.compactInterval",
    10,
    positive_int,
    "After how many batches the manifest of a file sink is written as a whole.",
)
DELETION = Setting(
    "spark.sql.streaming.fileSink.log.deletion",
    True,
    boolean,
    "Delete files of the manifest that newer ones have made superfluous.",
)
CLEANUP_DELAY = Setting(
    "spark.sql.streaming.fileSink.log.cleanupDelay",
    600_000,
    lambda text: time_ms(text, "ms"),
    "How long superfluous files of the manifest stay, for readers that are at them.",
)
MIN_BATCHES = Setting(
    "spark.sql.streaming.minBatchesToRetain",
    100,
    positive_int,
    "How many batches stay in the logs of a query at least.",
)


@dataclass(frozen=True)
class ManifestSettings:
    """When the manifest is written as a whole, and what is forgotten then."""

    compact_interval: int = 10
    delete_superfluous: bool = True
    cleanup_delay_ms: int = 600_000
    min_batches: int = 100
    retention_ms: int | None = None

    @classmethod
    def read(cls, conf: Conf, retention_ms: int | None = None) -> ManifestSettings:
        return cls(
            COMPACT_INTERVAL.read(conf),
            DELETION.read(conf),
            CLEANUP_DELAY.read(conf),
            MIN_BATCHES.read(conf),
            retention_ms,
        )


@dataclass(frozen=True)
class ManifestFile:
    """A line of the manifest."""

    uri: str
    size: int
    modified_ms: int
    block_size: int
    replication: int = 1

    def to_line(self) -> str:
        fields = {
            "path": self.uri,
            "size": self.size,
            "isDir": False,
            "modificationTime": self.modified_ms,
            "blockReplication": self.replication,
            "blockSize": self.block_size,
            "action": "add",
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def batch_number(name: str) -> int | None:
    """
    >>> batch_number("7"), batch_number("9.compact"), batch_number(".7.crc")
    (7, 9, None)
    """
    digits = name.removesuffix(COMPACT)
    return int(digits) if digits.isascii() and digits.isdigit() else None


def fitting_interval(wanted: int, compacted: Sequence[int], latest: int = -1) -> int:
    """The compact interval to go on with, where a manifest with another one may be there: readers find the
    last whole file by counting, so it must be one at which the files that are there would have been written.

    >>> fitting_interval(10, []), fitting_interval(10, [3, 7]), fitting_interval(10, [29])
    (10, 4, 10)
    >>> fitting_interval(7, [29]), fitting_interval(20, [29]), fitting_interval(10, [4])
    (10, 30, 5)
    >>> fitting_interval(3, [], latest=4)
    6
    """
    if not compacted:
        return wanted * ((latest + 1) // wanted + 1)
    if len(compacted) > 1:
        *_, before, last = sorted(compacted)
        return last - before
    batches = compacted[0] + 1
    divisors = (n for n in range(wanted, batches // 2 + 1) if batches % n == 0)
    return next(divisors, batches)


class FileManifest:
    """Reads and extends the manifest of a directory. One thread of one query uses it."""

    def __init__(
        self, directory: TargetDirectory, settings: ManifestSettings, clock: Clock | None = None
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock or SystemClock()
        self._interval = settings.compact_interval
        self.latest: int | None = None
        """The newest batch, as of the last :meth:`load` or :meth:`add`."""

    def load(self) -> None:
        """Look at what is there."""
        names = self._names()
        self.latest = max(names.values(), default=None)
        compacted = [number for name, number in names.items() if name.endswith(COMPACT)]
        self._interval = fitting_interval(
            self._settings.compact_interval, compacted, -1 if self.latest is None else self.latest
        )

    def _names(self) -> dict[str, int]:
        return {
            entry.name: number
            for entry in self._directory.list(FOLDER)
            if (number := batch_number(entry.name)) is not None
        }

    def owner(self) -> Mapping[str, Any] | None:
        """Who writes here, if it is a query of Tidemill's."""
        try:
            owner = json.loads(self._directory.read(OWNER))
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._damaged(
                OWNER, "is not JSON", "Delete it, if only one query writes here."
            ) from None
        return owner if isinstance(owner, dict) else {}

    def claim(self, query_id: str, query_name: str | None) -> None:
        """Write down who writes here, where nobody has."""
        owner = {"queryId": query_id, "queryName": query_name}
        fault_point("sink.before-claim")
        self._directory.create(OWNER, json.dumps(owner, separators=(",", ":")).encode())

    def add(self, batch_id: int, files: Iterable[ManifestFile]) -> None:
        """Commit a batch: its files are visible, all of them, when this returns.

        ``FileExistsError`` if somebody else has written this batch.
        """
        for missing in self._gap_before(batch_id):
            self._write(missing, [])
        self._write(batch_id, [file.to_line() for file in files])
        if self._is_compact(batch_id) and self._settings.delete_superfluous:
            self._delete_superfluous(batch_id)

    def lines(self) -> list[str]:
        """All files that are committed, a line of JSON each."""
        return [] if self.latest is None else self._lines_up_to(self.latest)

    def _gap_before(self, batch_id: int) -> range:
        """Batches that a reader will look for and that went elsewhere: the query has a history without
        this directory."""
        last_compact = batch_id // self._interval * self._interval - 1
        first = max(last_compact, 0) if self.latest is None else self.latest + 1
        return range(first, batch_id)

    def _write(self, batch_id: int, lines: list[str]) -> None:
        path = self._path(batch_id)
        if self._is_compact(batch_id):
            lines = self._kept(self._lines_up_to(batch_id - 1)) + lines
        self._directory.create(path, "\n".join([VERSION, *lines]).encode())
        self.latest = batch_id

    def _lines_up_to(self, batch_id: int) -> list[str]:
        last_compact = (batch_id + 1) // self._interval * self._interval - 1
        numbers = range(max(last_compact, 0), batch_id + 1)
        if self.latest is None or batch_id < 0:
            return []
        return [line for number in numbers for line in self._read(number)]

    def _read(self, batch_id: int) -> list[str]:
        path = self._path(batch_id)
        try:
            version, *lines = self._directory.read(path).decode().split("\n")
        except FileNotFoundError:
            raise self._damaged(
                path,
                "is missing, although later batches are there",
                "Restore it from a backup, or write to another directory.",
            ) from None
        if version != VERSION:
            raise self._damaged(
                path,
                f"begins with {version[:20]!r}, not with {VERSION}",
                "Restore it from a backup.",
            )
        return [line for line in lines if line]

    def _kept(self, lines: list[str]) -> list[str]:
        retention_ms = self._settings.retention_ms
        if retention_ms is None:
            return lines
        oldest_ms = self._clock.wall_ms() - retention_ms
        return [line for line in lines if json.loads(line)["modificationTime"] >= oldest_ms]

    def _delete_superfluous(self, batch_id: int) -> None:
        kept_from = batch_id + 1 - self._settings.min_batches
        if kept_from < self._interval:
            return
        last_needed = kept_from // self._interval * self._interval - 1
        before_ms = self._clock.wall_ms() - self._settings.cleanup_delay_ms
        for entry in self._directory.list(FOLDER):
            number = batch_number(entry.name)
            if number is not None and number < last_needed and entry.modified_ms <= before_ms:
                fault_point("sink.before-cleanup")
                self._directory.delete(entry.path)
                self._directory.delete(f"{FOLDER}/.{entry.name}.crc")  # Spark's, of a local file

    def _is_compact(self, batch_id: int) -> bool:
        return (batch_id + 1) % self._interval == 0

    def _path(self, batch_id: int) -> str:
        return f"{FOLDER}/{batch_id}{COMPACT if self._is_compact(batch_id) else ''}"

    def _damaged(self, path: str, finding: str, remedy: str) -> DamagedCheckpointError:
        directory = self._directory.uri
        return DamagedCheckpointError(f"{directory}/{path}", finding, remedy, directory)
