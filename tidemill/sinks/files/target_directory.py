"""The directory that a file sink writes into, with the few operations that its protocol needs."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.checkpoint.checksums import (
    forget_sidecar,
    read_checked,
    sidecar,
    sums_of,
    write_sidecar,
)
from tidemill.common.durable_folders import make_folder, missing_folders, remove_empty, sync
from tidemill.spark.files.hadoop_files import locate
from tidemill.spark.files.hadoop_folder import HadoopFolder
from tidemill.spark.files.hadoop_paths import uri_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CHECKPOINT_NAMES = {"metadata", "offsets", "commits"}
"""What the checkpoint of every query has that has run, Spark's and Tidemill's."""


@dataclass(frozen=True)
class TargetEntry:
    """A file or a folder, by its path from the root."""

    path: str
    is_folder: bool
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class TargetDirectory(ABC):
    """A directory tree that Spark's tasks write into and the driver arranges. Paths are relative."""

    uri: str
    """The root as Spark's writer takes it."""
    block_size: int
    replication: int

    @abstractmethod
    def file_uri(self, path: str) -> str:
        """Return the URI by which the manifest names a file, with special characters escaped."""

    @abstractmethod
    def list(self, folder: str) -> list[TargetEntry]:
        """Return the files and folders in a folder, also hidden ones. Empty if there is no such folder."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the contents of a file. ``FileNotFoundError`` if it is not there, ``ChecksumError`` if they
        are not what was written.
        """

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Make a file that appears whole and durable, with its checksum where the file system keeps none.

        ``FileExistsError`` if it is there already.
        """

    @abstractmethod
    def sync(self, files: Sequence[str]) -> None:
        """Make the contents of files durable."""

    def make(self) -> None:
        """Make the directory, if it is not there. ``OSError`` if it cannot be made, or is a file."""

    def unmake(self) -> None:
        """Remove the folders that :meth:`make` has made, if they are empty."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move a file, making the folders above its target."""

    @abstractmethod
    def sync_names(self, files: Sequence[str]) -> None:
        """Make the names of moved files durable."""

    @abstractmethod
    def entry(self, path: str) -> TargetEntry | None:
        """Return the size and time of a file, or None if it is not there."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def delete_folder(self, folder: str, only_if_empty: bool = False) -> None:
        """Remove a folder and everything in it, if it is there."""

    def holds(self, uri: str) -> str | None:
        """Return the path of a directory inside this one, empty if it is this one; None if it is outside."""
        place = f"{uri.rstrip('/')}/".removeprefix(f"{self.uri.rstrip('/')}/")
        return None if place.startswith(uri.rstrip("/")) else place.rstrip("/")

    def walk(self, folder: str = "") -> Iterator[TargetEntry]:
        """Yield the files below a folder that readers see: no name on the way begins with ``_`` or a dot.

        What is in the checkpoint of a query is left out.
        """
        entries = self.list(folder)
        if folder and {entry.name for entry in entries} >= CHECKPOINT_NAMES:
            return
        for entry in entries:
            # Spark does read the folder of a column whose name begins with an underscore.
            hidden = entry.name.startswith("_") and "=" not in entry.name
            if hidden or entry.name.startswith("."):
                continue
            if entry.is_folder:
                yield from self.walk(entry.path)
            else:
                yield entry


def open_target(session: SparkSession, path: str) -> TargetDirectory:
    """Return the directory that Spark would write to for ``path``, local or of any of Hadoop's systems."""
    located, is_local = locate(session.sparkContext, path)
    if is_local:
        return LocalTarget(located)
    return HadoopTarget(HadoopFolder(session.sparkContext, located))


