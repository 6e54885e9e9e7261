"""The durable files of one partition of one operator's state, and which of them make up a version.

A version is called ``<batch>.<attempt>``: every attempt of a task writes a file of its own, and ``commits/N``
says which one counts. So a task that runs twice, a speculative copy, or a task of a driver that should be
dead does no harm. ``<version>.changes`` names its parent version; a ``<version>.snapshot`` needs no parent.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa

from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError
from tidemill.state.state_file import (
    StateFileWriter,
    StateHeader,
    damaged,
    open_state_batches,
    read_header,
)

INITIAL = -1
"""The batch id of the state that a stream begins with."""


def new_version(batch_id: int) -> str:
    return f"{batch_id}.{uuid.uuid4().hex[:8]}"


def batch_of(version: str) -> int:
    return int(version.split(".")[0])


@dataclass(frozen=True)
class Chain:
    """The files that make up a version, oldest first. ``base`` is the version that they build upon."""

    base: str | None
    names: list[str]


@dataclass(frozen=True)
class PartitionFiles:
    """The folder of one partition's files."""

    storage: Storage
    operator: str
    partition: int

    @property
    def folder(self) -> str:
        return f"state/{quote(self.operator, safe='')}/{self.partition}"

    @contextmanager
    def writing(self, version: str, parent: str | None, kind: str) -> Iterator[StateFileWriter]:
        """Write a new file, which the ``with`` block must finish; it appears when the block ends."""
        header = StateHeader(self.operator, self.partition, version, parent, kind)
        with self.storage.open_write(f"{self.folder}/{version}.{kind}") as file:
            yield StateFileWriter(file, header)

    @contextmanager
    def opened(self, name: str) -> Iterator[tuple[StateHeader, Iterable[pa.RecordBatch]]]:
        """Open a file and check it. Raise ``FileNotFoundError`` if it is not there."""
        with open_state_batches(self.storage, f"{self.folder}/{name}") as (header, batches):
            self._check_place(name, header)
            yield header, batches

    def chain(self, version: str | None, known: str | None = None) -> Chain:
        """Return the files that lead to a version, starting after ``known`` if that is an ancestor."""
        names: list[str] = []
        at = version
        there = set(self.storage.list(self.folder))
        while at is not None and at != known:
            if f"{at}.snapshot" in there:
                names.append(f"{at}.snapshot")
                at = None
                break
            name = f"{at}.changes"
            try:
                header = read_header(self.storage, f"{self.folder}/{name}")
            except FileNotFoundError:
                if set(self.storage.list(self.folder)) != there:
                    return self.chain(version, known)  # a snapshot may have replaced it
                if names:
                    with self.opened(names[-1]):
                        pass  # whole, so it is right about its parent
                raise self.missing(name) from None
            self._check_place(name, header)
            names.append(name)
            at = header.parent
            if f"{at}.changes" in names:
                raise damaged(self.storage, f"{self.folder}/{name}", "it leads back to itself")
        return Chain(at, names[::-1])

    def missing(self, name: str) -> DamagedCheckpointError:
        finding = "it is missing, and there is no snapshot of that version"
        return damaged(self.storage, f"{self.folder}/{name}", finding)

    def _check_place(self, name: str, header: StateHeader) -> None:
        its_name = f"{header.version}.{header.kind}"
        if (header.operator, header.partition, its_name) != (self.operator, self.partition, name):
            raise damaged(
                self.storage,
                f"{self.folder}/{name}",
                f"it is {its_name} of partition {header.partition} of {header.operator!r}, "
                "in the wrong place",
            )

    def versions(self, kind: str) -> list[str]:
        suffix = f".{kind}"
        return [
            n.removesuffix(suffix) for n in self.storage.list(self.folder) if n.endswith(suffix)
        ]

    def delete_before(self, oldest_needed: str | None) -> int:
        """Delete the files that neither version ``oldest_needed`` nor a later one needs; return their number.

        That version begins with a snapshot, which contains everything before it. Any other snapshot, however
        new, may belong to batches that somebody has deleted from the log to run them again.
        """
        if oldest_needed is None:
            return 0
        limit = batch_of(oldest_needed)
        if all(batch_of(version) > limit for version in self.versions("snapshot")):
            return 0
        first = self.chain(oldest_needed).names[0]
        if not first.endswith(".snapshot"):
            return 0
        kept = batch_of(first)
        old = [
            f"{version}.{kind}"
            for kind, until in (("snapshot", kept - 1), ("changes", kept))
            for version in self.versions(kind)
            if batch_of(version) <= until
        ]
        for name in old:
            self.storage.delete(f"{self.folder}/{name}")
        return len(old)
