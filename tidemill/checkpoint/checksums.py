"""Checksums of local files, in the sidecar that Hadoop keeps of every file that it writes to a local disk.

Spark's logs have it too: Tidemill checks them as it checks its own, and whichever engine replaces or deletes
a file of the other takes care of the sidecar. Files with a checksum inside have none. Beside ``offsets/7``
lies ``offsets/.7.crc``, here for a file of 700 bytes; numbers are big-endian::

    63 72 63 00    "crc" and a zero
    00 00 02 00    how many bytes a checksum covers, 512
    0a c8 81 98    CRC-32 of bytes 0 to 511
    14 75 b8 c9    CRC-32 of bytes 512 to 699

(Spark's newer ``7.crc`` with JSON is for its state files alone; its logs have no other checksum than this
one. HDFS and object stores check what they store themselves, and get no sidecars.)

Writing a file, and what a crash leaves after each step:

1. Write the file under a hidden name and fsync it: the old file counts.
2. Delete the sidecar of an older file of that name, if there is one, and fsync the folder: the old file
   counts, unchecked. No crash leaves a new file with an old sidecar, which would look like damage.
3. Rename the file: it counts, unchecked.
4. Write the sidecar under a hidden name and rename it: it counts, checked.
5. Fsync the folder: both names survive the machine.

A file without a sidecar is accepted: earlier versions wrote none. A sidecar is not fsynced unless it is
large: after a power failure it may be empty or full of zeros, and then counts as none. If it cannot be
written, such as on a full disk, the file stays without one. Deleting a file deletes the sidecar after it.
One that is left behind does Tidemill no harm, because of step 2, and goes at the next start; Spark would not
write a file of that name.

A reader reads the sidecar first, and looks a second time before it complains: if the file was replaced in
between, its sidecar had been deleted before (2).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import uuid
import zlib
from contextlib import suppress

from tidemill.common.durable_folders import sync

MAGIC = b"crc\0"
PIECE_BYTES = 512
_HEADER = struct.Struct(">4sI")
_ONE_BLOCK = 4096
"""A file of one block of the disk is there whole or not at all."""


class ChecksumError(ValueError):
    """A file and its sidecar do not fit."""


def sums_of(data: bytes, piece_bytes: int = PIECE_BYTES) -> bytes:
    """Return the contents of the sidecar of a file.

    >>> sums_of(b"v1").hex(" ", 4)
    '63726300 00000200 6962ccb5'
    """
    sums = [zlib.crc32(data[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes)]
    return _HEADER.pack(MAGIC, piece_bytes) + struct.pack(f">{len(sums)}I", *sums)


def sidecar(path: str) -> str:
    """
    >>> sidecar("/ck/offsets/7")
    '/ck/offsets/.7.crc'
    """
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.crc")


def read_checked(path: str) -> bytes:
    """Return the contents of a file. Raise ``ChecksumError`` if they do not fit its sidecar."""
    before = None
    while True:
        sums = _read_sums(sidecar(path))
        with open(path, "rb") as file:
            data = file.read()
        if _fits(data, sums):
            return data
        if before == (sums, data):
            name = os.path.basename(path)
            raise ChecksumError(
                f"its checksum is wrong: the file has been changed or damaged since it was written. If "
                f"somebody has changed it on purpose, delete .{name}.crc beside it"
            )
        before = sums, data


def _read_sums(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _fits(data: bytes, sums: bytes) -> bool:
    if not sums.strip(b"\0"):
        return True  # none, or left by a power failure
    if len(sums) < _HEADER.size:
        return False
    magic, piece_bytes = _HEADER.unpack_from(sums)
    return magic == MAGIC and piece_bytes > 0 and sums == sums_of(data, piece_bytes)


def forget_sidecar(path: str) -> None:
    """Delete the sidecar of a file that is about to be replaced; durably, if there is one."""
    try:
        os.unlink(sidecar(path))
    except OSError:
        return
    sync(os.path.dirname(path))


def write_sidecar(path: str, sums: bytes) -> None:
    """Write the sidecar of a file that is in place. The caller makes its name durable."""
    target = sidecar(path)
    staged = f"{target}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(handle, stat.S_IMODE(os.stat(path).st_mode))  # who may read one may read both
            if os.write(handle, sums) < len(
                sums
            ):  # a full disk takes a part of it without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), staged)
            if len(sums) > _ONE_BLOCK:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(staged, target)
    except OSError:
        # The file itself is whole and in place: nobody may believe that it was not written.
        with suppress(OSError):
            os.unlink(staged)
