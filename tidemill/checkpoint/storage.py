"""The interface of checkpoint storage: the few file operations that the logs and the state store need."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO
from urllib.parse import urlsplit

from tidemill.checkpoint.checksums import sums_of
from tidemill.common.paths import local_path
from tidemill.errors import CheckpointError, OptionError


class Appender(ABC):
    """A file that grows while others read it. One thread at a time uses it."""

    @abstractmethod
    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Append the parts, one after another, and return the offset of the first.

        They are durable when this returns. When it fails, everything appended before is unchanged, and
        the parts are there whole, cut off, or not at all. The appender then refuses all later calls,
        because nothing may follow a part that is cut off.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file, which stays as it is. Idempotent."""


_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def is_unfinished(name: str) -> bool:
    """True for the hidden name under which a storage writes a file before it appears.

    >>> is_unfinished(".7.0f3a9c21.tmp"), is_unfinished("7.tmp"), is_unfinished(".7.crc")
    (True, False, False)
    """
    return _UNFINISHED.fullmatch(name) is not None


class Storage(ABC):
    """A directory tree with files that appear whole or not at all.

    Paths are relative to the root and use ``/``. Implementations can be pickled: tasks write state.
    A name that begins with a dot is an unfinished file and is never listed.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The address of the root, for messages and for opening the same storage elsewhere."""

    @abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """Open a file for reading, with ``seek``. Raise ``FileNotFoundError`` if it is not there."""

    @abstractmethod
    def open_write(self, path: str, sums: bytes | None = None) -> AbstractContextManager[BinaryIO]:
        """Write a file, replacing the one of that name when the ``with`` block ends without an exception.

        After the block the file is durable and whole; after an exception the old file is unchanged.

        ``sums`` are the checksums of the file, for a storage that keeps them beside it; a file that has its
        own checksum inside needs none.
        """

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order; none if there is no such folder."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Remove a folder and everything in it, if it is there."""

    @abstractmethod
    def modified_ms(self, path: str) -> int | None:
        """Return when a file was written, by the clock of the storage, or None if it is not there."""

    @abstractmethod
    def lock(self, name: str, patience_s: float | None = None) -> AbstractContextManager[None]:
        """Keep other processes out of the ``with`` block, where the storage can do that.

        Raise ``TimeoutError`` if another process has been inside for longer than ``patience_s``.
        """

    def missing_folders(self) -> Sequence[str]:
        """Return the root and the folders above it that are not there yet, where there are folders at all."""
        return []

    def remove_root(self, lock: str, folders: Sequence[str]) -> None:
        """Remove the file of the lock, which the caller holds, and then those of ``folders`` that are empty:
        :meth:`missing_folders` has returned them.
        """

    def as_owner(self) -> AbstractContextManager[None]:
        """Keep others from taking the directory over during the ``with`` block, in which the owner writes
        elsewhere.

        Raise ``OwnershipLostError`` if another driver has already taken it over. The block must not write
        to this storage.
        """
        return nullcontext()

    @property
    def can_append(self) -> bool:
        """True if the storage has :meth:`open_append`. Object stores have nothing like it."""
        return False

    @property
    def takes_groups(self) -> bool:
        """True if a write of many records costs about as much as one of a single record, and a crash leaves
        nothing of it but a beginning. A local disk may keep any page of what was not synced.
        """
        return False

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        """Create a file that begins with ``head`` and can grow. Raise ``FileExistsError`` if it is there.

        The name and the head are durable when this returns. Unlike other files, readers may see it earlier,
        with a part of the head.
        """
        raise NotImplementedError(f"{self.uri} has no files that grow: check can_append first")

    def settle(self, file: BinaryIO) -> None:
        """Do the slow part of making a file durable before it becomes visible."""
        file.flush()

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise ``ChecksumError`` if they are not what was written."""
        with self.open_read(path) as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        """Write a file, as :meth:`open_write` does, with its checksum."""
        with self.open_write(path, sums_of(data)) as file:
            file.write(data)

    def make_folder(self, folder: str) -> None:
        """Make a folder for somebody else to write to, with the rights that files here have.

        Object stores have no folders, and Hadoop's file systems rights of their own: there it does nothing.
        """

    def sweep(self, folders: Sequence[str]) -> None:
        """Delete the unfinished files that killed writers have left at the root and below some folders of it.

        Only the owner may call this, before it or its tasks write anything. A task of a former owner that
        still writes loses its file: it could not have finished it, because it has lost the directory.
        """

    def exists(self, path: str) -> bool:
        return self.modified_ms(path) is not None

    def full_name(self, path: str) -> str:
        """Return the full path, for messages."""
        return f"{self.uri.rstrip('/')}/{path}"

    def under(self, folder: str) -> Storage:
        """Return a storage whose root is a folder of this one."""
        return SubStorage(self, folder)


class SubStorage(Storage):
    """A folder of another storage."""

    def __init__(self, parent: Storage, folder: str) -> None:
        self._parent = parent
        self._folder = folder

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}" if path else self._folder

    @property
    def uri(self) -> str:
        return self._parent.full_name(self._folder)

    def open_read(self, path: str) -> BinaryIO:
        return self._parent.open_read(self._path(path))

    def open_write(self, path: str, sums: bytes | None = None) -> AbstractContextManager[BinaryIO]:
        return self._parent.open_write(self._path(path), sums)

    def read(self, path: str) -> bytes:
        return self._parent.read(self._path(path))

    @property
    def can_append(self) -> bool:
        return self._parent.can_append

    @property
    def takes_groups(self) -> bool:
        return self._parent.takes_groups

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        return self._parent.open_append(self._path(path), head)

    def make_folder(self, folder: str) -> None:
        self._parent.make_folder(self._path(folder))

    def list(self, folder: str) -> list[str]:
        return self._parent.list(self._path(folder))

    def delete(self, path: str) -> None:
        self._parent.delete(self._path(path))

    def delete_folder(self, folder: str) -> None:
        self._parent.delete_folder(self._path(folder))

    def modified_ms(self, path: str) -> int | None:
        return self._parent.modified_ms(self._path(path))

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        with self._parent.lock(self._path(name), patience_s):
            yield


def open_storage(directory: str) -> Storage:
    """Return the storage for a local path or a URI (``s3://...``, ``hdfs://...``).

    A path without a scheme is of this machine, whatever Spark's default file system is: the storage is opened
    where there may be no Spark.
    """
    from tidemill.checkpoint.arrow_storage import ArrowStorage
    from tidemill.checkpoint.local_storage import LocalStorage

    local = local_path(directory)
    if local is not None:
        return LocalStorage(local)
    if "://" not in directory:
        raise OptionError(
            f"{directory!r} names no host or bucket: write the whole URI, such as hdfs://host:8020/folder",
            "path",
        )
    if urlsplit(directory).password:
        shown = f"{directory.partition('://')[0]}://...@{directory.rpartition('@')[2]}"
        raise OptionError(
            f"the directory {shown} has a secret key in its URI, which would stand in logs: leave "
            "it out, and give the credentials to the driver and the executors in their environment (for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile)",
            "path",
        )
    return ArrowStorage.from_uri(directory)


@contextmanager
def usable(uri: str, called: str) -> Iterator[None]:
    """Raise the operating system's errors about a directory as errors that say what to do.

    ``called`` is what the program knows the directory as. Without a directory all errors stay what they are.
    """
    try:
        yield
    except OSError as error:
        file = str(error.filename or "")
        if not uri or not file or not (file.startswith(uri) or uri.startswith(file)):
            raise
        raise CheckpointError(
            f"the directory {uri} cannot be used as {called}: {error.strerror} ({file}). "
            "Give a directory that this program may read and write; it is made if it is not there.",
            uri,
        ) from None
