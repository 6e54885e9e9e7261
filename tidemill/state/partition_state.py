"""One batch's work on one partition of state, inside a task.

1. The local store is brought to version N-1, the one that the driver says is committed.
2. The batch reads it, in one consistent view, and adds what it changes to a new durable file.
3. The file becomes visible under the name of this attempt. That is all: it counts when the driver has
   committed the batch, and the local store takes it over when the next batch begins.

A task that fails or runs twice has changed nothing that anybody else reads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import lmdb

from tidemill.checkpoint.storage import Storage
from tidemill.common.fault_points import fault_point
from tidemill.state.local_store import (
    LocalReader,
    discard_local_store,
    local_store,
    scratch_store,
)
from tidemill.state.partition_files import PartitionFiles, new_version
from tidemill.state.state_file import Record, StateFileWriter


@dataclass(frozen=True)
class OperatorState:
    """Where the state of an operator is. Goes to the executors with every task."""

    storage: Storage
    stream_id: str
    operator: str
    timed: bool = False

    def files(self, partition: int) -> PartitionFiles:
        return PartitionFiles(self.storage, self.operator, partition)

    def local_folder(self) -> str:
        """On the disk that Spark gave to this executor, and clears when the application ends."""
        root = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
        return os.path.join(root, "tidemill-state", self.stream_id, quote(self.operator, safe=""))

    def local_path(self, partition: int) -> str:
        # An operator that a new program gives a timeout to must not find a store without an index.
        name = f"{partition}-timed" if self.timed else str(partition)
        return os.path.join(self.local_folder(), name)


@dataclass(frozen=True)
class WrittenVersion:
    """What a task tells the driver of the version it has written."""

    version: str
    changed: int
    bytes_written: int
    keys_before: int
    # Files of changes that lead to the version before, as far as the local store knows.
    changes_before: int = 0


class StateTransaction:
    """What a step may do to the state: read the version before, and put each key at most once."""

    def __init__(self, reader: LocalReader, writer: StateFileWriter | None) -> None:
        self._reader = reader
        self._writer = writer

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        return self._reader.get_many(keys)

    def scan(self) -> Iterator[Record]:
        """All keys, in no particular order. Puts are not seen."""
        return self._reader.scan()

    def expired(self, before_ms: int) -> Iterator[Record]:
        return self._reader.expired(before_ms)

    def put(self, key: bytes, value: bytes, time_ms: int) -> None:
        if self._writer is not None:
            self._writer.add(key, value, time_ms)

    def remove(self, key: bytes, time_ms: int) -> None:
        if self._writer is not None:
            self._writer.add(key, None, time_ms)


@contextmanager
def reading(state: OperatorState, partition: int, version: str | None) -> Iterator[LocalReader]:
    """A view of exactly that version.

    IF the local store has it, or can be brought to it, that is the view. ELSE it has gone further already,
    because somebody looks at an old batch again, or is of no use: then the version is built in a store for
    one use.
    """
    files = state.files(partition)
    path = state.local_path(partition)
    store = local_store(path, state.timed)
    try:
        caught_up = store.catch_up(files, version)
    except lmdb.Error as error:
        discard_local_store(path, error)
        caught_up = False
    if caught_up:
        with store.reading() as reader:
            if reader.version == version:
                yield reader
                return
    with scratch_store(state.local_folder(), state.timed) as scratch:
        scratch.catch_up(files, version)
        with scratch.reading() as reader:
            yield reader


class StateAttempt:
    """A transaction in the making, and what came of it."""

    def __init__(self) -> None:
        self.written: WrittenVersion | None = None
        self.transaction: StateTransaction


@contextmanager
def attempt(
    state: OperatorState, partition: int, base: str | None, batch_id: int, is_replay: bool
) -> Iterator[StateAttempt]:
    """The three steps above. A replay of a batch that is committed writes nothing."""
    result = StateAttempt()
    with reading(state, partition, base) as reader:  # 1
        if is_replay:
            result.transaction = StateTransaction(reader, None)
            yield result
            return
        version = new_version(batch_id)
        with state.files(partition).writing(version, base, "changes") as writer:
            result.transaction = StateTransaction(reader, writer)
            yield result  # 2
            size = writer.finish()
            fault_point("state.before-version")
        # 3
        fault_point("state.after-version")
        result.written = WrittenVersion(version, writer.records, size, reader.keys, reader.changes)
