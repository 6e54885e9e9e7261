"""Blocks: a reader gets exactly the bytes that were written, or an error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import flight

from tests.common.rpc.rpc_world import World, raw_options, world
from tests.waiting import DEADLINE_S
from tidemill.common.rpc.wire import BLOCK_SCHEMA, CHUNK_BYTES, batches_of, bytes_of, joined
from tidemill.errors import RpcError, RpcRefusedError, RpcRemoteError, RpcTimeoutError

LIMIT = 21 << 20


@pytest.fixture
def it() -> Iterator[World]:
    with world(max_block_bytes=LIMIT) as it:
        yield it


@pytest.mark.parametrize("size", [0, 1, 7, CHUNK_BYTES, CHUNK_BYTES + 1, 20_000_000])
def test_there_and_back(it: World, size: int) -> None:
    block = random.Random(size).randbytes(size)
    it.client.write_block("b-1.x_Y", block)
    assert it.blocks.blocks["b-1.x_Y"] == block
    assert it.client.read_block("b-1.x_Y").equals(pa.py_buffer(block))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"", b"a", b""],
        [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], pa.py_buffer(b"xgh").slice(1)],
    ],
)
def test_a_block_in_parts(it: World, parts: list[Any]) -> None:
    whole = b"".join(bytes(memoryview(part)) for part in parts)
    it.client.write_block("parts", iter(parts))
    assert it.blocks.blocks["parts"] == whole
    it.blocks.blocks["parts"] = iter(parts)
    assert it.client.read_block("parts").to_pybytes() == whole


@settings(max_examples=50)
@given(st.lists(st.binary()), st.integers(1, 10))
def test_batches_have_the_bytes_of_their_parts(parts: list[bytes], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemill.common.rpc.wire.CHUNK_BYTES", chunk)
        pieces = [bytes_of(batch) for batch in batches_of(parts)]
    assert all(0 < piece.size <= chunk for piece in pieces)
    assert joined(pieces).to_pybytes() == b"".join(parts)


def test_a_batch_that_claims_more_bytes_than_it_has() -> None:
    """Arrow has the length of a batch in several places, and does not compare them on arrival."""
    (batch,) = batches_of(bytes(7777))
    honest = batch.serialize().to_pybytes()
    length, longer = (7777).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little")
    places = [at for at in range(len(honest)) if honest.startswith(length, at)]
    assert len(places) == 3  # the batch, its column, its buffer
    for true in places:
        lying = bytearray(honest.replace(length, longer))
        lying[true : true + 8] = length
        try:
            arrived = pa.ipc.read_record_batch(bytes(lying), BLOCK_SCHEMA)
        except (pa.ArrowException, OSError):
            continue
        assert bytes_of(arrived).size <= 7777


def test_a_block_is_read_from_a_mapped_file_without_a_copy(it: World, tmp_path: Path) -> None:
    file = tmp_path / "block"
    file.write_bytes(random.Random(0).randbytes(CHUNK_BYTES + 100))
    mapped = pa.memory_map(str(file)).read_buffer()
    addresses = [bytes_of(batch).address for batch in batches_of(mapped)]
    assert addresses == [mapped.address, mapped.address + CHUNK_BYTES]
    it.blocks.blocks["mapped"] = mapped
    assert it.client.read_block("mapped").equals(mapped)


def test_a_block_that_is_not_there(it: World) -> None:
    with pytest.raises(RpcRemoteError, match=r"read of block lost at .*no block lost") as caught:
        it.client.read_block("lost")
    assert caught.value.remote_type == "FileNotFoundError"


def test_a_block_that_breaks_off_while_it_is_read(it: World) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"the first part"
        raise OSError("disk on fire")

    it.blocks.blocks["broken"] = breaking()
    with pytest.raises(RpcRemoteError, match="OSError: disk on fire"):
        it.client.read_block("broken")


def test_a_block_that_is_too_large_is_stopped_on_its_way(it: World) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 40 * LIMIT:
            sent += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(RpcRefusedError) as caught:
        it.client.write_block("large", endless())
    assert caught.value.reason == f"a block of more than {LIMIT} bytes"
    assert sent < 20 * LIMIT
    assert it.blocks.blocks == {}
    it.client.write_block("largest", bytes(LIMIT))
    assert len(it.blocks.blocks["largest"]) == LIMIT


def test_a_sender_that_fails_in_the_middle(it: World) -> None:
    def failing() -> Iterator[bytes]:
        yield b"the first part"
        raise LookupError("my own error")

    with pytest.raises(LookupError, match="my own error"):
        it.client.write_block("half", failing())
    assert it.blocks.failed.wait(DEADLINE_S)
    assert isinstance(it.blocks.failures[0], ConnectionAbortedError)
    assert it.blocks.blocks == {}


def test_a_sender_that_runs_into_its_deadline_in_the_middle(it: World) -> None:
    """To Flight's server this looks like the end of the stream."""

    def stopping() -> Iterator[bytes]:
        yield b"the first part"
        it.blocks.failed.wait(DEADLINE_S)
        yield b"the second part"

    with pytest.raises(RpcTimeoutError, match="write of block half"):
        it.client.write_block("half", stopping(), timeout_s=0.3)
    assert it.blocks.failed.is_set()
    assert "went away after" in str(it.blocks.failures[0])
    assert it.blocks.blocks == {}


def raw_put(it: World, batch: pa.RecordBatch, mark: bytes | None) -> None:
    options = raw_options(it.header("write", "raw", b""))
    writer, _ = it.raw.do_put(flight.FlightDescriptor.for_command("raw"), batch.schema, options)
    try:
        writer.write_batch(batch)
        if mark is not None:
            writer.write_metadata(mark)
    finally:
        writer.close()


BYTES = pa.record_batch([pa.array([1, 2, 3], pa.uint8())], schema=BLOCK_SCHEMA)
TEXTS = pa.record_batch({"text": ["a", "b"]})


@pytest.mark.parametrize(
    ("batch", "mark"),
    [(BYTES, None), (BYTES, b"\0" * 7 + b"\4"), (BYTES, b"x"), (TEXTS, b"\0" * 7 + b"\2")],
    ids=["no end", "another length", "no length", "no bytes"],
)
def test_a_block_that_is_not_whole_is_not_taken(
    it: World, batch: pa.RecordBatch, mark: bytes | None
) -> None:
    with pytest.raises((flight.FlightServerError, flight.FlightUnauthorizedError)):
        raw_put(it, batch, mark)
    assert it.blocks.blocks == {}
    it.client.write_block("raw", b"good")
    assert it.blocks.blocks == {"raw": b"good"}


class Careless:
    """Reads only the first chunk, and returns or fails."""

    def read(self, name: str) -> bytes:
        return b""

    def write(self, name: str, chunks: Iterator[pa.Buffer]) -> None:
        if name == "full":
            raise OSError(28, "No space left on device")
        next(chunks)


def test_a_provider_that_does_not_take_a_block() -> None:
    with world(blocks=Careless()) as it:
        with pytest.raises(RpcRemoteError, match="No space left on device") as caught:
            it.client.write_block("full", bytes(30 << 20))
        assert caught.value.remote_type == "OSError"
        with pytest.raises(RpcRemoteError, match="was not read to its end"):
            it.client.write_block("some", [b"one", b"two"])


def test_a_server_without_blocks() -> None:
    with world(blocks=None) as it:
        for call in (lambda: it.client.read_block("b"), lambda: it.client.write_block("b", b"x")):
            with pytest.raises(RpcError, match="refused: the server has no blocks"):
                call()
