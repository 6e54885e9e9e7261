"""Finding the new files of a directory that the operating system can list, cheaply."""

from __future__ import annotations

import errno
import fnmatch
import glob
import logging
import os
import stat
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.common.clock import Clock, SystemClock
from tidemill.errors import InputUnavailableError
from tidemill.sources.files.being_written import is_being_written
from tidemill.sources.files.directory_mark import Mark, lasting_mark, mark_of
from tidemill.tasks.files.file_records import FoundFile

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIXES = ("._COPYING_", ".tmp", ".inprogress", ".filepart", "~")
"""Suffixes that tools give to an unfinished file: ``hdfs dfs -put``, editors, uploaders."""


def is_ignored(name: str) -> bool:
    """Return True for a hidden file (``.x``, ``_x``, as in Hadoop) and one that is still being written."""
    return name.startswith((".", "_")) or name.endswith(TEMPORARY_SUFFIXES)


def is_missing(error: OSError) -> bool:
    """Return True if a path is not there, or is a link that leads nowhere, rather than hard to reach now."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class DirectoryLister(Protocol):
    """Lists a directory, or all directories that match a pattern."""

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[FoundFile]
    ) -> list[FoundFile]:
        """Return the files modified after the one time and not after the other, without those in ``skip``.

        ``modified_after_ms`` goes back only with the machine's clock: a file that was too old before is then
        looked at in its turn. A directory that is missing is
        reported in the log and counts as empty. Raise :class:`InputUnavailableError` for one that is there
        and cannot be listed: its files are not known, which is not the same as none.
        """
        ...

    def look_at(self, path: str) -> FoundFile | None:
        """Return the file that has this path now. None if there is none, or nobody can tell."""
        ...

    def is_being_written(self, file: FoundFile) -> bool:
        """Say whether a file of a listing is unfinished (:mod:`tidemill.sources.files.being_written`)."""
        ...


Identity = tuple[int, int]
"""The inode and the change time of a file: nobody can change a file and keep both."""


@dataclass
class _DirectoryMemory:
    """One directory as the last listing found it.

    ``too_old`` has the names of files that were modified too long ago to be new, each with its identity: a
    name can be given to another file later, which may even have the same inode, and a file can be rewritten
    in place. The names are spread over as many groups as there are turns.
    """

    too_old: list[dict[str, Identity]]
    candidates: list[str] = field(default_factory=list)
    lasting_mark: Mark | None = None
    looks: int = 0

    def group(self, name: str) -> dict[str, Identity]:
        return self.too_old[hash(name) % len(self.too_old)]


def _identity(path: str) -> Identity | None:
    """Return the identity of a file, or of a symbolic link itself. None if it is gone."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_ctime_ns


