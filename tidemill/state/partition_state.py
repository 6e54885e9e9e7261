"""One batch's work on one partition of state, inside a task.

1. Bring the local store to version N-1, the one that the driver has committed.
2. Read that version, in one consistent view, and write all changes to a new durable file.
3. Make the file visible under the name of this attempt. It counts once the driver has committed the
   batch, and the next batch applies it to the local store.

A task that fails or runs twice has changed nothing that others read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import lmdb
import numpy as np
import pyarrow as pa

from tidemill.checkpoint.storage import Storage
from tidemill.common.fault_points import fault_point
from tidemill.state.local_reader import Chunk, LocalReader
from tidemill.state.local_store import discard_local_store, local_store, scratch_store
from tidemill.state.packing import IntArray
from tidemill.state.partition_files import PartitionFiles, new_version
from tidemill.state.reports import StateWork
from tidemill.state.state_file import Record, StateFileWriter
from tidemill.state.stopwatch import Stopwatch


def local_folder_of(stream_id: str) -> str:
    """Return the folder with this executor's copies of a stream's state."""
    root = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    return os.path.join(root, "tidemill-state", stream_id)


@dataclass(frozen=True)
class OperatorState:
    """The location of an operator's state. Every task carries it to the executors."""

    storage: Storage
    stream_id: str
    operator: str
    timed: bool = False

    def files(self, partition: int) -> PartitionFiles:
        return PartitionFiles(self.storage, self.operator, partition)

    def local_folder(self) -> str:
        """Return a folder on the disk that Spark gave this executor and clears when the application ends."""
        return os.path.join(local_folder_of(self.stream_id), quote(self.operator, safe=""))

    def local_path(self, partition: int) -> str:
        # If a new program gives the operator a timeout, it must not find a store without an index.
        name = f"{partition}-timed" if self.timed else str(partition)
        return os.path.join(self.local_folder(), name)


@dataclass(frozen=True)
class WrittenVersion:
    """A task's report to the driver about the version that it wrote."""

    version: str
    changed: int
    bytes_written: int
    keys_before: int
    # The number of change files since the last snapshot, up to the previous version.
    changes_before: int = 0


class StateTransaction:
    """The state as a step sees it: it reads the previous version, and puts each key at most once."""

    def __init__(
        self, reader: LocalReader, open_writer: Callable[[], StateFileWriter] | None
    ) -> None:
        self._reader = reader
        self._open_writer = open_writer
        self.writer: StateFileWriter | None = None

    # -- the previous version ------------------------------------------------------------------

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        return self._reader.get_many(keys)

    def get_values(self, keys: Sequence[bytes] | pa.BinaryArray) -> list[bytes | None]:
        """Return the values of the keys, in the order of the keys; None for a key that does not exist."""
        return self._reader.get_values(keys)

    def find(self, keys: pa.BinaryArray) -> Chunk:
        """Return the records of the keys that exist, in no particular order. Pass each key once."""
        return self._reader.find(keys)

    def scan(self) -> Iterator[Record]:
        """Yield all records, in no particular order, without this batch's changes."""
        return self._reader.scan()

    def scan_chunks(self) -> Iterator[Chunk]:
        return self._reader.scan_chunks()

    def expired(self, before_ms: int) -> Iterator[Record]:
        return self._reader.expired(before_ms)

    def expired_chunks(self, before_ms: int) -> Iterator[Chunk]:
        return self._reader.expired_chunks(before_ms)

    # -- the new version -----------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, time_ms: int) -> None:
        if (writer := self._writing()) is not None:
            writer.add(key, value, time_ms)

    def remove(self, key: bytes, time_ms: int) -> None:
        if (writer := self._writing()) is not None:
            writer.add(key, None, time_ms)

    def put_many(
        self,
        keys: Sequence[bytes] | pa.BinaryArray,
        values: Sequence[bytes] | pa.BinaryArray,
        times_ms: Sequence[int] | pa.Int64Array | IntArray,
    ) -> None:
        """Put many keys, by column. The caller must pass each key once; nothing here checks that."""
        if len(keys) and (writer := self._writing()) is not None:
            writer.add_many(keys, values, times_ms)

    def remove_many(self, keys: Sequence[bytes] | pa.BinaryArray, time_ms: int) -> None:
        if len(keys) and (writer := self._writing()) is not None:
            nothing = pa.nulls(len(keys), pa.binary())
            writer.add_many(keys, nothing, np.full(len(keys), time_ms, np.int64))

    def _writing(self) -> StateFileWriter | None:
        if self.writer is None and self._open_writer is not None:
            self.writer = self._open_writer()
        return self.writer


@contextmanager
def reading(state: OperatorState, partition: int, version: str | None) -> Iterator[LocalReader]:
    """Open a view of exactly that version. Its ``was_local`` says whether it was here already.

    IF the local store has the version, or can be brought to it, read it there. ELSE the store is broken, or
    already further because an old batch is computed again: build the version in a store for one use.
    """
    files = state.files(partition)
    path = state.local_path(partition)
    store = local_store(path, state.timed)
    try:
        with store.reading() as before:
            was_local = version is None or before.version is not None
        caught_up = store.catch_up(files, version)
    except lmdb.Error as error:
        discard_local_store(path, error)
        caught_up = False
    if caught_up:
        with store.reading() as reader:
            if reader.version == version:
                reader.was_local = was_local
                yield reader
                return
    with scratch_store(state.local_folder(), state.timed) as scratch:
        scratch.catch_up(files, version)
        with scratch.reading() as reader:
            reader.was_local = False
            yield reader


class StateAttempt:
    """A transaction and, when it is over, the version that it wrote."""

    def __init__(self, reader: LocalReader) -> None:
        # None until it is written, for a replay, and for a batch without changes that may be skipped.
        self.written: WrittenVersion | None = None
        self.keys_before = reader.key_count
        self.transaction: StateTransaction
        self.updating = Stopwatch()
        self.removing = Stopwatch()
        self.committing = Stopwatch()
        self._state_bytes = reader.byte_count
        self._was_local = reader.was_local

    def work(self) -> StateWork:
        return StateWork(
            self.updating.ms,
            self.removing.ms,
            self.committing.ms,
            self._state_bytes,
            self._was_local,
        )


@contextmanager
def attempt(
    state: OperatorState,
    partition: int,
    base: str | None,
    batch_id: int,
    is_replay: bool,
    skip_unchanged: bool = False,
) -> Iterator[StateAttempt]:
    """Go through the three steps above; the ``with`` block is step 2.

    A replay of a committed batch writes nothing. With ``skip_unchanged``, a batch that puts and removes
    nothing writes no version: the previous one stays.
    """
    with reading(state, partition, base) as reader:  # 1
        result = StateAttempt(reader)
        if is_replay:
            result.transaction = StateTransaction(reader, None)
            yield result
            return
        version = new_version(batch_id)
        with ExitStack() as file:

            def open_writer() -> StateFileWriter:
                return file.enter_context(state.files(partition).writing(version, base, "changes"))

            result.transaction = StateTransaction(reader, open_writer)
            yield result  # 2
            writer = result.transaction.writer
            if writer is None:
                if skip_unchanged:
                    return
                writer = open_writer()
            with result.committing:
                size = writer.finish()
            fault_point("state.before-version")
        # 3
        fault_point("state.after-version")
        result.written = WrittenVersion(
            version, writer.records, size, result.keys_before, reader.change_files
        )
