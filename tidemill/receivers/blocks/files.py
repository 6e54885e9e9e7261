"""The blocks of one executor: files in memory and on its local disk.

Both are plain files, so that every process of the host reads a block by mapping it, without a copy. Files in
memory are in a memory file system (``/dev/shm``), up to a limit; the others are on disk. None of them is
durable: the write-ahead log is.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import StorageLevel

from tidemill.common.processes import is_alive

SHARED_MEMORY = "/dev/shm"
FOLDER_NAME = re.compile(r"tidemill-blocks-(\d+)-")
OWNER = ".owner"


@dataclass(frozen=True)
class BlockFolders:
    """The folders of an executor's blocks. ``memory`` is None where there is no memory file system."""

    memory: str | None
    disk: str
    memory_bytes: int

    def make(self) -> None:
        for folder in (self.memory, self.disk):
            if folder is not None:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                # Fails, as it should, if the folder belongs to another user.
                os.chmod(folder, 0o700)

    def remove(self) -> None:
        for folder in (self.memory, self.disk):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def block_folders(name: str, local_directory: str, memory_bytes: int) -> BlockFolders:
    """Return folders called ``name``, with ``memory_bytes`` in memory, but at most half of what is free."""
    try:
        free = os.statvfs(SHARED_MEMORY)
        memory_bytes = min(memory_bytes, free.f_bavail * free.f_frsize // 2)
        memory = os.path.join(SHARED_MEMORY, name) if memory_bytes else None
    except OSError:
        memory, memory_bytes = None, 0
    return BlockFolders(memory, os.path.join(local_directory, name), memory_bytes)


def claim(folders: BlockFolders) -> None:
    """Protect these folders from :func:`sweep` for as long as this process lives."""
    for folder in (folders.memory, folders.disk):
        if folder is not None:
            # Never closed: the kernel releases the lock when the process ends, however it ends.
            handle = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)


def sweep(local_directory: str) -> None:
    """Delete the folders of processes that were killed. The name of a folder has the pid of its process.

    A container that shares its host's memory does not see the host's processes, but it sees their locks.
    """
    for parent in (SHARED_MEMORY, local_directory):
        with suppress(OSError):
            for name in os.listdir(parent):
                match = FOLDER_NAME.match(name)
                folder = os.path.join(parent, name)
                if match and not is_alive(int(match[1])) and not _is_claimed(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_claimed(folder: str) -> bool:
    try:
        handle = os.open(os.path.join(folder, OWNER), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


class BlockFiles:
    """Writes and deletes the blocks of this process. To read a block, its path is enough.

    It never makes the folders: who removes them has made them. A receiver's task that comes late, after the
    stream has been stopped, would make them again, and nobody would remove them.
    """

    def __init__(self, folders: BlockFolders) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._in_memory: dict[str, int] = {}

    def put(self, block_id: str, data: pa.Buffer, level: StorageLevel) -> str:
        """Write a block and return its path. A block that does not fit into memory goes to disk, whatever
        the storage level says: dropping it would be worse.
        """
        folder = self._folders.disk
        if level.useMemory and self._folders.memory is not None:
            with self._lock:
                if self._has_memory(block_id, data.size):
                    self._in_memory[block_id] = data.size
                    folder = self._folders.memory
        path = os.path.join(folder, block_id)
        try:
            write_block(path, [data])
        except OSError:
            self.delete([block_id])
            if folder == self._folders.disk:
                raise
            path = os.path.join(self._folders.disk, block_id)
            write_block(path, [data])
        return path

    def _has_memory(self, block_id: str, size: int) -> bool:
        limit = self._folders.memory_bytes
        self._in_memory.pop(block_id, None)
        if sum(self._in_memory.values()) + size > limit:
            # Another process may have deleted some: the driver, or the block server.
            assert self._folders.memory is not None
            there = set(os.listdir(self._folders.memory))
            self._in_memory = {id_: n for id_, n in self._in_memory.items() if id_ in there}
        return sum(self._in_memory.values()) + size <= limit

    def delete(self, block_ids: Iterable[str]) -> None:
        with self._lock:
            for block_id in block_ids:
                self._in_memory.pop(block_id, None)
                for folder in (self._folders.memory, self._folders.disk):
                    if folder is not None:
                        with suppress(FileNotFoundError):
                            os.unlink(os.path.join(folder, block_id))

    def path_of(self, block_id: str) -> str:
        """Return the path of a block. ``FileNotFoundError`` if it is not here."""
        for folder in (self._folders.memory, self._folders.disk):
            if folder is not None and os.path.exists(path := os.path.join(folder, block_id)):
                return path
        raise FileNotFoundError(block_id)


def write_block(path: str, parts: Iterable[pa.Buffer]) -> None:
    """Write a block so that a reader sees all of it or nothing."""
    # A unique name: a block that is sent twice may arrive on two threads at once.
    hidden = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}-{uuid.uuid4().hex}")
    try:
        with open(hidden, "wb") as file:
            for part in parts:
                file.write(part)
        os.replace(hidden, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(hidden)
        raise


def map_block(path: str) -> pa.Buffer:
    """Map a block of this host into memory. ``FileNotFoundError`` if it is not here."""
    with pa.memory_map(path) as file:
        return file.read_buffer()
