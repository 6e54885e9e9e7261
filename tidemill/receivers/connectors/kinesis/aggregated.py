"""Records of the Kinesis Producer Library (KPL), which packs many user records into one of Kinesis.

Such a record has four bytes that mark it, a protobuf message, and the MD5 digest of the message::

    f3 89 9a c2 | AggregatedRecord | 16 bytes

    message AggregatedRecord {
      repeated string partition_key_table     = 1;
      repeated string explicit_hash_key_table = 2;
      repeated Record records                 = 3;
    }
    message Record {
      required uint64 partition_key_index     = 1;
      optional uint64 explicit_hash_key_index = 2;
      required bytes  data                    = 3;
      repeated Tag    tags                    = 4;   // nobody uses them
    }
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES = 16
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@dataclass(frozen=True)
class HashKeys:
    """The hash keys that a shard is responsible for; both ends belong to it."""

    first: int
    last: int

    def __contains__(self, key: int) -> bool:
        return self.first <= key <= self.last


def user_records(data: bytes, shard: HashKeys) -> list[bytes]:
    """Return the user records in a record of Kinesis, which is one itself unless the KPL has made it.

    A producer that does not know yet of a split may put a packed record into the wrong shard. It finds that
    out and sends it again, so such a record is left out here, as a whole, as the KCL does.
    """
    message = _message(data)
    if message is None:
        return [data]
    try:
        keys, hash_keys, packed = _aggregated(message)
        found = []
        for record in packed:
            key_index, hash_index, payload = _record(record)
            if hash_index is None:
                hash_key = int.from_bytes(_md5(keys[key_index]), "big")
            else:
                hash_key = int(hash_keys[hash_index])
            if hash_key not in shard:
                return []
            found.append(payload)
    except (IndexError, ValueError):
        return [data]  # the digest fits by chance, or somebody else's format: not ours to read
    return found


def _message(data: bytes) -> memoryview | None:
    """Return the protobuf message of a packed record; None for any other record."""
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + DIGEST_BYTES:
        return None
    message = memoryview(data)[len(MAGIC) : -DIGEST_BYTES]
    if _md5(message) != data[-DIGEST_BYTES:]:
        return None
    return message


def _md5(data: bytes | memoryview) -> bytes:
    # A machine in FIPS mode has it for such purposes only.
    return hashlib.md5(data, usedforsecurity=False).digest()


def _aggregated(message: memoryview) -> tuple[list[bytes], list[bytes], list[memoryview]]:
    tables: dict[int, list[memoryview]] = {1: [], 2: [], 3: []}
    for number, value in _fields(message):
        if number in tables:
            tables[number].append(_as_bytes(value))
    return [bytes(key) for key in tables[1]], [bytes(key) for key in tables[2]], tables[3]


def _record(message: memoryview) -> tuple[int, int | None, bytes]:
    fields = dict(_fields(message))  # a field that comes twice counts as it comes last
    if 1 not in fields or 3 not in fields:
        raise ValueError("a record without a key or without data")
    hash_index = _as_int(fields[2]) if 2 in fields else None
    return _as_int(fields[1]), hash_index, bytes(_as_bytes(fields[3]))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a protobuf message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if position + size > len(message):
            raise ValueError("a field that ends behind its message")
        yield tag >> 3, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at a position, seven bits a byte, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number of more than ten bytes")


def _as_int(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number is expected")
    return value


def _as_bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value
