"""Telling that somebody is still writing a file, which a batch then leaves to the next one.

A file that is copied into a directory is there from its first byte on, under its own name. A batch that takes
it in the middle gets half of it. So a file is taken when it is finished. The rule, for files of this machine:

1. IF its last write is ``PATIENCE_MS`` ago, it is taken for finished, whoever has it open: an upload
   that has stalled for so long may never go on.
2. ELSE IF the kernel tells whether anybody has it open to write to it, it is finished when nobody has.
3. ELSE (it belongs to another user, lies in a network file system, or this is not Linux) it is finished
   ``SETTLED_MS`` after its last write.

So a file that is moved in is taken at once, and so is one that was written in place and closed. What happens
to the name or the rights of a file tells nothing: its writer may go on. Files that only Hadoop reaches are
always taken for finished: object stores show none that is not.

The kernel tells by a *lease*: it gives a read lease on a file only if nobody has the file open to write to
it. The lease is given back at once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
from collections.abc import Iterable
from typing import Protocol

from tidemill.tasks.files.file_records import FoundFile

logger = logging.getLogger(__name__)

PATIENCE_MS = 10_000
"""How long the writer of a file may pause."""

SETTLED_MS = 1_000
"""How long a file must have stood still where nobody can tell whether it is open."""

REPORTED_AFTER_MS = 60_000
"""How long a file is left to later batches before the log warns."""


def is_being_written(path: str, status: os.stat_result, now_ms: int) -> bool:
    """Say whether a regular file is unfinished. ``status`` is its own, ``now_ms`` the wall clock's time."""
    age_ms = now_ms - status.st_mtime_ns // 1_000_000
    # A file of the near future was written by the clock of a file server that is ahead of ours; one of the
    # far future before somebody set the clock back.
    if abs(age_ms) >= PATIENCE_MS:  # 1
        return False
    is_open = _is_open_for_writing(path)
    return age_ms < SETTLED_MS if is_open is None else is_open  # 3, 2


def _is_open_for_writing(path: str) -> bool | None:
    """Say whether any process has the file open to write to it; None if the kernel does not tell."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Who opens the file to write while it is leased waits until the lease is given back, and the holder
        # gets a signal. The usual one, SIGIO, would end this process; nobody minds SIGURG.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


class WritingKnown(Protocol):
    """A lister that can tell whether a file of its listing is unfinished."""

    def is_being_written(self, file: FoundFile) -> bool: ...


class FinishedFiles:
    """Picks the finished files of each listing of a stream. The log names those that keep it waiting."""

    def __init__(self, lister: WritingKnown) -> None:
        self._lister = lister
        # Unfinished files: the time of the listing that first had them. 0: the log has warned.
        self._since_ms: dict[str, int] = {}

    def pick(
        self, listed: Iterable[FoundFile], time_ms: int
    ) -> tuple[list[FoundFile], list[FoundFile]]:
        """Return the files that a batch may take, and those to leave to a later listing."""
        finished: list[FoundFile] = []
        unfinished: list[FoundFile] = []
        for file in listed:
            (unfinished if self._lister.is_being_written(file) else finished).append(file)
        self._since_ms = {
            file.path: self._report(file, self._since_ms.get(file.path), time_ms)
            for file in unfinished
        }
        return finished, unfinished

    @staticmethod
    def _report(file: FoundFile, since_ms: int | None, time_ms: int) -> int:
        if since_ms is None:
            logger.info("file %s is still being written: a later batch reads it", file.path)
            return time_ms
        if since_ms == 0 or time_ms - since_ms < REPORTED_AFTER_MS:
            return since_ms
        logger.warning(
            "file %s has been written to for %d s, and is read when it stands still. A file that is appended "
            "to for ever never does: write files elsewhere, and move them into the directory",
            file.path,
            (time_ms - since_ms) // 1000,
        )
        return 0
