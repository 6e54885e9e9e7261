"""Arrays of binary values and the bytes they are made of, for work that is done on all rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import UnsupportedError

MOST_BYTES = (1 << 31) - 1
Bytes = np.ndarray[Any, np.dtype[Any]]


def data_and_offsets(array: pa.Array) -> tuple[Bytes, Bytes]:
    """The bytes under an array, and where in them each value begins; the last offset is the end."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    return np.frombuffer(b"" if data is None else data, np.uint8), ends


def lengths(array: pa.Array) -> Bytes:
    """The bytes that each value has."""
    return np.diff(data_and_offsets(array)[1])


def sliced(data: Bytes, offsets: Bytes) -> pa.BinaryArray:
    """Bytes as values between offsets. Nothing is copied."""
    if offsets[-1] > MOST_BYTES:
        raise UnsupportedError(
            f"{len(offsets) - 1} rows of state have {offsets[-1]} bytes, and at most {MOST_BYTES} can be "
            "handled at once: set spark.sql.execution.arrow.maxRecordsPerBatch to a lower number"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def cut(data: Bytes, lengths: Bytes) -> pa.BinaryArray:
    """Bytes as values of such lengths, one after another."""
    return sliced(data, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def as_array(values: Any, type: pa.DataType) -> pa.Array:
    """A list, an array of numpy or one of Arrow as the latter, in one piece."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, type)
