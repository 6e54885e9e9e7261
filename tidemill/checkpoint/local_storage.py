"""A checkpoint in a local or shared directory."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

from tidemill.checkpoint.checksums import forget_sidecar, read_checked, sidecar, write_sidecar
from tidemill.checkpoint.permissions import Permissions, permissions_in
from tidemill.checkpoint.storage import Appender, Storage, is_unfinished
from tidemill.common.durable_folders import make_folder, missing_folders, remove_empty, sync
from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError

MAX_PARTS = 1024  # of one writev call
LOCK_RETRY_S = 0.05


class LocalStorage(Storage):
    """Files of the operating system.

    A file is written in four steps, and is durable after the last:

    1. write it under a hidden name in the same folder;
    2. fsync it;
    3. rename it: from now on readers see it, whole;
    4. fsync the folder: from now on it survives the machine.

    Its checksum comes between 3 and 4: :mod:`tidemill.checkpoint.checksums` has the steps of both.
    """

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(directory)

    @property
    def uri(self) -> str:
        return self._root

    def _path(self, path: str) -> str:
        return os.path.join(self._root, *path.split("/")) if path else self._root

    def _make_folder(self, folder: str) -> Permissions:
        """Create a folder of the directory durably, and return the permissions of the files in it."""
        permissions = permissions_in(self._root)
        if not os.path.isdir(folder):
            make_folder(os.path.dirname(self._root))  # what is above is not ours to close
            make_folder(folder, permissions.folder, is_forced=permissions.is_shared)
        return permissions

    def make_folder(self, folder: str) -> None:
        self._make_folder(self._path(folder))

    def open_read(self, path: str) -> BinaryIO:
        return open(self._path(path), "rb")

    def read(self, path: str) -> bytes:
        return read_checked(self._path(path))

    @contextmanager
    def open_write(self, path: str, sums: bytes | None = None) -> Iterator[BinaryIO]:
        target = self._path(path)
        folder, name = os.path.split(target)
        permissions = self._make_folder(folder)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with _StagedFile(temporary, permissions) as file:
                yield cast(BinaryIO, file)
                fault_point("storage.write")
                file.settle()
            forget_sidecar(target)
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if sums is not None:
            write_sidecar(target, sums)
        sync(folder)

    @property
    def can_append(self) -> bool:
        return True

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        target = self._path(path)
        folder = os.path.dirname(target)
        permissions = self._make_folder(folder)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        handle = permissions.opener(target, flags)
        try:
            _write_all(handle, [head])
            os.fsync(handle)
            sync(folder)
        except BaseException:
            os.close(handle)
            with suppress(OSError):
                os.unlink(target)
            raise
        return _LocalAppender(handle, target, len(head))

    def settle(self, file: BinaryIO) -> None:
        cast(_StagedFile, file).settle()

    def list(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._path(folder)) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        target = self._path(path)
        with suppress(FileNotFoundError):
            os.unlink(target)
        with suppress(OSError):
            os.unlink(sidecar(target))

    def delete_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(folder))

    def sweep(self, folders: Sequence[str]) -> None:
        _sweep(self._root, os.listdir(self._root))
        for folder in folders:
            for path, _, names in os.walk(self._path(folder)):
                _sweep(path, names)

    def modified_ms(self, path: str) -> int | None:
        try:
            return os.stat(self._path(path)).st_mtime_ns // 1_000_000
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        # The kernel releases the lock when its holder dies, for whatever reason.
        folder, base = os.path.split(self._path(name))
        permissions = self._make_folder(folder)
        file = os.path.join(folder, f".{base}")
        while True:
            is_new = not os.path.exists(file)
            handle = os.open(file, os.O_RDWR | os.O_CREAT, permissions.file)
            try:
                if is_new:
                    permissions.apply(handle)
                _lock(handle, patience_s)
                if os.fstat(handle).st_nlink == 0:
                    permissions = self._make_folder(folder)
                    continue  # a start that was refused has removed the file: others lock another one
                yield
                return
            finally:
                os.close(handle)

    def missing_folders(self) -> Sequence[str]:
        return missing_folders(self._root)

    def remove_root(self, lock: str, folders: Sequence[str]) -> None:
        with suppress(OSError):
            os.unlink(os.path.join(self._root, f".{lock}"))
        remove_empty(folders)


class _StagedFile(io.BufferedWriter):
    """A file under its hidden name, which is synced once: a second sync would flush the whole disk again."""

    def __init__(self, path: str, permissions: Permissions) -> None:
        super().__init__(io.FileIO(path, "xb", opener=permissions.opener))
        self._synced_bytes = -1

    def settle(self) -> None:
        """Make what has been written so far durable."""
        self.flush()
        if self.tell() != self._synced_bytes:
            os.fsync(self.fileno())
            self._synced_bytes = self.tell()


def _sweep(folder: str, names: Sequence[str]) -> None:
    """Delete the unfinished files in a folder, and the checksums of files that are gone."""
    there = set(names)
    for name in names:
        is_sidecar = name.startswith(".") and name.endswith(".crc")
        if is_unfinished(name) or (is_sidecar and name[1 : -len(".crc")] not in there):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _lock(handle: int, patience_s: float | None) -> None:
    if patience_s is None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    # There is no flock() with a time limit.
    pause = threading.Event()
    for _ in range(int(patience_s / LOCK_RETRY_S) + 1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pause.wait(LOCK_RETRY_S)
    raise TimeoutError(f"another process has held the lock for more than {patience_s} s")


class _LocalAppender(Appender):
    """Appends to a file that has no other writer."""

    def __init__(self, handle: int, name: str, size: int) -> None:
        self._handle: int | None = handle
        self._name = name
        self._size = size

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        handle, offset = self._handle, self._size
        if handle is None:
            raise IllegalStateError(
                f"cannot append to {self._name}: it is closed, or an earlier append failed"
            )
        try:
            fault_point("log.append")
            written = _write_all(handle, parts)
            _sync_data(handle)
            if os.fstat(handle).st_nlink == 0:
                # A file without a name is gone when it is closed.
                raise FileNotFoundError(errno.ENOENT, "deleted while being written", self._name)
            fault_point("log.appended")
        except BaseException:
            # If this fails too, the file has a torn tail, which the log's readers recognise.
            with suppress(OSError):
                os.ftruncate(handle, offset)
            self.close()
            raise
        self._size += written
        return offset

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        # As for Python's own files: an appender that nobody closed must not leak its handle.
        with suppress(OSError):
            self.close()


def _write_all(handle: int, parts: Sequence[bytes | memoryview]) -> int:
    """Write all parts, in as many calls as it takes, and return the number of bytes."""
    left = deque(memoryview(part).cast("B") for part in parts if memoryview(part).nbytes)
    total = sum(len(view) for view in left)
    while left:
        written = os.writev(handle, [left[at] for at in range(min(len(left), MAX_PARTS))])
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if left:
            left[0] = left[0][written:]
    return total


def _sync_data(handle: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(handle)
    else:  # not Linux
        os.fsync(handle)
