"""A log of records that are durable as soon as they are written: :class:`LogWriter` and its readers.

A folder holds the segments of a log, from one writer or several::

    received/0/0000000012-1772366400000-1772366460000-9f3c01d27be85a64.log

The name consists of the number of the segment, greater than those of all segments that existed when its
writer began; the time of its first record; the time at which its writer rolls over, after which it gets no
more records; and a random name of the writer. So segments sort in the order in which they were written, even
if the clock was set back between two writers; two writers never share a file; and a cleaner needs only the
names. :mod:`tidemill.checkpoint.log_records` draws the contents.

Where files cannot grow (object stores), each record is a segment of its own.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tidemill.checkpoint.batch_log import NewerVersionError
from tidemill.checkpoint.log_records import (
    HEAD_SIZE,
    RECORD_HEADER_SIZE,
    SALT_SIZE,
    LogSlice,
    Payload,
    RecordHeader,
    parse_records,
    salt_of,
    segment_head,
)
from tidemill.checkpoint.storage import Appender, Storage
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError, IllegalStateError

logger = logging.getLogger(__name__)

ROLL_MS = 60_000
ROLL_BYTES = 256 << 20
SEGMENT_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-([0-9a-f]+)\.log", re.ASCII)


@dataclass(frozen=True, order=True)
class SegmentInfo:
    """The parts of a segment's name. Sorts in the order of writing.

    Its writer wrote every record in it at ``first_ms`` or later, and before ``until_ms``, by its own clock.
    """

    number: int
    first_ms: int
    until_ms: int
    writer: str
    path: str

    @classmethod
    def parse(cls, folder: str, name: str) -> SegmentInfo | None:
        """Parse a file name; return None if it is not that of a segment."""
        match = SEGMENT_NAME.fullmatch(name)
        if match is None:
            return None
        number, first_ms, until_ms, writer = match.groups()
        path = f"{folder}/{name}" if folder else name
        return cls(int(number), int(first_ms), int(until_ms), writer, path)


def segments(storage: Storage, folder: str) -> list[SegmentInfo]:
    """Return the segments of a log, in the order of writing. Ignore files with other names."""
    found = (SegmentInfo.parse(folder, name) for name in storage.list(folder))
    return sorted(segment for segment in found if segment is not None)


@dataclass
class _OpenSegment:
    """The segment that a writer is writing."""

    info: SegmentInfo
    appender: Appender
    salt: bytes
    size: int


class LogWriter:
    """Writes records, from any thread; each is durable when :meth:`append` returns.

    >>> import tempfile
    >>> from tidemill.checkpoint.local_storage import LocalStorage
    >>> from tidemill.common.clock import SystemClock
    >>> storage = LocalStorage(tempfile.mkdtemp())
    >>> log = LogWriter(storage, "received/0", SystemClock())
    >>> handle = log.append(b"a block")
    >>> read_record(storage, handle)
    b'a block'
    >>> log.close()
    >>> [payload for segment in replay(storage, "received/0") for _, payload in segment.records]
    [b'a block']

    It closes a segment and starts the next one ``roll_ms`` after the first record, or when one more record
    would make the segment larger than ``roll_bytes``. A record whose append failed may still be in the log;
    the next record then starts a new segment. It creates no file before the first record.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        clock: Clock,
        *,
        roll_ms: int = ROLL_MS,
        roll_bytes: int = ROLL_BYTES,
    ) -> None:
        if roll_ms <= 0 or roll_bytes <= 0:
            raise ValueError(
                f"roll_ms and roll_bytes must be positive, not {roll_ms}, {roll_bytes}"
            )
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._roll_ms = roll_ms
        self._roll_bytes = roll_bytes
        self._writer = uuid.uuid4().hex[:16]
        self._lock = threading.Lock()
        self._last_number: int | None = None
        self._open: _OpenSegment | None = None
        self._closed = False

    @property
    def current_segment(self) -> str | None:
        """The path of the segment that gets the next record, unless the log rolls over first."""
        with self._lock:
            return self._open.info.path if self._open else None

    def append(self, payload: bytes | memoryview | Sequence[bytes | memoryview]) -> LogSlice:
        """Write one record, whose payload may come in several pieces, and return its handle."""
        record = Payload(
            [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
        )
        with self._lock:
            if self._closed:
                raise IllegalStateError(f"the log {self._name()} is closed")
            if not self._storage.can_append:
                return self._write_alone(record)
            segment = self._segment_for(record)
            try:
                offset = segment.appender.append(
                    [record.header(segment.salt, segment.size), *record.parts]
                )
            except BaseException:
                self._finish()
                raise
            segment.size += RECORD_HEADER_SIZE + record.length
            return LogSlice(segment.info.path, offset, record.length)

    def clean(self, before_ms: int, keep: Collection[str] = ()) -> list[str]:
        """:func:`clean` this log, but keep the segment being written, whatever ``before_ms`` is."""
        with self._lock:
            current = [self._open.info.path] if self._open else []
            return clean(self._storage, self._folder, before_ms, {*keep, *current})

    def close(self) -> None:
        """Close the segment being written. Idempotent."""
        with self._lock:
            self._closed = True
            self._finish()

    def _segment_for(self, record: Payload) -> _OpenSegment:
        now_ms = self._clock.now_ms()
        size = RECORD_HEADER_SIZE + record.length
        if self._open and (
            now_ms >= self._open.info.until_ms
            or (self._open.size > HEAD_SIZE and self._open.size + size > self._roll_bytes)
        ):
            self._finish()
        if self._open is None:
            info = self._next_segment(now_ms, now_ms + self._roll_ms)
            salt = os.urandom(SALT_SIZE)
            appender = self._storage.open_append(info.path, segment_head(salt))
            self._open = _OpenSegment(info, appender, salt, HEAD_SIZE)
        return self._open

    def _write_alone(self, record: Payload) -> LogSlice:
        now_ms = self._clock.now_ms()
        info = self._next_segment(now_ms, now_ms + 1)
        salt = os.urandom(SALT_SIZE)
        fault_point("log.append")
        with self._storage.open_write(info.path) as file:
            file.write(segment_head(salt) + record.header(salt, HEAD_SIZE))
            for part in record.parts:
                file.write(part)
        fault_point("log.appended")
        return LogSlice(info.path, HEAD_SIZE, record.length)

    def _next_segment(self, first_ms: int, until_ms: int) -> SegmentInfo:
        if self._last_number is None:
            found = segments(self._storage, self._folder)
            self._last_number = found[-1].number if found else 0
        self._last_number += 1
        name = f"{self._last_number:010d}-{first_ms}-{until_ms}-{self._writer}.log"
        path = f"{self._folder}/{name}" if self._folder else name
        return SegmentInfo(self._last_number, first_ms, until_ms, self._writer, path)

    def _finish(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            segment.appender.close()

    def _name(self) -> str:
        return self._storage.full_name(self._folder) if self._folder else self._storage.uri


def clean(storage: Storage, folder: str, before_ms: int, keep: Collection[str] = ()) -> list[str]:
    """Delete the segments whose records are all older than ``before_ms``; return their paths.

    The name decides: the segment ended (``until_ms``) at ``before_ms`` or before. That works for writers that
    are long gone, too. A segment being written has not ended yet, as long as the caller's clock is not ahead
    of the writer's by more than the time that the caller keeps; in the same process, ask the writer for its
    ``current_segment`` or let it clean. Paths in ``keep`` stay.
    """
    old = [
        segment.path
        for segment in segments(storage, folder)
        if segment.until_ms <= before_ms and segment.path not in keep
    ]
    for path in old:
        storage.delete(path)
    return old


def read_record(storage: Storage, slice_: LogSlice) -> bytes:
    """Return the payload with this handle, without reading any other record.

    Raise ``DamagedCheckpointError`` if it is missing or differs from what was written.
    """
    try:
        with storage.open_read(slice_.path) as file:
            return _read_record(file, slice_)
    except FileNotFoundError:
        raise _damaged(storage, slice_.path, slice_.offset, "is missing") from None
    except NewerVersionError as error:
        raise _newer(storage, slice_.path, error) from None
    except ValueError as error:
        raise _damaged(
            storage, slice_.path, slice_.offset, f"has no readable record ({error})"
        ) from None


def _read_record(file: BinaryIO, slice_: LogSlice) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    # If the record is the first, one read gets it all: on an object store each read is a request.
    beginning = file.read(HEAD_SIZE + RECORD_HEADER_SIZE)
    salt = salt_of(beginning[:HEAD_SIZE])
    if slice_.offset < HEAD_SIZE:
        raise ValueError("records begin after the head of the segment")
    if slice_.offset == HEAD_SIZE:
        header_bytes = beginning[HEAD_SIZE:]
    elif slice_.offset < size:
        file.seek(slice_.offset)
        header_bytes = file.read(RECORD_HEADER_SIZE)
    else:
        raise ValueError(f"the file ends at byte {size}")
    header = RecordHeader.parse(header_bytes, salt, slice_.offset, size)
    if header.length != slice_.length:
        raise ValueError(f"it has {header.length:,} bytes, not {slice_.length:,}")
    payload = file.read(header.length)
    header.check(payload)
    return payload


@dataclass(frozen=True)
class TornTail:
    """The end of a segment after a crash or a full disk: it contains no whole record."""

    path: str
    offset: int
    skipped_bytes: int
    reason: str


@dataclass(frozen=True)
class Segment:
    """The whole records of a segment, and its torn tail, if it has one."""

    path: str
    records: list[tuple[LogSlice, bytes]]
    torn: TornTail | None = None


def read_segment(storage: Storage, path: str) -> Segment:
    """Return all whole records of a segment, in order.

    Skip a torn tail, report it, and log a warning. Raise ``DamagedCheckpointError`` for damage, also of the
    last record, and for a file that is missing or of a newer version.
    """
    try:
        data = storage.read(path)
    except FileNotFoundError:
        raise _damaged(storage, path, 0, "is missing") from None
    return _parse_segment(storage, path, data)


def replay(storage: Storage, folder: str) -> Iterator[Segment]:
    """Yield every segment of a log, in the order of writing, as :func:`read_segment` reads it."""
    for info in segments(storage, folder):
        try:
            data = storage.read(info.path)
        except FileNotFoundError:
            continue  # cleaned since it was listed
        yield _parse_segment(storage, info.path, data)


def _parse_segment(storage: Storage, path: str, data: bytes) -> Segment:
    try:
        salt = salt_of(data)
    except NewerVersionError as error:
        raise _newer(storage, path, error) from None
    except ValueError as error:
        # The head was durable before the first record, so with records behind it, it is damaged.
        if len(data) > HEAD_SIZE and data.strip(b"\0"):
            raise _damaged(storage, path, 0, f"cannot be read ({error})") from None
        return Segment(path, [], _warn_of(storage, TornTail(path, 0, len(data), str(error))))
    found, end = parse_records(data, salt)
    records = [(LogSlice(path, offset, len(payload)), payload) for offset, payload in found]
    if end is None:
        return Segment(path, records)
    if end.next_record is not None:
        raise _damaged(
            storage,
            path,
            end.offset,
            f"cannot be read ({end.reason}), although a whole record follows at byte {end.next_record}",
        )
    if not end.is_torn:
        raise _damaged(
            storage, path, end.offset, f"cannot be read ({end.reason}), although it is complete"
        )
    torn = TornTail(path, end.offset, len(data) - end.offset, end.reason)
    return Segment(path, records, _warn_of(storage, torn))


def _warn_of(storage: Storage, torn: TornTail) -> TornTail:
    logger.warning(
        "%s ends with a record that was not written completely: skipped %d bytes from byte %d on (%s)",
        storage.full_name(torn.path),
        torn.skipped_bytes,
        torn.offset,
        torn.reason,
    )
    return torn


def _damaged(storage: Storage, path: str, offset: int, finding: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        storage.full_name(path),
        f"at byte {offset}: {finding}",
        "Restore the file from a backup: its records are nowhere else. Nothing has been changed.",
        storage.uri,
        offset,
    )


def _newer(storage: Storage, path: str, error: NewerVersionError) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        storage.full_name(path),
        f"at byte 0: was written by a newer version ({error})",
        "Install the version of Tidemill that wrote it, or a later one.",
        storage.uri,
        0,
    )
