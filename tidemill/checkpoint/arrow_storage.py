"""A checkpoint in HDFS or an object store, through ``pyarrow.fs``."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from pyarrow import fs

from tidemill.checkpoint.storage import Storage

# In these stores an object appears only when its upload is complete, and renaming would copy it.
APPEARS_WHOLE = {"s3", "gcs", "abfs"}


class ArrowStorage(Storage):
    """Files of any file system that pyarrow knows.

    These have no lock that works between processes, so only the owner's record keeps two drivers apart:
    a driver that loses its ownership between checking the record and the end of a write can still finish
    that one write.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, uri: str | None = None) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._uri = uri or f"{filesystem.type_name}:{root}"
        base: Any = filesystem
        while isinstance(base, fs.SubTreeFileSystem):
            base = base.base_fs
        self._appears_whole = base.type_name in APPEARS_WHOLE

    @classmethod
    def from_uri(cls, uri: str) -> ArrowStorage:
        # Spark, which keeps RDDs in the same directory, calls it s3a.
        known = f"s3{uri[3:]}" if uri.startswith("s3a://") else uri
        filesystem, root = fs.FileSystem.from_uri(known)
        return cls(filesystem, root, uri)

    @property
    def uri(self) -> str:
        return self._uri

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open_input_file(self._path(path)))

    @contextmanager
    def open_write(self, path: str) -> Iterator[BinaryIO]:
        target = self._path(path)
        folder, _, name = target.rpartition("/")
        if folder:
            self._fs.create_dir(folder, recursive=True)
        staged = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            if self._appears_whole:
                # Closing the stream of a failed upload would complete it, so upload only complete files.
                with tempfile.SpooledTemporaryFile(max_size=8 << 20) as local:
                    yield cast(BinaryIO, local)
                    local.seek(0)
                    with self._fs.open_output_stream(target) as stream:
                        shutil.copyfileobj(local, stream, 1 << 20)
                return
            with self._fs.open_output_stream(staged) as stream:
                yield cast(BinaryIO, stream)
            self._rename(staged, target)
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(staged)
            raise

    def _rename(self, staged: str, target: str) -> None:
        try:
            self._fs.move(staged, target)
        except OSError:
            # HDFS does not rename onto an existing file. Keep the old one until the new one is there.
            if self._fs.get_file_info(target).type is not fs.FileType.File:
                raise
            aside = f"{staged}.old"
            self._fs.move(target, aside)
            try:
                self._fs.move(staged, target)
            except BaseException:
                self._fs.move(aside, target)
                raise
            self._fs.delete_file(aside)

    def list(self, folder: str) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return [info.base_name for info in found if not info.base_name.startswith(".")]

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.delete_file(self._path(path))

    def delete_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.delete_dir(self._path(folder))

    def modified_ms(self, path: str) -> int | None:
        info = self._fs.get_file_info(self._path(path))
        if info.type is fs.FileType.NotFound:
            return None
        return int((info.mtime_ns or 0) // 1_000_000)

    @contextmanager
    def lock(self, name: str, patience_s: float | None = None) -> Iterator[None]:
        yield
