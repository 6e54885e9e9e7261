"""Packing records as the Kinesis Producer Library does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tidemill.receivers.connectors.kinesis.aggregated import MAGIC


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def packed(records: Iterable[tuple[str, bytes, int | None]]) -> bytes:
    """Pack ``(partition key, data, explicit hash key)``."""
    records = list(records)
    keys = list(dict.fromkeys(key for key, _, _ in records))
    hashes = list(dict.fromkeys(hash_key for _, _, hash_key in records if hash_key is not None))
    message = b"".join(field(1, key.encode()) for key in keys)
    message += b"".join(field(2, str(hash_key).encode()) for hash_key in hashes)
    for key, data, hash_key in records:
        inner = number(1, keys.index(key))
        if hash_key is not None:
            inner += number(2, hashes.index(hash_key))
        message += field(3, inner + field(3, data))
    return MAGIC + message + hashlib.md5(message).digest()
