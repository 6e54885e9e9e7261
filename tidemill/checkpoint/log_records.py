"""The bytes of a write-ahead log.

A log is a folder of segments. A segment is a head and then records, one after another; numbers are
big-endian::

    byte  size    what
    0     8       "TIDELOG" and a line feed
    8     4       the version of the format, 1
    12    8       the salt: random, another one in each segment
    20    4       CRC-32 of bytes 0 to 19
    24            the first record:
     +0   4       F5 and "rec"
     +4   4       the length of the payload
     +8   4       CRC-32 of the payload
     +12  4       CRC-32 of the salt, of the record's offset in the file (8 bytes), and of +0 to +11
     +16  length  the payload

A segment with one record, ``hi``::

    54 49 44 45 4c 4f 47 0a 00 00 00 01
    00 11 22 33 44 55 66 77 ef 74 6c 14
    f5 72 65 63 00 00 00 02 d8 93 2a ac
    46 be d6 8a 68 69

The head has this form in every version. It is durable before the first record is written, so no crash
leaves a damaged head with records behind it.

A crash leaves whole records and then, at most, a part of one more, or zeros where the file had already
grown: a torn tail. It was never acknowledged, and is skipped. Anything else is damage, and is refused. To
tell one from the other, WHEN the record at an offset cannot be read:

1. IF any whole record begins after that offset, the bytes in between were once complete: damage. The search
   begins at the very next byte, because the damaged length cannot be trusted.
2. ELSE IF the file ends within the header, or, by a right header, within the payload: a torn tail.
3. ELSE IF a sector of the record (512 bytes of the file, or what the record has of them) is all zeros: a torn
   tail. Disks write whole sectors, in any order.
4. ELSE all bytes were written, and some have changed since: damage.

The checksum of a record's header covers the salt and the offset because payloads may hold anything, even
pieces of this log: they never look like records of this segment at that place.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.batch_log import NewerVersionError

SEGMENT_MAGIC = b"TIDELOG\n"
RECORD_MAGIC = b"\xf5rec"  # no UTF-8 text contains F5
VERSION = 1
SALT_SIZE = 8
LONGEST_PAYLOAD = 0xFFFF_FFFF
SECTOR_SIZE = 512

_HEAD = struct.Struct(f">8sI{SALT_SIZE}s")
_RECORD = struct.Struct(">4sII")
_CRC = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")

HEAD_SIZE = _HEAD.size + _CRC.size
RECORD_HEADER_SIZE = _RECORD.size + _CRC.size


@dataclass(frozen=True)
class LogSlice:
    """The handle of one record, with which any process that has the storage can read the payload.

    ``path`` is relative to the storage, the record begins at ``offset`` in the file, and its payload has
    ``length`` bytes.

    >>> LogSlice.from_json(["received/0/1.log", 24, 7])
    LogSlice(path='received/0/1.log', offset=24, length=7)
    """

    path: str
    offset: int
    length: int

    def to_json(self) -> list[Any]:
        return [self.path, self.offset, self.length]

    @classmethod
    def from_json(cls, value: Any) -> LogSlice:
        match value:
            case [str(path), int(offset), int(length)]:
                return cls(path, offset, length)
        raise ValueError(f"not a slice of a log (path, offset, length): {value!r}")


def segment_head(salt: bytes) -> bytes:
    fields = _HEAD.pack(SEGMENT_MAGIC, VERSION, salt)
    return fields + _CRC.pack(zlib.crc32(fields))


def salt_of(head: bytes) -> bytes:
    """Return the salt in the head of a segment; ``ValueError`` says what is wrong with the head."""
    if len(head) < HEAD_SIZE:
        raise ValueError("the head of the segment is cut off")
    fields = head[: _HEAD.size]
    magic, version, salt = _HEAD.unpack(fields)
    if magic != SEGMENT_MAGIC:
        raise ValueError("it does not begin like a segment of a log")
    if _CRC.pack(zlib.crc32(fields)) != head[_HEAD.size : HEAD_SIZE]:
        raise ValueError("the checksum of the segment's head is wrong")
    if version != VERSION:
        raise NewerVersionError(
            f"format {version}, and this version of Tidemill reads format {VERSION}"
        )
    return bytes(salt)


class Payload:
    """The payload of a new record, in one piece or several, with its length and checksum."""

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self.parts = list(parts)
        self.length = sum(memoryview(part).nbytes for part in self.parts)
        if self.length > LONGEST_PAYLOAD:
            raise ValueError(
                f"a record of a log holds up to {LONGEST_PAYLOAD:,} bytes, not {self.length:,}"
            )
        self.crc = 0
        for part in self.parts:
            self.crc = zlib.crc32(part, self.crc)

    def header(self, salt: bytes, offset: int) -> bytes:
        """Return the header of the record if it begins at ``offset``."""
        fields = _RECORD.pack(RECORD_MAGIC, self.length, self.crc)
        return fields + _CRC.pack(_header_crc(salt, offset, fields))


def _header_crc(salt: bytes, offset: int, fields: bytes) -> int:
    return zlib.crc32(fields, zlib.crc32(salt + _OFFSET.pack(offset)))


@dataclass(frozen=True)
class RecordHeader:
    length: int
    crc: int

    @classmethod
    def parse(cls, header: bytes, salt: bytes, offset: int, file_size: int) -> RecordHeader:
        """Parse and check a header; ``ValueError`` says what is wrong. The payload lies within the file."""
        if len(header) < RECORD_HEADER_SIZE:
            raise ValueError("the header of the record is cut off")
        fields = header[: _RECORD.size]
        magic, length, crc = _RECORD.unpack(fields)
        if magic != RECORD_MAGIC:
            raise ValueError("no record begins here")
        if _CRC.pack(_header_crc(salt, offset, fields)) != header[_RECORD.size :]:
            raise ValueError("the checksum of the record's header is wrong")
        if offset + RECORD_HEADER_SIZE + length > file_size:
            raise ValueError(f"the record has {length:,} bytes, but the file ends before that")
        return cls(length, crc)

    def check(self, payload: bytes | memoryview) -> None:
        if len(payload) != self.length:
            raise ValueError(f"only {len(payload):,} of {self.length:,} bytes could be read")
        if zlib.crc32(payload) != self.crc:
            raise ValueError("the checksum of the payload is wrong")


@dataclass(frozen=True)
class Unreadable:
    """The end of the readable part of a segment, the reason, and the next whole record after it, if any.

    ``is_torn`` is True if what follows looks like the append that a crash has interrupted.
    """

    offset: int
    reason: str
    next_record: int | None
    is_torn: bool


def parse_records(data: bytes, salt: bytes) -> tuple[list[tuple[int, bytes]], Unreadable | None]:
    """Return all records of a segment with their offsets, up to the first unreadable one."""
    records: list[tuple[int, bytes]] = []
    view = memoryview(data)
    offset = HEAD_SIZE
    while offset < len(data):
        try:
            payload = _payload_at(view, salt, offset)
        except ValueError as error:
            following = _find_record(data, salt, offset + 1)  # 1
            is_torn = following is None and _was_interrupted(data, salt, offset)
            return records, Unreadable(offset, str(error), following, is_torn)
        records.append((offset, bytes(payload)))
        offset += RECORD_HEADER_SIZE + len(payload)
    return records, None


def _payload_at(view: memoryview, salt: bytes, offset: int) -> memoryview:
    begin = offset + RECORD_HEADER_SIZE
    header = RecordHeader.parse(bytes(view[offset:begin]), salt, offset, len(view))
    payload = view[begin : begin + header.length]
    header.check(payload)
    return payload


def _was_interrupted(data: bytes, salt: bytes, offset: int) -> bool:
    """Return True if the unreadable record at ``offset``, the last one, was never written completely."""
    header = data[offset : offset + RECORD_HEADER_SIZE]
    if len(header) < RECORD_HEADER_SIZE:
        return True  # 2
    try:
        length = RecordHeader.parse(header, salt, offset, sys.maxsize).length
    except ValueError:
        end = len(data)
    else:
        end = offset + RECORD_HEADER_SIZE + length
    if end > len(data):
        return True  # 2
    return any(  # 3
        not data[max(start, offset) : min(start + SECTOR_SIZE, end)].strip(b"\0")
        for start in range(offset - offset % SECTOR_SIZE, end, SECTOR_SIZE)
    )


def _find_record(data: bytes, salt: bytes, start: int) -> int | None:
    """Return the offset of the first whole record at ``start`` or later."""
    view = memoryview(data)
    at = data.find(RECORD_MAGIC, start)
    while at >= 0:
        try:
            _payload_at(view, salt, at)
            return at
        except ValueError:
            at = data.find(RECORD_MAGIC, at + 1)
    return None
