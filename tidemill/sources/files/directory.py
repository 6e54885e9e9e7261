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
from tidemill.sources.files.directory_mark import Mark, lasting_mark, mark_of

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIXES = ("._COPYING_", ".tmp", ".inprogress", ".filepart", "~")
"""Suffixes that tools give to an unfinished file: ``hdfs dfs -put``, editors, uploaders."""


def is_ignored(name: str) -> bool:
    """Return True for a hidden file (``.x``, ``_x``, as in Hadoop) and one that is still being written."""
    return name.startswith((".", "_")) or name.endswith(TEMPORARY_SUFFIXES)


def is_missing(error: OSError) -> bool:
    """Return True if a path is not there, or is a link that leads nowhere, rather than hard to reach now."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True)
class FoundFile:
    """A file of a listing."""

    path: str
    size: int
    modified_ms: int


class DirectoryLister(Protocol):
    """Lists a directory, or all directories that match a pattern."""

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[str]
    ) -> list[FoundFile]:
        """Return the files modified after the one time and not after the other, without those in ``skip``.

        ``modified_after_ms`` never goes back from one call to the next. A directory that is missing is
        reported in the log and counts as empty. Raise :class:`InputUnavailableError` for one that is there
        and cannot be listed: its files are not known, which is not the same as none.
        """
        ...


@dataclass
class _DirectoryMemory:
    """One directory as the last listing found it.

    ``too_old`` has the names of files that were modified too long ago to be new, each with its inode and
    change time: a name can be given to another file later, which may even have the same inode.
    """

    too_old: dict[str, tuple[int, int]] = field(default_factory=dict)
    candidates: list[str] = field(default_factory=list)
    last_mark: Mark | None = None
    lasting_mark: Mark | None = None
    listings: int = 0
    listings_since_change: int = 0


def _identity(path: str) -> tuple[int, int] | None:
    """Return the inode and change time of a file, or of a symbolic link itself. None if it is gone."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_ctime_ns


class LocalDirectory:
    """A directory, or a glob pattern of directories, that the operating system can read.

    A directory that certainly has not changed (:mod:`tidemill.sources.files.directory_mark`) is not listed
    again, so its files cost nothing. A file that is rewritten in place, without a move, does not count as
    new. In a directory that is listed, old files are recognized by name and inode, which come with the
    listing.

    That misses a new file that has the name and, by chance, the inode of an old one. Looking at each old file
    in every listing would be the most expensive part of a batch, so each is looked at in one of
    ``recheck_over`` listings: such a file comes late, but is not lost.
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
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[str]
    ) -> list[FoundFile]:
        found = []
        memories = {}
        try:
            for directory in _matching(self.directory) if self._is_pattern else [self.directory]:
                memory = self._memories.get(directory) or _DirectoryMemory()
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

    def _list(self, directory: str, memory: _DirectoryMemory) -> None:
        """Update ``memory.candidates``, the names that may be new files."""
        now_ms = self._wall_clock.wall_ms()
        status = os.stat(directory)
        mark = mark_of(status)
        if mark == memory.lasting_mark:
            return
        if mark != memory.last_mark:
            memory.listings_since_change = 0
        # Turns continue through changes: a directory may change before every listing.
        turn = memory.listings % self._recheck_over
        memory.listings += 1
        memory.listings_since_change += 1
        still_too_old = {}
        candidates = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_ignored(entry.name):
                    continue
                known = memory.too_old.get(entry.name)
                if (
                    known is not None
                    and known[0] == entry.inode()
                    and (
                        hash(entry.name) % self._recheck_over != turn
                        or known == _identity(entry.path)
                    )
                ):
                    still_too_old[entry.name] = known
                else:
                    candidates.append(entry.name)
        memory.too_old = still_too_old
        memory.candidates = candidates
        memory.last_mark = mark
        # Only when every old name has had its turn since the last change.
        is_checked = memory.listings_since_change >= self._recheck_over
        memory.lasting_mark = lasting_mark(status, now_ms) if is_checked else None

    def _look_at_candidates(
        self,
        directory: str,
        memory: _DirectoryMemory,
        modified_after_ms: int,
        modified_until_ms: int,
        skip: Container[str],
    ) -> list[FoundFile]:
        found = []
        remaining = []
        for name in memory.candidates:
            path = os.path.join(directory, name)
            if path in skip:
                remaining.append(name)
                continue
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
                    memory.too_old[name] = identity
                continue
            remaining.append(name)
            if modified_ms <= modified_until_ms:
                found.append(FoundFile(path, status.st_size, modified_ms))
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
