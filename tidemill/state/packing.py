"""The layout of a record in the local store.

``short key -> time, value``, where the time is 8 bytes that sort by time, before 1970 too.
A key that LMDB would not accept is stored in front of the value, under its hash::

    sa              80 00 01 9c a5 b7 f8 00 <value>
    ff <sha-256>    80 00 01 9c a5 b7 f8 00 00 00 02 58 <the key, 600 bytes> <value>
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.state.binary_arrays import data_and_offsets, sliced
from tidemill.state.state_file import Record, new_record

IntArray = np.ndarray[Any, np.dtype[np.int64]]
LONGEST_KEY = 500  # LMDB has 511, of which the index takes 8
TIME_BYTES = 8
_TIME = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_TIME_ZERO = 1 << 63
_HASHED = 0xFF


def short_key(key: bytes) -> bytes:
    # LMDB does not accept empty keys either.
    if 0 < len(key) <= LONGEST_KEY and key[0] != _HASHED:
        return key
    return b"\xff" + hashlib.sha256(key).digest()


def are_short(keys: pa.BinaryArray) -> bool:
    """Return True if all keys are their own short keys, which is nearly always so."""
    if len(keys) == 0:
        return True
    data, offsets = data_and_offsets(keys)
    sizes = np.diff(offsets)
    if sizes.min() == 0 or sizes.max() > LONGEST_KEY:
        return False
    return bool((data[offsets[:-1]] != _HASHED).all())


def pack_time(time_ms: int) -> bytes:
    return _TIME.pack(time_ms + _TIME_ZERO)


def pack_many(
    keys: pa.BinaryArray, values: pa.BinaryArray, times_ms: pa.Int64Array
) -> tuple[list[bytes], list[bytes | None]]:
    """Return the short keys and their packed records; None where the value is null."""
    times = (np.asarray(times_ms).view(np.uint64) ^ np.uint64(_TIME_ZERO)).astype(">u8")
    heads = [sliced(times.view(np.uint8), np.arange(len(keys) + 1) * TIME_BYTES)]
    if are_short(keys):
        return keys.to_pylist(), pc.binary_join_element_wise(*heads, values, b"").to_pylist()
    plain = keys.to_pylist()
    shorts = [short_key(key) for key in plain]
    long = [
        b"" if short is key else _LENGTH.pack(len(key)) + key
        for short, key in zip(shorts, plain, strict=True)
    ]
    heads.append(pa.array(long, pa.binary()))
    return shorts, pc.binary_join_element_wise(*heads, values, b"").to_pylist()


def unpack(short: bytes, packed: bytes) -> Record:
    time_ms = _TIME.unpack_from(packed)[0] - _TIME_ZERO
    if short[0] != _HASHED:
        return new_record((short, packed[TIME_BYTES:], time_ms))
    (length,) = _LENGTH.unpack_from(packed, TIME_BYTES)
    return new_record((packed[12 : 12 + length], packed[12 + length :], time_ms))


def unpack_value(short: bytes, packed: bytes) -> bytes:
    if short[0] != _HASHED:
        return packed[TIME_BYTES:]
    return packed[12 + _LENGTH.unpack_from(packed, TIME_BYTES)[0] :]


def unpack_many(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[list[bytes], list[bytes], IntArray]:
    """Return the keys, values and times of packed records."""
    keys = [short for short, _ in pairs]
    heads = b"".join([packed[:TIME_BYTES] for _, packed in pairs])
    times = (np.frombuffer(heads, ">u8").astype(np.uint64) ^ np.uint64(_TIME_ZERO)).view(np.int64)
    if max(keys, default=b"\0")[0] != _HASHED:
        return keys, [packed[TIME_BYTES:] for _, packed in pairs], times
    records = [unpack(short, packed) for short, packed in pairs]
    return [record.key for record in records], [record.value or b"" for record in records], times
