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

    def __init__(
        self, reader: LocalReader, open_writer: Callable[[], StateFileWriter] | None
    ) -> None:
        self._reader = reader
        self._open_writer = open_writer
        self.writer: StateFileWriter | None = None

    # -- the version before --------------------------------------------------------------------

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        return self._reader.get_many(keys)

    def get_values(self, keys: Sequence[bytes] | pa.BinaryArray) -> list[bytes | None]:
        """The values of keys, in their order; None where there is none."""
        return self._reader.get_values(keys)

    def find(self, keys: pa.BinaryArray) -> Chunk:
        """The keys that are there, with their values, in no particular order. Each must come once."""
        return self._reader.find(keys)

    def scan(self) -> Iterator[Record]:
        """All keys, in no particular order. Puts are not seen."""
        return self._reader.scan()

    def scan_chunks(self) -> Iterator[Chunk]:
        return self._reader.scan_chunks()

    def expired(self, before_ms: int) -> Iterator[Record]:
        return self._reader.expired(before_ms)

    def expired_chunks(self, before_ms: int) -> Iterator[Chunk]:
        return self._reader.expired_chunks(before_ms)

    # -- the version that is made --------------------------------------------------------------

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
        """Put keys by column. A key that comes twice is an error that nobody notices here."""
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

    def __init__(self, reader: LocalReader) -> None:
        # None as long as it is not written, of a replay, and of what may be skipped if nothing changes.
        self.written: WrittenVersion | None = None
        self.keys_before = reader.keys
        self.transaction: StateTransaction


@contextmanager
def attempt(
    state: OperatorState,
    partition: int,
    base: str | None,
    batch_id: int,
    is_replay: bool,
    skip_unchanged: bool = False,
) -> Iterator[StateAttempt]:
    """The three steps above. A replay of a batch that is committed writes nothing.

    With ``skip_unchanged`` a batch that puts and removes nothing makes no version: the one before stays.
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
            size = writer.finish()
            fault_point("state.before-version")
        # 3
        fault_point("state.after-version")
        result.written = WrittenVersion(
            version, writer.records, size, result.keys_before, reader.changes
        )