class LocalDirectory:
    """A directory, or a glob pattern of directories, that the operating system can read.

    A directory that certainly has the same names (:mod:`tidemill.sources.files.directory_mark`) is not listed
    again. In a directory that is listed, old files are recognized by name and inode, which come with the
    listing.

    That misses an old file that is rewritten in place, and a new one that has the name and, by chance, the
    inode of an old one. Looking at each old file for every batch would be the most expensive part of it, so
    each is looked at in one of ``recheck_over`` calls: such a file comes late, but is not lost. Files that
    are not old are looked at in every call.
    """

    def __init__(
        self, directory: str, wall_clock: Clock | None = None, recheck_over: int = 1
    ) -> None:
        self.directory = os.path.abspath(directory)
        self._is_pattern = glob.has_magic(self.directory)
        self._wall_clock = wall_clock or SystemClock()
        self._recheck_over = recheck_over
        self._memories: dict[str, _DirectoryMemory] = {}
        self._reported: set[str] = set()

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[FoundFile]
    ) -> list[FoundFile]:
        found = []
        memories = {}
        try:
            for directory in _matching(self.directory) if self._is_pattern else [self.directory]:
                memory = self._memories.get(directory) or _DirectoryMemory(
                    [{} for _ in range(self._recheck_over)]
                )
                try:
                    self._list(directory, memory)
                except OSError as error:
                    if not is_missing(error):
                        raise
                    self._report_missing(directory, error)
                    continue
                self._reported.discard(directory)
                memories[directory] = memory
                found += self._look_at_candidates(
                    directory, memory, modified_after_ms, modified_until_ms, skip
                )
        except OSError as error:
            path = str(error.filename or self.directory)
            raise InputUnavailableError(path, error.strerror or str(error)) from error
        self._memories = memories
        return found

    def look_at(self, path: str) -> FoundFile | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return FoundFile(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def is_being_written(self, file: FoundFile) -> bool:
        try:
            status = os.stat(file.path)
        except OSError:
            return False  # the batch says what became of it
        if (status.st_size, status.st_mtime_ns // 1_000_000) != file[1:]:
            return True  # it has changed since it was listed
        return is_being_written(file.path, status, self._wall_clock.wall_ms())

    def _list(self, directory: str, memory: _DirectoryMemory) -> None:
        """Update ``memory.candidates``, the names that may be new files."""
        now_ms = self._wall_clock.wall_ms()
        status = os.stat(directory)
        turn = memory.looks % self._recheck_over
        memory.looks += 1
        self._recheck(directory, memory, turn)
        if mark_of(status) == memory.lasting_mark:
            return
        still_too_old: list[dict[str, Identity]] = [{} for _ in memory.too_old]
        candidates = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_ignored(entry.name):
                    continue
                group = hash(entry.name) % self._recheck_over
                known = memory.too_old[group].get(entry.name)
                if known is not None and known[0] == entry.inode():
                    still_too_old[group][entry.name] = known
                else:
                    candidates.append(entry.name)
        memory.too_old = still_too_old
        memory.candidates = candidates
        memory.lasting_mark = lasting_mark(status, now_ms)

    @staticmethod
    def _recheck(directory: str, memory: _DirectoryMemory, turn: int) -> None:
        """Look at the old files whose turn it is: one that has changed may be new."""
        group = memory.too_old[turn]
        changed = [
            name for name, known in group.items() if _identity(f"{directory}/{name}") != known
        ]
        for name in changed:
            del group[name]
        memory.candidates += changed

    def _look_at_candidates(
        self,
        directory: str,
        memory: _DirectoryMemory,
        modified_after_ms: int,
        modified_until_ms: int,
        skip: Container[FoundFile],
    ) -> list[FoundFile]:
        found = []
        remaining = []
        for name in memory.candidates:
            path = os.path.join(directory, name)
            try:
                identity = _identity(path)
                status = os.stat(path)
            except OSError as error:
                if not is_missing(error):
                    raise
                if (
                    identity is not None
                ):  # a link, and what it leads to may come without a new listing
                    remaining.append(name)
                continue
            modified_ms = status.st_mtime_ns // 1_000_000
            if not stat.S_ISREG(status.st_mode) or modified_ms <= modified_after_ms:
                if identity is not None:
                    memory.group(name)[name] = identity
                continue
            remaining.append(name)
            file = FoundFile(path, status.st_size, modified_ms)
            if modified_ms <= modified_until_ms and file not in skip:
                found.append(file)
        memory.candidates = remaining
        return found

    def _report_missing(self, path: str, error: OSError) -> None:
        if path not in self._reported:
            self._reported.add(path)
            logger.warning("cannot look into %s: %s; trying again at every batch", path, error)


def _matching(pattern: str) -> list[str]:
    """Return the paths that match an absolute pattern, as ``glob`` does.

    ``OSError`` for a directory that cannot be listed, where ``glob`` finds nothing.
    """
    paths = ["/"]
    for part in pattern.split("/"):
        if not glob.has_magic(part):
            paths = [os.path.join(path, part) for path in paths]
            continue
        matched = []
        for path in paths:
            try:
                names = fnmatch.filter(os.listdir(path), part)
            except (FileNotFoundError, NotADirectoryError):
                continue
            shown = [name for name in names if part[0] == "." or name[0] != "."]
            matched += [os.path.join(path, name) for name in shown]
        paths = matched
    return [path for path in paths if os.path.lexists(path)]
