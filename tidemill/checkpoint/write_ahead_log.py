"""A log of records that are durable as soon as they are written: :class:`LogWriter` and its readers.

A folder holds the segments of a log, from one writer or several::

    received/0/0000000012-1772366400000-1772366460000-9f3c01d27be85a64.log

The name consists of the number of the segment, greater than those of all segments that existed when its
writer began; the time of its first record; the time at which its writer rolls over, after which it gets no
more records; and a random name of the writer. So segments sort in the order in which they were written, even
if the clock was set back between two writers; two writers never share a file; and a cleaner needs only the
names. :mod:`tidemill.checkpoint.log_records` draws the contents.

What is durable when :meth:`LogWriter.append` returns: the record, whole, and all records before it in its
segment. How that is done depends on the storage:

- **A local disk.** Records are written one by one, each to the end of the open segment, and synced. After a
  crash a segment ends with at most one record that is cut off.
- **HDFS.** A group of records (:mod:`tidemill.checkpoint.group_commit`) is one append: 1. open the segment
  to append to it; 2. write the group; 3. close the file, which returns when the data nodes have all of it:
  now the group is durable; 4. compare its length. A flush would not do instead of 3: ``pyarrow`` has no
  ``hflush``. A crash before 3 leaves a beginning of the group, of which nobody was told: whole records,
  which do no harm, and perhaps one that is cut off.
- **Object stores.** Nothing can grow. A group is one object, and a segment of its own. It appears, durable,
  when its upload is complete; a crash before that leaves nothing.

A storage that fails to append is not asked again by this writer: it writes one file for each group. Segments
with one record each, which earlier versions wrote there, are segments like any other.

With ``timeout_s``, a write that hangs is abandoned. The log goes on in a new segment, under another name of
the writer. A write that ends after all changes nothing that is used: its records are there twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tidemill.checkpoint.batch_log import NewerVersionError
from tidemill.checkpoint.group_commit import GroupCommit
from tidemill.checkpoint.log_records import (
    HEAD_SIZE,
    RECORD_HEADER_SIZE,
    LogSlice,
    Payload,
    RecordHeader,
    parse_records,
    salt_of,
)
from tidemill.checkpoint.log_segments import SegmentWriter, segments
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.errors import DamagedCheckpointError

logger = logging.getLogger(__name__)

ROLL_MS = 60_000
ROLL_BYTES = 256 << 20


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
        timeout_s: float | None = None,
    ) -> None:
        if roll_ms <= 0 or roll_bytes <= 0:
            raise ValueError(
                f"roll_ms and roll_bytes must be positive, not {roll_ms}, {roll_bytes}"
            )
        self._storage = storage
        self._folder = folder
        self._roll_bytes = roll_bytes
        self._segments = SegmentWriter(storage, folder, clock, roll_ms, roll_bytes)
        name = storage.full_name(folder) if folder else storage.uri
        self._commits: GroupCommit[Payload, LogSlice] = GroupCommit(
            f"the log {name}", self._write, self._fits, timeout_s, self._abandon
        )

    @property
    def current_segment(self) -> str | None:
        """The path of the segment that gets the next record, unless the log rolls over first."""
        return self._segments.current

    def append(self, payload: bytes | memoryview | Sequence[bytes | memoryview]) -> LogSlice:
        """Write one record, whose payload may come in several pieces, and return its handle."""
        return self._commits.add(
            Payload([payload] if isinstance(payload, bytes | bytearray | memoryview) else payload)
        )

    def clean(self, before_ms: int, keep: Collection[str] = ()) -> list[str]:
        """:func:`clean` this log, but keep the segment being written, whatever ``before_ms`` is."""
        with self._segments.lock:
            current = self._segments.current
            kept = {*keep, *([] if current is None else [current])}
            return clean(self._storage, self._folder, before_ms, kept)

    def close(self) -> None:
        """Close the segment being written. Idempotent."""
        self._commits.close()
        self._segments.close()

    def _write(self, records: Sequence[Payload]) -> list[LogSlice]:
        return self._segments.write(records)

    def _fits(self, group: Sequence[Payload], record: Payload) -> bool:
        """Say whether a group may have one more record: never on a local disk, which may keep a later page
        of a write and lose an earlier one.
        """
        size = sum(RECORD_HEADER_SIZE + each.length for each in (*group, record))
        return self._storage.takes_groups and HEAD_SIZE + size <= self._roll_bytes

    def _abandon(self) -> None:
        self._segments = self._segments.successor()


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
