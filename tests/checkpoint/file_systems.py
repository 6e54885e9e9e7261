"""File systems of pyarrow for tests of storage."""

from __future__ import annotations

import errno
from collections.abc import Callable
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


def in_memory(filesystem: Any) -> Callable[[], dict[str, bytes]]:
    def all_files() -> dict[str, bytes]:
        found = filesystem.get_file_info(
            fs.FileSelector("ck", recursive=True, allow_not_found=True)
        )
        return {
            info.path.removeprefix("ck/"): filesystem.open_input_stream(info.path).read()
            for info in found
            if info.is_file
        }

    return all_files
