"""A checkpoint in HDFS or an object store, through ``pyarrow.fs``."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from pyarrow import ArrowInvalid, fs

from tidemill.checkpoint.storage import Appender, Storage, is_unfinished
from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError

# In these stores an object appears only when its upload is complete, and renaming would copy it.
APPEARS_WHOLE = {"s3", "gcs", "abfs"}

# Here a file can be opened again to append to it.
GROWS = {"hdfs"}

_ASIDE_NAME = re.compile(r"\.(.+)\.old")


def _aside(target: str) -> str:
    """Return the name that a file has while it is replaced."""
    folder, _, name = target.rpartition("/")
    return f"{folder}/.{name}.old"


def _from_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI, and its path. S3 writes a small file with one call, not three."""
    if uri.startswith("s3://") and "allow_delayed_open=" not in uri:
        with suppress(ArrowInvalid):  # an old pyarrow does not know the parameter
            at_once = f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true"
            return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(at_once))
    return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(uri))


class ArrowStorage(Storage):
    """Files of any file system that pyarrow knows.

    These have no lock that works between processes, so only the owner's record keeps two drivers apart:
    a driver that loses its ownership between checking the record and the end of a write can still finish
    that one write.

    HDFS does not rename onto an existing file. There, a file is replaced in these steps, and is never away:

    1. write the new file under a hidden name: readers see the old file;
    2. delete what an interrupted replacement has left (``.owner.old``), if the file itself is there;
    3. rename the old file to ``.owner.old``: whoever finds no ``owner`` takes that one, so readers still see
       the old file, and so they do after a crash;
    4. rename the new file into place: readers see the new file;
    5. delete ``.owner.old``. Should a crash prevent that, 2 or :meth:`delete` does it: nobody reads it as
       long as there is an ``owner``.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, uri: str | None = None) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._uri = uri or f"{filesystem.type_name}:{root}"
        base: Any = filesystem
        while isinstance(base, fs.SubTreeFileSystem):
            base = base.base_fs
        self._appears_whole = base.type_name in APPEARS_WHOLE
        self._grows = base.type_name in GROWS

    @classmethod
    def from_uri(cls, uri: str) -> ArrowStorage:
        # Spark, which keeps RDDs in the same directory, calls it s3a.
        known = f"s3{uri[3:]}" if uri.startswith("s3a://") else uri
        filesystem, root = _from_uri(known)
        return cls(filesystem, root, uri)

    @property
    def uri(self) -> str:
        return self._uri

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def open_read(self, path: str) -> BinaryIO:
        target = self._path(path)
        try:
            return self._open(target)
        except FileNotFoundError:
            if self._appears_whole:
                raise
        with suppress(FileNotFoundError):
            return self._open(_aside(target))
        return self._open(target)  # the new file may have come since the first look

    def _open(self, target: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open_input_file(target))

    @contextmanager
    def open_write(self, path: str, sums: bytes | None = None) -> Iterator[BinaryIO]:
        target = self._path(path)
        folder, _, name = target.rpartition("/")
        if folder and not self._appears_whole:  # object stores have no folders
            self._fs.create_dir(folder, recursive=True)
        staged = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            if self._appears_whole:
                # Closing the stream of a failed upload would complete it, so upload only complete files.
                with tempfile.SpooledTemporaryFile(max_size=8 << 20) as local:
                    yield cast(BinaryIO, local)
                    local.seek(0)
                    with self._open_object(target) as stream:
                        shutil.copyfileobj(local, stream, 1 << 20)
                return
            with self._fs.open_output_stream(staged) as stream:
                yield cast(BinaryIO, stream)
            self._rename(staged, target)
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(staged)
            raise

    def _open_object(self, target: str) -> Any:
        try:
            return self._fs.open_output_stream(target)
        except FileNotFoundError:  # a store that has folders after all
            self._fs.create_dir(target.rpartition("/")[0], recursive=True)
            return self._fs.open_output_stream(target)

    def _rename(self, staged: str, target: str) -> None:
        try:
            self._fs.move(staged, target)
        except OSError:
            if self._fs.get_file_info(target).type is not fs.FileType.File:
                raise
            aside = _aside(target)
            self._delete(aside)  # 2
            self._fs.move(target, aside)  # 3
            try:
                self._fs.move(staged, target)  # 4
            except BaseException:
                # If somebody else has written the file meanwhile, that one counts.
                with suppress(OSError):
                    self._fs.move(aside, target)
                raise
            self._delete(aside)  # 5

    @property
    def takes_groups(self) -> bool:
        return True

    @property
    def can_append(self) -> bool:
        return self._grows

    def open_append(self, path: str, head: bytes = b"") -> Appender:
        if not self._grows:
            return super().open_append(path, head)
        target = self._path(path)
        if self._fs.get_file_info(target).type is not fs.FileType.NotFound:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._fs.create_dir(target.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(target) as stream:
            stream.write(head)
        return _ReopeningAppender(self._fs, target, len(head))

    def list(self, folder: str) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        names = [info.base_name for info in found]
        aside = {match[1] for name in names if (match := _ASIDE_NAME.fullmatch(name))}
        return [
            *(name for name in names if not name.startswith(".")),
            *aside.difference(names),
        ]

    def delete(self, path: str) -> None:
        target = self._path(path)
        if not self._appears_whole:
            self._delete(_aside(target))
        self._delete(target)

    def _delete(self, target: str) -> None:
        self._if_there(self._fs.delete_file, target)

    def _if_there(self, delete: Callable[[str], None], target: str) -> None:
        """Delete what may be missing. Of that, HDFS says no more than that nothing was deleted."""
        try:
            delete(target)
        except FileNotFoundError:
            pass
        except OSError:
            if self._fs.get_file_info(target).type is not fs.FileType.NotFound:
                raise

    def sweep(self, folders: Sequence[str]) -> None:
        if self._appears_whole:
            return  # nothing is written under another name
        for folder in ("", *folders):
            path, below = self._path(folder), folder != ""
            for info in self._fs.get_file_info(
                fs.FileSelector(path, allow_not_found=True, recursive=below)
            ):
                if is_unfinished(info.base_name) and info.type is fs.FileType.File:
                    self._delete(info.path)

    def delete_folder(self, folder: str) -> None:
        self._if_there(self._fs.delete_dir, self._path(folder))

    def modified_ms(self, path: str) -> int | None:
        target = self._path(path)
        for each in (target, _aside(target), target):
            info = self._fs.get_file_info(each)
            if info.type is not fs.FileType.NotFound:
                return int((info.mtime_ns or 0) // 1_000_000)
            if self._appears_whole:
                break
        return None

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        yield


class _ReopeningAppender(Appender):
    """Opens a file for each append, and closes it: what is in a closed file of HDFS is durable.

    A flush promises nothing: ``pyarrow`` calls ``hdfsFlush``, not ``hdfsHFlush``.
    """

    def __init__(self, filesystem: fs.FileSystem, target: str, size: int) -> None:
        self._fs = filesystem
        self._target = target
        self._size = size
        self._is_open = True

    def append(self, parts: Sequence[bytes | memoryview]) -> int:
        if not self._is_open:
            raise IllegalStateError(
                f"cannot append to {self._target}: it is closed, or an earlier append failed"
            )
        offset = self._size
        expected = offset + sum(memoryview(part).nbytes for part in parts)
        try:
            fault_point("log.append")
            with self._fs.open_append_stream(self._target) as stream:
                for part in parts:
                    stream.write(part)
            info = self._fs.get_file_info(self._target)
            if info.size != expected:
                raise OSError(
                    errno.EIO,
                    f"has {info.size} bytes after an append and not {expected}: it was deleted, or somebody "
                    "else writes to it",
                    self._target,
                )
            fault_point("log.appended")
        except BaseException:
            self.close()
            raise
        self._size = expected
        return offset

    def close(self) -> None:
        self._is_open = False
