"""The file format of state: what is written comes back, and a damaged file is never read."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError
from tidemill.state import state_file
from tidemill.state.partition_files import PartitionFiles
from tidemill.state.state_file import (
    Record,
    StateFileWriter,
    StateHeader,
    open_state_batches,
    read_header,
)

HEADER = StateHeader("totals", 0, "17.3f9a2b1c", "16.d0a4c2e8", "changes")
RECORDS = [
    Record(b"sa", b"\x80\x05K\x03.", 1_772_366_400_000),
    Record(b"sb", None, 1_772_366_400_000),
    Record(b"sc", b"", -5),
]
FILE = "state/totals/0/17.3f9a2b1c.changes"


class InMemory(LocalStorage):
    """One file, of any bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__("/checkpoint")
        self.data = data

    def open_read(self, path: str) -> BinaryIO:
        return io.BytesIO(self.data)


@contextmanager
def open_state_file(
    storage: Storage, path: str
) -> Iterator[tuple[StateHeader, Iterator[list[Record]]]]:
    """The header of a file and its records, batch by batch."""
    with open_state_batches(storage, path) as (header, batches):
        columns = (zip(*(c.to_pylist() for c in b.columns), strict=True) for b in batches)
        yield header, ([Record(*row) for row in rows] for rows in columns)


def to_bytes(header: StateHeader, records: Iterable[Record]) -> bytes:
    """A whole file in memory."""
    buffer = io.BytesIO()
    writer = StateFileWriter(buffer, header)
    for record in records:
        writer.add(*record)
    writer.finish()
    return buffer.getvalue()


def read(data: bytes) -> tuple[StateHeader, list[Record]]:
    with open_state_file(InMemory(data), FILE) as (header, batches):
        return header, [record for batch in batches for record in batch]


def test_the_drawing_in_the_docstring_is_true() -> None:
    drawing = state_file.__doc__ or ""
    data = to_bytes(HEADER, RECORDS)
    body, trailer = data[:-8], data[-8:]
    assert trailer == b"crc:" + zlib.crc32(body).to_bytes(4, "big")
    assert '"crc:" and four bytes, big-endian' in drawing

    stream = pa.ipc.open_stream(body)
    columns = re.findall(r"(\w+): (binary|int64)", drawing)
    assert [(field.name, str(field.type)) for field in stream.schema] == columns
    assert columns == [("key", "binary"), ("value", "binary"), ("time", "int64")]
    drawn = json.loads("".join(re.findall(r'\{"format.*|(?<= )"\w+": .*', drawing)))
    assert drawn == json.loads(stream.schema.metadata[b"tidemill"])
    assert StateHeader(**drawn) == HEADER
    first, gone, *_ = stream.read_all().to_pylist()
    assert first == {"key": b"sa", "value": b"\x80\x05K\x03.", "time": 1_772_366_400_000}
    assert gone["value"] is None