class LocalTarget(TargetDirectory):
    """A directory of the operating system, used without the JVM."""

    # Hadoop's local file system gives every file these.
    block_size = 32 << 20
    replication = 1

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(directory)
        self.uri = self._root
        self._made: list[str] = []

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def make(self) -> None:
        self._made = missing_folders(self._root)
        make_folder(self._root)
        if not os.path.isdir(self._root):
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, and not a directory", self._root)
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "this program may not write there", self._root)

    def unmake(self) -> None:
        remove_empty(self._made)

    def holds(self, uri: str) -> str | None:
        if not os.path.isabs(uri):  # of another file system
            return None
        place = os.path.relpath(os.path.realpath(uri), os.path.realpath(self._root))
        if place == ".":
            return ""
        return None if place.split("/")[0] == ".." else place

    def file_uri(self, path: str) -> str:
        return uri_of(self._path(path))

    def list(self, folder: str) -> list[TargetEntry]:
        prefix = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._path(folder)) as found:
                return [
                    _entry(prefix + item.name, item.is_dir(), item.stat())
                    for item in found
                    if item.is_dir() or item.is_file()
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        return read_checked(self._path(path))

    def create(self, path: str, data: bytes) -> None:
        target = self._path(path)
        folder, name = os.path.split(target)
        make_folder(folder)
        staged = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with open(staged, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not os.path.exists(target):
                forget_sidecar(target)
            # Unlike a rename, a link does not replace what is there.
            os.link(staged, target)
        finally:
            with suppress(OSError):
                os.unlink(staged)
        write_sidecar(target, sums_of(data))
        sync(folder)

    def sync(self, files: Sequence[str]) -> None:
        for path in files:
            sync(self._path(path))

    def move(self, source: str, target: str) -> None:
        try:
            os.rename(self._path(source), self._path(target))
        except FileNotFoundError:
            make_folder(os.path.dirname(self._path(target)))
            os.rename(self._path(source), self._path(target))

    def sync_names(self, files: Sequence[str]) -> None:
        for folder in {os.path.dirname(self._path(path)) for path in files}:
            sync(folder)

    def entry(self, path: str) -> TargetEntry | None:
        try:
            return _entry(path, False, os.stat(self._path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def delete(self, path: str) -> None:
        for each in (self._path(path), sidecar(self._path(path))):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(each)

    def delete_folder(self, folder: str, only_if_empty: bool = False) -> None:
        if only_if_empty:
            with suppress(OSError):
                os.rmdir(self._path(folder))
            return
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(folder))


def _entry(path: str, is_folder: bool, stat: os.stat_result) -> TargetEntry:
    return TargetEntry(path, is_folder, stat.st_size, stat.st_mtime_ns // 1_000_000)


class HadoopTarget(TargetDirectory):
    """A directory of any file system that Spark writes to (``hdfs:``, ``s3a:``, ...), through Hadoop.

    What such a file system has accepted is durable: there is nothing to sync. In an object store a move is a
    copy.
    """

    def __init__(self, folder: HadoopFolder) -> None:
        self._folder = folder
        self.uri = folder.uri
        self.block_size = folder.block_size
        self.replication = folder.replication

    def file_uri(self, path: str) -> str:
        return self._folder.escaped(path)

    def list(self, folder: str) -> list[TargetEntry]:
        prefix = f"{folder}/" if folder else ""
        return [
            TargetEntry(
                prefix + status.name,
                status.is_directory,
                status.size,
                status.modified_ms,
            )
            for status in self._folder.list(folder)
        ]

    def read(self, path: str) -> bytes:
        return self._folder.read(path)

    def create(self, path: str, data: bytes) -> None:
        self._folder.create(path, data)

    def sync(self, files: Sequence[str]) -> None:
        pass

    def move(self, source: str, target: str) -> None:
        self._folder.move(source, target)

    def sync_names(self, files: Sequence[str]) -> None:
        pass

    def entry(self, path: str) -> TargetEntry | None:
        found = self._folder.size_and_time(path)
        return None if found is None else TargetEntry(path, False, *found)

    def delete(self, path: str) -> None:
        self._folder.delete(path)

    def delete_folder(self, folder: str, only_if_empty: bool = False) -> None:
        if not only_if_empty or not self._folder.list(folder):
            self._folder.delete(folder)
