"""Arrow's binary arrays as numpy bytes and offsets, to work on all rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import UnsupportedError

MOST_BYTES = (1 << 31) - 1
Bytes = np.ndarray[Any, np.dtype[Any]]


def data_and_offsets(array: pa.Array) -> tuple[Bytes, Bytes]:
    """Return the bytes of an array and the offset of each value in them, with the end as the last offset."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    return np.frombuffer(b"" if data is None else data, np.uint8), ends


def lengths(array: pa.Array) -> Bytes:
    """Return the length of each value in bytes."""
    return np.diff(data_and_offsets(array)[1])


def sliced(data: Bytes, offsets: Bytes) -> pa.BinaryArray:
    """Return the values that lie between the offsets, without copying the bytes."""
    if offsets[-1] > MOST_BYTES:
        raise UnsupportedError(
            f"{len(offsets) - 1} rows of state have {offsets[-1]} bytes, and Arrow takes at most "
            f"{MOST_BYTES} at once: set spark.sql.execution.arrow.maxRecordsPerBatch to a lower number"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def cut(data: Bytes, lengths: Bytes) -> pa.BinaryArray:
    """Cut the bytes into values of these lengths, one after another."""
    return sliced(data, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def as_array(values: Any, type: pa.DataType) -> pa.Array:
    """Return a list, a numpy array or an Arrow array as one Arrow array in one piece."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, type)
