"""A checkpoint in a local or shared directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from tidemill.checkpoint.storage import Storage
from tidemill.common.fault_points import fault_point


class LocalStorage(Storage):
    """Files of the operating system.

    A file is written in four steps, and is durable after the last:

    1. write it under a hidden name in the same folder;
    2. fsync it;
    3. rename it: from now on readers see it, whole;
    4. fsync the folder: from now on it survives the machine.
    """

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(directory)

    @property
    def uri(self) -> str:
        return self._root

    def _path(self, path: str) -> str:
        return os.path.join(self._root, *path.split("/")) if path else self._root

    def open_read(self, path: str) -> BinaryIO:
        return open(self._path(path), "rb")

    @contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        target = self._path(path)
        folder, name = os.path.split(target)
        _make_folder(folder)
        temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with open(temporary, "xb") as file:
                yield file
                fault_point("storage.write")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _fsync_folder(folder)

    def settle(self, file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def list(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._path(folder)) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(path))

    def delete_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(folder))

    def modified_ms(self, path: str) -> int | None:
        try:
            return os.stat(self._path(path)).st_mtime_ns // 1_000_000
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        # The kernel drops the lock when its holder dies, whatever it dies of.
        folder, base = os.path.split(self._path(name))
        _make_folder(folder)
        handle = os.open(os.path.join(folder, f".{base}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _make_folder(folder: str) -> None:
    """A file is no more durable than the names of the folders above it."""
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    _make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(folder)
    _fsync_folder(above)


def _fsync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
