"""Where a checkpoint lives: the few operations that the logs and the state store need of a file system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import BinaryIO


class Appender(ABC):
    """A file that grows, and is read while it does. One thread at a time uses it."""

    @abstractmethod
    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        """Add the parts, one after another, and say at which offset the first of them begins.

        They are durable when this returns. When it fails, what was appended before is as it was, and
        the parts are there, cut off, or not there at all. The appender cannot be used any more then:
        nothing may follow what is cut off.
        """

    @abstractmethod
    def close(self) -> None:
        """Idempotent. The file stays as it is."""


class Storage(ABC):
    """A directory tree with files that appear whole or not at all.

    Paths are relative to the root and use ``/``. Implementations can be pickled: tasks write state.
    A name that begins with a dot is a file in the making and is never listed.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The root, for messages and for opening the same storage elsewhere."""

    @abstractmethod
    def open_read(self, path: str) -> BinaryIO:
        """Open a file, which can be read from any offset (``seek``). ``FileNotFoundError`` if it is not
        there.
        """

    @abstractmethod
    def open_write(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a file, replacing the one of that name when the ``with`` block ends well.

        After the block the file is durable and whole; after an exception it is as it was before.
        """

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """The names in a folder, in no order. Empty if there is no such folder."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Remove a folder and all that is in it, if it is there."""

    @abstractmethod
    def modified_ms(self, path: str) -> int | None:
        """When a file was written, by the clock of the storage. None if it is not there."""

    @abstractmethod
    def lock(self, name: str, patience_s: float | None = None) -> AbstractContextManager[None]:
        """Keep others out of a section, across processes, where the storage can do that.

        ``TimeoutError`` if somebody has been inside for longer than ``patience_s``.
        """

    def as_owner(self) -> AbstractContextManager[None]:
        """A section in which nobody takes the directory over: for what the owner writes elsewhere.

        ``OwnershipLostError`` if somebody has taken it over before. Nothing else may be written to this
        storage inside.
        """
        return nullcontext()

    @property
    def can_append(self) -> bool:
        """Whether there is :meth:`open_append`. Object stores have nothing like it."""
        return False

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        """Make a new file that begins with ``head`` and can grow. ``FileExistsError`` if it is there.

        The file is durable, by its name and with its head, when this returns. Unlike other files it
        may be seen before, with a part of the head.
        """
        raise NotImplementedError(f"{self.uri} has no files that grow: ask can_append first")

    def settle(self, file: BinaryIO) -> None:
        """Do as much as can be done, before a file being written becomes visible, to make that quick."""
        file.flush()

    def read(self, path: str) -> bytes:
        with self.open_read(path) as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        with self.open_write(path) as file:
            file.write(data)

    def exists(self, path: str) -> bool:
        return self.modified_ms(path) is not None

    def full_name(self, path: str) -> str:
        """A path as a person would look for it."""
        return f"{self.uri.rstrip('/')}/{path}"

    def under(self, folder: str) -> Storage:
        """The storage of a folder of this one."""
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

    def open_write(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self._parent.open_write(self._path(path))

    @property
    def can_append(self) -> bool:
        return self._parent.can_append

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        return self._parent.open_append(self._path(path), head)

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
    """The storage for a path of the operating system or a URI (``s3://...``, ``hdfs://...``)."""
    from tidemill.checkpoint.arrow_storage import ArrowStorage
    from tidemill.checkpoint.local_storage import LocalStorage

    if directory.startswith("file:"):
        directory = "/" + directory[len("file:") :].lstrip("/")
    if "://" in directory:
        return ArrowStorage.from_uri(directory)
    return LocalStorage(directory)
