"""Encoding that both ends of the RPC share: blocks as Arrow batches, errors as bytes.

A block travels as batches of one column of ``uint8``: Flight sends the column's buffer without a copy, even
from a file that is mapped into memory. After a block, its writer sends the number of its bytes (8 bytes,
big-endian), because to a Flight server a client that has died looks like one that is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

CALL, READ, WRITE = "call", "read", "write"

BLOCK_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
PROOF_KEY = b"tidemill-proof"
# All sizes from 1 to 16 MiB are equally fast; a reader need not join a block that fits into one chunk.
CHUNK_BYTES = 8 << 20
# Errors travel in HTTP/2 trailers, in Base64; gRPC allows 8 KiB for all trailers together.
MAX_ERROR_BYTES = 4000


def batches_of(parts: BytesLike | Iterable[BytesLike]) -> Iterator[pa.RecordBatch]:
    """Yield a block, whole or in parts, as batches that point to the same memory."""
    if isinstance(parts, bytes | bytearray | memoryview | pa.Buffer):
        parts = [parts]
    for part in parts:
        buffer = part if isinstance(part, pa.Buffer) else pa.py_buffer(part)
        for start in range(0, buffer.size, CHUNK_BYTES):
            piece = buffer.slice(start, min(CHUNK_BYTES, buffer.size - start))
            column = pa.Array.from_buffers(pa.uint8(), piece.size, [None, piece])
            yield pa.RecordBatch.from_arrays([column], schema=BLOCK_SCHEMA)


def bytes_of(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the bytes of a batch, without a copy."""
    column = batch.column(0)
    buffer = column.buffers()[1]
    if buffer is None:
        return pa.py_buffer(b"")
    # The sender chose the length of the column, and slice() does not check where the buffer ends.
    start = min(column.offset, buffer.size)
    return buffer.slice(start, min(len(column), buffer.size - start))


def joined(pieces: list[pa.Buffer]) -> pa.Buffer:
    """Return one buffer with all bytes; a single piece is returned without a copy."""
    if len(pieces) == 1:
        return pieces[0]
    whole = pa.allocate_buffer(sum(piece.size for piece in pieces))
    with pa.FixedSizeBufferWriter(whole) as writer:  # copies without the GIL
        for piece in pieces:
            writer.write(piece)
    return whole


def end_mark(total_bytes: int) -> bytes:
    return total_bytes.to_bytes(8, "big")


def error_to_bytes(error: BaseException) -> bytes:
    """Encode the type and the message of an error, on separate lines. A long message is cut."""
    data = f"{type(error).__name__}\n{error}".encode(errors="replace")
    return data if len(data) <= MAX_ERROR_BYTES else data[:MAX_ERROR_BYTES] + b"..."


def error_from_bytes(data: bytes) -> tuple[str, str]:
    remote_type, _, message = data.decode(errors="ignore").partition("\n")
    return remote_type, message
