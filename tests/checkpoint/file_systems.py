"""File systems of pyarrow for tests of storage."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import fs


class NoReplacing:
    """A file system like HDFS, which does not rename onto an existing file."""

    def __init__(self, below: Any) -> None:
        self._below = below
        self.refused: Callable[[str], bool] = lambda source: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def move(self, source: str, target: str) -> None:
        if self.refused(source):
            raise OSError(errno.EIO, "the name node is away")
        if self._below.get_file_info(target).type is not fs.FileType.NotFound:
            raise OSError(f"{target} is there")
        self._below.move(source, target)


class Hdfs(NoReplacing):
    """A file system like HDFS: it has no renaming onto a file, and files can be appended to.

    What is written becomes visible, and durable, when a stream is closed. ``before_append`` is called before
    an append begins, and ``torn_after`` is the number of bytes after which the writer dies.
    """

    type_name = "hdfs"

    def __init__(self, below: Any) -> None:
        super().__init__(below)
        self.before_append: Callable[[], None] = lambda: None
        self.torn_after: int | None = None
        self.appends = 0

    def delete_file(self, path: str) -> None:
        self._delete(self._below.delete_file, path)

    def delete_dir(self, path: str) -> None:
        self._delete(self._below.delete_dir, path)

    def _delete(self, delete: Callable[[str], None], path: str) -> None:
        if self._below.get_file_info(path).type is fs.FileType.NotFound:
            raise OSError(errno.EIO, "HDFS delete failed")  # it has no other error
        delete(path)

    @contextmanager
    def open_append_stream(self, path: str) -> Iterator[Any]:
        self.before_append()
        if self._below.get_file_info(path).type is fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "File does not exist", path)
        self.appends += 1
        written = io.BytesIO()
        yield written
        data = written.getvalue()
        with self._below.open_append_stream(path) as stream:
            stream.write(data[: self.torn_after])
        if self.torn_after is not None:
            raise OSError(errno.EIO, "the writer dies")


class Objects(NoReplacing):
    """A file system like an object store: nothing grows, and an object appears when its upload is complete.

    ``before_upload`` is called when an upload is about to be completed.
    """

    type_name = "s3"

    def __init__(self, below: Any) -> None:
        super().__init__(below)
        self.before_upload: Callable[[], None] = lambda: None
        self.uploads = 0

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[Any]:
        upload = io.BytesIO()
        yield upload
        self.before_upload()
        self._below.create_dir(path.rpartition("/")[0], recursive=True)  # no object needs a folder
        with self._below.open_output_stream(path) as stream:
            stream.write(upload.getvalue())
        self.uploads += 1

    def open_append_stream(self, path: str) -> Any:
        raise NotImplementedError("It is not possible to append efficiently to S3 objects")


def in_folder(filesystem: Any, folder: str = "ck") -> Callable[[], dict[str, bytes]]:
    """Return what gives the contents of all files below a folder."""

    def all_files() -> dict[str, bytes]:
        found = filesystem.get_file_info(
            fs.FileSelector(folder, recursive=True, allow_not_found=True)
        )
        return {
            info.path.removeprefix(f"{folder}/"): filesystem.open_input_stream(info.path).read()
            for info in found
            if info.is_file
        }

    return all_files
