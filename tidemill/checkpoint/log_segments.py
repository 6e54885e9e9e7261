"""The segments of a write-ahead log: their names, and the one that is being written.

:mod:`tidemill.checkpoint.write_ahead_log` says what the names mean, and what is durable when.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.checkpoint.log_records import (
    HEAD_SIZE,
    RECORD_HEADER_SIZE,
    SALT_SIZE,
    LogSlice,
    Payload,
    segment_head,
)
from tidemill.checkpoint.storage import Appender, Storage
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point

logger = logging.getLogger(__name__)

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


class SegmentWriter:
    """Writes groups of records, one group at a time. ``lock`` is held while it writes.

    ``after`` is a number that all its segments exceed.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        clock: Clock,
        roll_ms: int,
        roll_bytes: int,
        grows: bool = True,
        after: int = 0,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self._roll_ms = roll_ms
        self._roll_bytes = roll_bytes
        self._grows = grows
        self._after = after
        self._writer = uuid.uuid4().hex[:16]
        self.lock = threading.Lock()
        self._last_number: int | None = None
        self._open: _OpenSegment | None = None

    def successor(self) -> SegmentWriter:
        """Return a writer that shares nothing with this one, which hangs in a write."""
        return SegmentWriter(
            self._storage,
            self._folder,
            self._clock,
            self._roll_ms,
            self._roll_bytes,
            # Where a whole file can be written instead, an append that hangs is not tried again.
            self._grows and not self._storage.takes_groups,
            # The number of the segment that hangs, if it has one by now.
            max(self._after, self._last_number or 0),
        )

    @property
    def current(self) -> str | None:
        """The path of the segment that gets the next record, unless the log rolls over first."""
        segment = self._open
        return None if segment is None else segment.info.path

    def write(self, records: Sequence[Payload]) -> list[LogSlice]:
        """Write a group, and return the handles of its records when they are durable."""
        with self.lock:
            if self._grows and self._storage.can_append:
                return self._append(records)
            return self._write_whole(records)

    def close(self) -> None:
        """Close the segment being written. Idempotent."""
        with self.lock:
            self._finish()

    def _append(self, records: Sequence[Payload]) -> list[LogSlice]:
        try:
            segment = self._segment_for(records)
            parts, slices = _laid_out(records, segment.info.path, segment.salt, segment.size)
            segment.appender.append(parts)
        except BaseException as error:
            self._finish()
            if self._storage.takes_groups:
                self._grows = False
                logger.warning(
                    "%s: nothing could be appended to a file (%s). From now on the log has a file for each "
                    "group of records.",
                    self._storage.full_name(self._folder),
                    error,
                )
            raise
        segment.size += _size(records)
        return slices

    def _segment_for(self, records: Sequence[Payload]) -> _OpenSegment:
        now_ms = self._clock.now_ms()
        if self._open and (
            now_ms >= self._open.info.until_ms
            or (self._open.size > HEAD_SIZE and self._open.size + _size(records) > self._roll_bytes)
        ):
            self._finish()
        if self._open is None:
            info = self._next_segment(now_ms, now_ms + self._roll_ms)
            salt = os.urandom(SALT_SIZE)
            appender = self._storage.open_append(info.path, segment_head(salt))
            self._open = _OpenSegment(info, appender, salt, HEAD_SIZE)
        return self._open

    def _write_whole(self, records: Sequence[Payload]) -> list[LogSlice]:
        now_ms = self._clock.now_ms()
        info = self._next_segment(now_ms, now_ms + 1)
        salt = os.urandom(SALT_SIZE)
        parts, slices = _laid_out(records, info.path, salt, HEAD_SIZE)
        fault_point("log.append")
        with self._storage.open_write(info.path) as file:
            file.write(segment_head(salt))
            for part in parts:
                file.write(part)
        fault_point("log.appended")
        return slices

    def _next_segment(self, first_ms: int, until_ms: int) -> SegmentInfo:
        if self._last_number is None:
            found = segments(self._storage, self._folder)
            self._last_number = max(self._after, found[-1].number if found else 0)
        self._last_number += 1
        name = f"{self._last_number:010d}-{first_ms}-{until_ms}-{self._writer}.log"
        path = f"{self._folder}/{name}" if self._folder else name
        return SegmentInfo(self._last_number, first_ms, until_ms, self._writer, path)

    def _finish(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            segment.appender.close()


def _size(records: Sequence[Payload]) -> int:
    return sum(RECORD_HEADER_SIZE + record.length for record in records)


def _laid_out(
    records: Sequence[Payload], path: str, salt: bytes, offset: int
) -> tuple[list[bytes | memoryview], list[LogSlice]]:
    """Return the bytes of records that begin at ``offset``, and their handles."""
    parts: list[bytes | memoryview] = []
    slices: list[LogSlice] = []
    for record in records:
        parts += [record.header(salt, offset), *record.parts]
        slices.append(LogSlice(path, offset, record.length))
        offset += RECORD_HEADER_SIZE + record.length
    return parts, slices
