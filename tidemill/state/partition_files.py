"""The durable files of one partition of one operator's state, and which of them make up a version.

A version is called ``<batch>.<attempt>``: every attempt of a task writes a file of its own, and
``commits/N`` says which one counts. So a task that runs twice, a speculative copy, or a task of a driver that
should be dead disturbs nobody. ``<version>.changes`` leads back to its parent; a ``<version>.snapshot``
ends the way back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from tidemill.checkpoint.storage import Storage
from tidemill.state.state_file import StateFileWriter, StateHeader, damaged, read_header

INITIAL = -1
"""The batch of the state that a stream begins with."""


def new_version(batch_id: int) -> str:
    return f"{batch_id}.{uuid.uuid4().hex[:8]}"


def batch_of(version: str) -> int:
    return int(version.split(".")[0])


@dataclass(frozen=True)
class Chain:
    """The files that lead to a version, oldest first. ``base`` is what they build upon."""

    base: str | None
    paths: list[str]


@dataclass(frozen=True)
class PartitionFiles:
    storage: Storage
    operator: str
    partition: int

    @property
    def folder(self) -> str:
        return f"state/{quote(self.operator, safe='')}/{self.partition}"

    @contextmanager
    def writing(self, version: str, parent: str | None, kind: str) -> Iterator[StateFileWriter]:
        """A new file, which is there when the block, which has to finish it, ends well."""
        header = StateHeader(self.operator, self.partition, version, parent, kind)
        with self.storage.open_write(f"{self.folder}/{version}.{kind}") as file:
            yield StateFileWriter(file, header)

    def chain(self, version: str, known: str | None = None) -> Chain:
        """How to get to a version, from the one that is ``known`` if it lies on the way."""
        names: set[str] | None = None
        paths: list[str] = []
        at: str | None = version
        while at is not None and at != known:
            if names is None:
                # The usual way is one step from what is known: try that without a listing.
                changes = f"{self.folder}/{at}.changes"
                try:
                    parent = read_header(self.storage, changes).parent
                except FileNotFoundError:
                    parent = None
                if parent is not None and parent == known:
                    return Chain(known, [changes])
                names = set(self.storage.list(self.folder))
            if f"{at}.snapshot" in names:
                paths.append(f"{self.folder}/{at}.snapshot")
                at = None
                break
            if f"{at}.changes" not in names:
                raise damaged(self.storage, f"{self.folder}/{at}.changes", "it is missing")
            paths.append(f"{self.folder}/{at}.changes")
            at = read_header(self.storage, paths[-1]).parent
        return Chain(at, paths[::-1])

    def versions(self, kind: str) -> list[str]:
        suffix = f".{kind}"
        return [
            n.removesuffix(suffix) for n in self.storage.list(self.folder) if n.endswith(suffix)
        ]

    def delete_before(self, oldest_needed: int) -> int:
        """Delete what no version of batch ``oldest_needed`` or later is made of. How many files.

        All versions since the newest snapshot that is old enough must stay; that snapshot contains
        everything before it.
        """
        snapshots = [v for v in self.versions("snapshot") if batch_of(v) <= oldest_needed]
        if not snapshots:
            return 0
        kept = max(map(batch_of, snapshots))
        old = [
            f"{version}.{kind}"
            for kind, until in (("snapshot", kept - 1), ("changes", kept))
            for version in self.versions(kind)
            if batch_of(version) <= until
        ]
        for name in old:
            self.storage.delete(f"{self.folder}/{name}")
        return len(old)
