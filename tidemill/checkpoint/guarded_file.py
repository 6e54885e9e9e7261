"""A file of a checkpoint while it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

from tidemill.errors import CheckpointError


class GuardedFile:
    """A file being written whose errors name the file and say that nothing is lost."""

    def __init__(self, file: BinaryIO, explained: Callable[[OSError], CheckpointError]) -> None:
        self._file = file
        self._explained = explained
        self.closed = False

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise self._explained(error) from error

    def flush(self) -> None:
        pass
