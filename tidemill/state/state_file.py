"""The file format of state: the changes of one batch in one partition, or a snapshot of all its keys.

An Arrow stream of three columns, in no particular order, and a checksum behind it::

    key: binary   value: binary   time: int64      schema metadata "tidemill":
    sa            <pickle of 3>   1772366400000    {"format": 1, "operator": "totals", "partition": 0,
    sb            null            1772366400000     "version": "17.3f9a2b1c", "parent": "16.d0a4c2e8",
    ...                                             "kind": "changes"}
    "crc:" and four bytes, big-endian: the CRC-32 of all before

A null value means that the key was removed. A reader checks the checksum before it uses the file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError
from tidemill.state.binary_arrays import as_array

FORMAT = 1
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("time", pa.int64())])
_TRAILER = b"crc:"
_HEADER_BYTES = 64 << 10
_IN_MEMORY = 64 << 20
_PIECE_BYTES = 8 << 20
_ROWS_AT_ONCE = 16_384
_BYTES_AT_ONCE = 4 << 20


class Record(NamedTuple):
    """A key, its value (None: the key was removed), and the time when it was last touched."""

    key: bytes
    value: bytes | None
    time_ms: int


# Makes a Record of a tuple in half the time that a NamedTuple's constructor takes, which shows here.
new_record: Callable[[tuple[bytes, bytes | None, int]], Record] = partial(tuple.__new__, Record)


@dataclass(frozen=True)
class StateHeader:
    """The header of a state file: which version of which partition it is."""

    operator: str
    partition: int
    version: str
    parent: str | None
    kind: str  # "changes" since the parent, or a "snapshot" of everything
    format: int = FORMAT


class StateFileWriter:
    """Writes records one by one, or many at once, and keeps only a few of them in memory."""

    def __init__(self, file: BinaryIO, header: StateHeader) -> None:
        self._file = _ChecksumWriter(file)
        schema = SCHEMA.with_metadata({"tidemill": json.dumps(asdict(header))})
        # Passing a few kilobytes to other threads would take a millisecond.
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema, options=options)
        self._schema = schema
        self._rows: list[tuple[bytes, bytes | None, int]] = []
        self._pending_bytes = 0
        self.records = 0

    def add(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        self._rows.append((key, value, time_ms))
        self._pending_bytes += len(key) + (0 if value is None else len(value))
        if len(self._rows) >= _ROWS_AT_ONCE or self._pending_bytes >= _BYTES_AT_ONCE:
            self._flush()

    def add_many(self, keys: Any, values: Any, times_ms: Any) -> None:
        """Add records by column. The file has them in the order of their keys, which suits the store that
        reads it; if a key comes twice, the last one counts.
        """
        self._flush()
        columns = map(as_array, (keys, values, times_ms), SCHEMA.types)
        batch = pa.record_batch(list(columns), schema=self._schema)
        batch = batch.take(pc.array_sort_indices(batch.column(0)))
        rows = max(1, min(_ROWS_AT_ONCE, len(keys) * _BYTES_AT_ONCE // (batch.nbytes + 1)))
        for start in range(0, len(keys), rows):
            self._writer.write_batch(batch.slice(start, rows))
        self.records += len(keys)

    def finish(self) -> int:
        """Write the remaining records and the checksum. Return the size of the file."""
        self._flush()
        self._writer.close()
        self._file.write_trailer()
        return self._file.size

    def _flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(column, type)
                for column, type in zip(zip(*self._rows, strict=True), SCHEMA.types, strict=True)
            ]
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self.records += len(self._rows)
            self._rows.clear()
            self._pending_bytes = 0


class _ChecksumWriter:
    """A file object for Arrow to write to, with a running checksum."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._checksum = 0
        self.size = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._checksum = zlib.crc32(data, self._checksum)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        pass

    def write_trailer(self) -> None:
        self._file.write(_TRAILER + self._checksum.to_bytes(4, "big"))
        self.size += len(_TRAILER) + 4


@contextmanager
def open_state_batches(
    storage: Storage, path: str
) -> Iterator[tuple[StateHeader, Iterable[pa.RecordBatch]]]:
    """Open a file: check its checksum, then return its header and its columns in batches."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as local:
        source = _copy_checked(storage, path, local)
        reader = _open_stream(source, storage, path)
        header = _header(reader.schema, storage, path)
        if reader.schema.remove_metadata() != SCHEMA:
            raise damaged(storage, path, f"it has other columns ({', '.join(reader.schema.names)})")
        yield header, reader


def read_header(storage: Storage, path: str) -> StateHeader:
    """Return the header alone, without checking the checksum: enough to find the parent file."""
    with storage.open_read(path) as file:
        beginning = file.read(_HEADER_BYTES)
    return _header(_open_stream(pa.BufferReader(beginning), storage, path).schema, storage, path)


def _open_stream(source: Any, storage: Storage, path: str) -> pa.RecordBatchStreamReader:
    # It reads from memory or a local copy, so an OSError means a bad file, not a bad connection.
    try:
        return pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False))
    except (pa.ArrowException, OSError) as error:
        raise damaged(storage, path, f"it cannot be read ({error})") from None


def _header(schema: pa.Schema, storage: Storage, path: str) -> StateHeader:
    try:
        fields = json.loads(schema.metadata[b"tidemill"])
        if fields["format"] > FORMAT:
            raise DamagedCheckpointError(
                storage.full_name(path),
                f"written by a newer version (format {fields['format']})",
                "Install the version of Tidemill that wrote it, or a later one.",
                storage.uri,
            )
        return StateHeader(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(storage, path, f"it has no header ({error})") from None


def _copy_checked(storage: Storage, path: str, local: Any) -> Any:
    """Check the checksum and return a source for Arrow: memory, or a local copy of a large file."""
    checksum = 0
    tail = b""
    pieces = 0
    with storage.open_read(path) as file:
        while piece := file.read(_PIECE_BYTES):
            piece = tail + piece
            body, tail = memoryview(piece)[:-8], piece[-8:]
            checksum = zlib.crc32(body, checksum)
            pieces += 1
            if pieces == 1:
                first = body
                continue
            if pieces == 2:
                local.write(first)
            local.write(body)
    if len(tail) < 8 or tail[:4] != _TRAILER:
        raise damaged(storage, path, "its end is missing")
    if int.from_bytes(tail[4:], "big") != checksum:
        raise damaged(storage, path, "its checksum is wrong")
    if pieces == 1:
        return pa.BufferReader(first)
    local.seek(0)
    return pa.PythonFile(local, "r")


def damaged(storage: Storage, path: str, finding: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        storage.full_name(path),
        f"a file of the state: {finding}",
        "Restore it from a backup of the checkpoint directory. Without it, the state of this version "
        "cannot be read, and the stream does not continue with less. Nothing has been changed.",
        storage.uri,
    )
