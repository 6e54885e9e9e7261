"""The manifest of a file sink: the files that it has committed, in Spark's format.

``_spark_metadata/7`` in the target directory lists the files that batch 7 has added::

    v1
    {"path":"file:///data/out/part-00000-5c8bf0d5.snappy.parquet","size":1350,"isDir":false,"modificationTime":1772366400000,"blockReplication":1,"blockSize":33554432,"action":"add"}

:mod:`tidemill.checkpoint.compact_log` describes the log itself; its settings begin with
``spark.sql.streaming.fileSink.log``. Spark's readers and its file source see only the files that the manifest
lists.

``_spark_metadata/.tidemill`` says which query writes here::

    {"queryId":"5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11","queryName":"clicks"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.checksums import ChecksumError
from tidemill.checkpoint.compact_log import COMPACT, EMPTY, CompactLog, CompactLogSettings
from tidemill.checkpoint.storage import is_unfinished
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import Conf
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError
from tidemill.sinks.files.target_directory import TargetDirectory

FOLDER = "_spark_metadata"
OWNER = f"{FOLDER}/.tidemill"


@dataclass(frozen=True)
class ManifestSettings:
    """The settings of the log, and how long a file stays in the manifest."""

    log: CompactLogSettings
    retention_ms: int | None = None

    @classmethod
    def read(cls, conf: Conf, retention_ms: int | None = None) -> ManifestSettings:
        return cls(CompactLogSettings.read(conf, "fileSink"), retention_ms)


@dataclass(frozen=True)
class ManifestFile:
    """A line of the manifest: one committed file."""

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


class _ManifestFolder:
    """The folder of the manifest, as a compact log uses it. Files are created, never replaced."""

    def __init__(self, target: TargetDirectory) -> None:
        self._target = target
        self.uri = f"{target.uri}/{FOLDER}"

    def list(self, folder: str) -> list[str]:
        return [entry.name for entry in self._target.list(FOLDER)]

    def read(self, path: str) -> bytes:
        return self._target.read(f"{FOLDER}/{path}")

    def write(self, path: str, data: bytes) -> None:
        self._target.create(f"{FOLDER}/{path}", data)

    def delete(self, path: str) -> None:
        self._target.delete(f"{FOLDER}/{path}")

    def modified_ms(self, path: str) -> int | None:
        entry = self._target.entry(f"{FOLDER}/{path}")
        return None if entry is None else entry.modified_ms


class FileManifest:
    """Reads and extends the manifest of a directory. One thread of one query uses it."""

    def __init__(
        self, directory: TargetDirectory, settings: ManifestSettings, clock: Clock | None = None
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock or SystemClock()
        self._log: CompactLog

    def load(self) -> None:
        """Look at the files that are there. To be called first, and again after a failed :meth:`add`."""
        self._log = CompactLog(
            _ManifestFolder(self._directory),
            self._settings.log,
            self._clock,
            remedy="Restore it from a backup, or write to another directory.",
            kind="sink",
        )

    @property
    def latest(self) -> int | None:
        """The latest batch in the manifest, as of the last :meth:`load` or :meth:`add`."""
        return None if self._log.latest == EMPTY else self._log.latest

    def require_complete(self, last_committed: int | None) -> None:
        """Refuse a manifest that lacks a batch, or whose files are damaged.

        All files that are needed to read it are read. ``last_committed`` is the last batch that the query's
        checkpoint has committed: the manifest got it before. With None only the files are checked.
        """
        for _ in self._log.files():
            pass
        latest = self._log.latest
        if last_committed is None or latest >= last_committed:
            return
        if latest == EMPTY and self.owner() is None:
            return  # the query has written elsewhere until now
        raise DamagedCheckpointError(
            f"{self._directory.uri}/{FOLDER}/{latest + 1}",
            f"is missing, although the query has committed its batches up to {last_committed}",
            "Restore it from a backup: without it, nobody sees the files of that batch. If the batches from "
            f"{latest + 1} to {last_committed} have been written elsewhere on purpose, set the option "
            "allowMissingBatches of this sink to true. Nothing has been changed.",
            self._directory.uri,
        )

    def sweep(self) -> None:
        """Delete the unfinished files of killed writers. For the query that owns the manifest."""
        for entry in self._directory.list(FOLDER):
            if is_unfinished(entry.name):
                self._directory.delete(entry.path)

    def owner(self) -> Mapping[str, Any] | None:
        """Return which query of Tidemill's writes here, or None."""
        try:
            owner = json.loads(self._directory.read(OWNER))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedCheckpointError(
                f"{self._directory.uri}/{OWNER}",
                str(error) if isinstance(error, ChecksumError) else "is not JSON",
                "Delete it, if only one query writes here.",
                self._directory.uri,
            ) from None
        return owner if isinstance(owner, dict) else {}

    def claim(self, query_id: str, query_name: str | None) -> None:
        """Write down which query writes here. ``FileExistsError`` if that has been written."""
        owner = {"queryId": query_id, "queryName": query_name}
        fault_point("sink.before-claim")
        self._directory.create(OWNER, json.dumps(owner, separators=(",", ":")).encode())

    def add(self, batch_id: int, files: Iterable[ManifestFile]) -> None:
        """Commit a batch: when this returns, all of its files are visible.

        ``FileExistsError`` if somebody else has written this batch, ``DamagedCheckpointError`` if the batch
        before it is gone: then somebody has deleted the directory, and readers would miss all earlier rows.
        """
        self._require_latest()
        # Batches that went elsewhere: the query has a history without this directory.
        for missing in self._log.missing_before(batch_id):
            self._log.add(missing, [])
        self._log.add(batch_id, [file.to_line() for file in files], self._keeps)
        self._log.delete_expired()

    def _require_latest(self) -> None:
        latest = self.latest
        if latest is None:
            return
        names = [f"{FOLDER}/{latest}", f"{FOLDER}/{latest}{COMPACT}"]
        if all(self._directory.entry(name) is None for name in names):
            raise DamagedCheckpointError(
                f"{self._directory.uri}/{FOLDER}/{latest}",
                "is gone, and was there while this query ran: somebody has deleted the directory or a part "
                "of it, with the rows of earlier batches",
                "Restore it from a backup, or start over with another directory and another checkpoint.",
                self._directory.uri,
            )

    def _keeps(self, line: str) -> bool:
        retention_ms = self._settings.retention_ms
        if retention_ms is None:
            return True
        return int(json.loads(line)["modificationTime"]) >= self._clock.wall_ms() - retention_ms