@given(
    st.lists(
        st.builds(
            Record,
            st.binary(max_size=700),
            st.none() | st.binary(max_size=3000),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=30,
    ),
    st.builds(
        StateHeader,
        st.text(max_size=10),
        st.integers(0, 5000),
        st.text(max_size=10),
        st.none() | st.text(max_size=10),
        st.sampled_from(["changes", "snapshot"]),
    ),
)
def test_what_is_written_comes_back_in_order(records: list[Record], header: StateHeader) -> None:
    data = to_bytes(header, records)
    assert read(data) == (header, records)
    assert read_header(InMemory(data), FILE) == header


def refuse(data: bytes) -> DamagedCheckpointError:
    with pytest.raises(DamagedCheckpointError) as refused:
        read(data)
    error = refused.value
    assert error.file == f"/checkpoint/{FILE}"
    assert error.file in str(error)
    assert "backup" in str(error)
    return error


def header_of(data: bytes) -> StateHeader | None:
    """Without the checksum the header can be wrong, but reading it must not fail in other ways."""
    try:
        return read_header(InMemory(data), FILE)
    except DamagedCheckpointError as error:
        refused = error
    assert refused.file == f"/checkpoint/{FILE}"
    return None


SMALL = to_bytes(HEADER, RECORDS)


def test_a_small_file_cut_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        refuse(SMALL[:length])
        assert header_of(SMALL[:length]) in (None, HEADER)


def test_a_small_file_with_any_bit_flipped_is_refused() -> None:
    for position in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[position] ^= 1 << bit
            refuse(bytes(data))
            header_of(bytes(data))


LARGE = to_bytes(HEADER, [Record(b"k%d" % n, bytes(n % 50), n) for n in range(40_000)])


@settings(max_examples=60)
@given(st.data())
def test_a_file_of_several_parts_that_is_cut_flipped_or_mixed_up_is_refused(
    data: st.DataObject,
) -> None:
    position = data.draw(st.integers(0, len(LARGE) - 1))
    match data.draw(st.sampled_from(["cut", "flip", "zeros", "insert", "drop", "append"])):
        case "cut":
            damaged = LARGE[:position]
        case "flip":
            flipped = bytes([LARGE[position] ^ (1 << data.draw(st.integers(0, 7)))])
            damaged = LARGE[:position] + flipped + LARGE[position + 1 :]
        case "zeros":
            length = data.draw(st.integers(1, 4096))
            zeros = bytes(min(length, len(LARGE) - position))
            damaged = LARGE[:position] + zeros + LARGE[position + len(zeros) :]
            if damaged == LARGE:
                return
        case "insert":
            damaged = LARGE[:position] + b"\x00" + LARGE[position:]
        case "drop":
            damaged = LARGE[:position] + LARGE[position + 1 :]
        case _:
            damaged = LARGE + LARGE[position:]
    refuse(damaged)
    header_of(damaged)


@pytest.mark.parametrize("data", [b"", b"crc:", b"crc:\0\0\0\0", b"\0" * 100, b"not Arrow" * 100])
def test_what_never_was_a_file_of_state_is_refused(data: bytes) -> None:
    refuse(data)
    assert header_of(data) is None


def with_header(metadata: bytes | None) -> bytes:
    buffer = io.BytesIO()
    schema = state_file.SCHEMA
    if metadata is not None:
        schema = schema.with_metadata({"tidemill": metadata})
    with pa.ipc.new_stream(buffer, schema):
        pass
    body = buffer.getvalue()
    return body + b"crc:" + zlib.crc32(body).to_bytes(4, "big")


@pytest.mark.parametrize(
    "metadata",
    [None, b"", b"[]", b"{}", b'{"format": "1"}', b'{"format": 1, "operator": "a"}', b"\xff", b"1"],
)
def test_a_header_that_says_nothing_is_refused(metadata: bytes | None) -> None:
    refuse(with_header(metadata))
    assert header_of(with_header(metadata)) is None


def test_other_columns_are_refused() -> None:
    fields = json.dumps({**vars(HEADER)})
    schema = pa.schema([("key", pa.string())], metadata={"tidemill": fields})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        writer.write_batch(pa.record_batch([["a"]], schema=schema))
    body = buffer.getvalue()
    refuse(body + b"crc:" + zlib.crc32(body).to_bytes(4, "big"))


def test_a_file_of_a_newer_version_is_refused_by_name_and_with_a_remedy() -> None:
    newer = json.dumps({**vars(HEADER), "format": 2, "something": "new"}).encode()
    for attempt in (read, lambda data: read_header(InMemory(data), FILE)):
        with pytest.raises(
            DamagedCheckpointError, match=rf"{FILE}.*newer version \(format 2\).*Install"
        ):
            attempt(with_header(newer))


def test_a_file_that_was_moved_is_not_taken_for_another(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    files = PartitionFiles(storage, "totals", 0)
    with files.writing("1.aa", None, "changes") as writer:
        writer.add(b"k", b"v", 1)
        writer.finish()
    data = storage.read("state/totals/0/1.aa.changes")
    for path in ("totals/0/1.bb.changes", "totals/0/1.aa.snapshot", "totals/1/1.aa.changes"):
        operator, partition, name = path.split("/")
        storage.write(f"state/{path}", data)
        moved = PartitionFiles(storage, operator, int(partition))
        with (
            pytest.raises(DamagedCheckpointError, match=rf"{path}.*1\.aa\.changes of partition 0"),
            moved.opened(name),
        ):
            pass


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    files = PartitionFiles(LocalStorage(str(tmp_path)), "totals", 0)

    def some() -> Iterator[bytes]:
        yield from (b"k%d" % n for n in range(50_000))
        raise RuntimeError

    def write() -> None:
        with files.writing("1.aa", None, "changes") as writer:
            for key in some():
                writer.add(key, b"v", 1)

    with pytest.raises(RuntimeError):
        write()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_large_file_goes_through_little_memory(tmp_path: Path) -> None:
    """Neither writing nor reading 300,000 records of 90 MB ever has a tenth of them in memory."""
    storage = LocalStorage(str(tmp_path))
    noise = random.Random(1).randbytes(10_000)
    objects, arrow_bytes = sys.getallocatedblocks(), pa.total_allocated_bytes()

    def check_memory() -> None:
        assert sys.getallocatedblocks() - objects < 30_000 * 4
        assert pa.total_allocated_bytes() - arrow_bytes < 9e6

    def value(n: int) -> bytes:
        return noise[n % 9_000 : n % 9_000 + 300]

    with storage.open_write(FILE) as file:
        writer = StateFileWriter(file, HEADER)
        for n in range(300_000):
            writer.add(b"%d" % n, value(n), n)
            if n % 5_000 == 0:
                check_memory()
        size = writer.finish()
    assert writer.records == 300_000
    assert (tmp_path / FILE).stat().st_size == size

    seen = 0
    with open_state_file(storage, FILE) as (_, batches):
        for records in batches:
            assert records[0] == Record(b"%d" % seen, value(seen), seen)
            seen += len(records)
            check_memory()
    assert seen == 300_000


def test_large_values_are_written_a_few_at_a_time() -> None:
    data = to_bytes(HEADER, (Record(b"%d" % n, bytes(1_500_000), n) for n in range(10)))
    with open_state_file(InMemory(data), FILE) as (_, batches):
        assert [len(records) for records in batches] == [3, 3, 3, 1]
