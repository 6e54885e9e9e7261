"""Reading a file that must stay as it is until it has been read."""

from __future__ import annotations

import errno
import io
import os
from typing import BinaryIO


class FileChangedError(OSError):
    """A file was written to while a task read it: what the task has may be of two versions.

    It says nothing about either version: whatever files the user lets a stream leave out, the task fails.
    """

    def __init__(self, path: str) -> None:
        super().__init__(errno.ESTALE, "the file was changed while its batch read it", path)


class UnchangedFile(io.RawIOBase):
    """Reads an open file, and looks at its size and its modification time again after each read.

    So no byte that was written after the file was opened is ever given away, nor a shorter file taken for a
    whole one. A file that is replaced by a rename stays the one that was opened.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        """Read ``file``, which must not be buffered."""
        self._file = file
        self._path = path
        self.status = os.fstat(file.fileno())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: memoryview, /) -> int | None:  # type: ignore[override]
        count: int | None = self._file.readinto(buffer)  # type: ignore[attr-defined]
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise FileChangedError(self._path)
        return count
