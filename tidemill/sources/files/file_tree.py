"""Finding the files below a directory that a stream has not taken yet.

Directories named ``key=value`` are partitions, and everything below them belongs to the input. With
``recursiveFileLookup`` so does everything below any other directory.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.common.clock import Clock, SystemClock
from tidemill.errors import InputUnavailableError
from tidemill.sources.files.being_written import is_being_written
from tidemill.sources.files.directory import is_missing
from tidemill.sources.files.directory_mark import Mark, lasting_mark, mark_of
from tidemill.sources.files.file_stream_options import FileFilter
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.spark.files.hadoop_files import (
    HadoopFileSystem,
    HadoopStatus,
    is_not_found,
    java_reason,
)
from tidemill.spark.files.hadoop_paths import escaped, is_pattern, matching_paths, path_of, uri_of
from tidemill.tasks.files.file_records import FoundFile

logger = logging.getLogger(__name__)

RECHECK_MS = 10_000
"""How often files that were too old are looked at again; see :class:`_Folder`."""


class FileTree(Protocol):
    """Lists the input of a stream. Files are named by the URIs that Spark's logs have."""

    def new_files(self) -> list[FoundFile]:
        """Return all unseen files, in the order in which Spark's own listing has them.

        A directory that is not there has no files, and is reported once. Raise
        :class:`InputUnavailableError` for one that is there and cannot be listed: half a listing must not be
        taken for a whole one, because files that are missing in it could be too old when they show again.
        """
        ...

    def size_of(self, uri: str) -> int | None:
        """Return the bytes of a file, or None if it is gone. ``InputUnavailableError`` if nobody can tell."""
        ...

    def is_gone(self, uri: str) -> bool:
        """Return True if the file is certainly gone, False where finding out would take a remote call.

        ``InputUnavailableError`` if it may be there and nobody can tell at the moment.
        """
        ...


@dataclass
class _Folder:
    """One directory as the last listing found it.

    ``mark`` is what the directory's own status says until it changes, None if every look has to list it.
    ``uris`` has the files by name. ``too_old`` has the inodes of files that are neither new nor remembered.
    Such a name is looked at again when it has another inode, and every ``RECHECK_MS`` in any case: another
    file may, by chance, have the same one, and a file may be touched.
    """

    mark: Mark | None = None
    rechecked_ms: int = 0
    folders: list[str] = field(default_factory=list)
    uris: dict[str, str] = field(default_factory=dict)
    too_old: dict[str, int] = field(default_factory=dict)
    candidates: list[FoundFile] = field(default_factory=list)


class LocalTree:
    """A directory, a file or a pattern of either that the operating system can list.

    A directory that certainly has not changed (:mod:`tidemill.sources.files.directory_mark`) is not listed
    again, nor is a file that has been taken looked at again. So a directory of 10,000 files costs one call
    while nothing arrives, or a listing of names (some milliseconds) where nobody can tell.
    """

    def __init__(
        self,
        path: str,
        file_filter: FileFilter,
        recursive: bool,
        seen: SeenFiles,
        wall_clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._filter = file_filter
        self._recursive = recursive
        self._seen = seen
        self._wall_clock = wall_clock or SystemClock()
        self._folders: dict[str, _Folder] = {}
        self._visited: dict[str, _Folder] = {}
        self._reported: set[str] = set()

    def new_files(self) -> list[FoundFile]:
        self._visited = {}
        found: list[FoundFile] = []
        for root in self._roots():
            found += self._visit(root, self._recursive, frozenset())
        self._folders = self._visited
        return found

    def size_of(self, uri: str) -> int | None:
        try:
            return os.stat(path_of(uri)).st_size
        except OSError as error:
            if is_missing(error):
                return None
            raise _unavailable(path_of(uri), error) from error

    def is_gone(self, uri: str) -> bool:
        return self.size_of(uri) is None

    def _roots(self) -> list[str]:
        if not is_pattern(self._path):
            return [self._path]
        try:
            paths = matching_paths(self._path)
        except OSError as error:
            raise _unavailable(self._path, error) from error
        return [path for path in paths if not self._filter.hides(os.path.basename(path))]

    def _visit(
        self, path: str, everything: bool, above: frozenset[tuple[int, int]]
    ) -> list[FoundFile]:
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode):
                return self._single_file(path, status)
            identity = status.st_dev, status.st_ino
            if identity in above:
                return []  # a link to a directory above it
            folder = self._folders.get(path) or _Folder()
            if self._is_unchanged(folder, status):
                folder.candidates = [
                    file
                    for file in folder.candidates
                    if self._seen.is_new(file.path, file.modified_ms)
                ]
            else:
                self._list(path, folder, status)
        except OSError as error:
            if not is_missing(error):
                raise _unavailable(path, error) from error
            self._report_once(path, error)
            return []
        self._reported.discard(path)
        self._visited[path] = folder
        found = list(folder.candidates)
        for name in folder.folders:
            if everything or "=" in name:
                found += self._visit(os.path.join(path, name), True, above | {identity})
        return found

    def _is_unchanged(self, folder: _Folder, status: os.stat_result) -> bool:
        if folder.mark is None or folder.mark != mark_of(status):
            return False
        return not folder.too_old or not self._is_recheck_due(folder, self._wall_clock.wall_ms())

    def _is_recheck_due(self, folder: _Folder, now_ms: int) -> bool:
        return not 0 <= now_ms - folder.rechecked_ms < RECHECK_MS

    def _list(self, path: str, folder: _Folder, folder_status: os.stat_result) -> None:
        now_ms = self._wall_clock.wall_ms()
        rechecks = self._is_recheck_due(folder, now_ms)
        prefix = uri_of(path).rstrip("/")
        folders: list[str] = []
        uris: dict[str, str] = {}
        too_old: dict[str, int] = {}
        candidates: list[FoundFile] = []
        is_to_be_listed_again = False
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if self._filter.hides(name):
                    continue
                uri = folder.uris.get(name)
                if uri is not None and uri in self._seen:
                    uris[name] = uri
                    continue
                inode = folder.too_old.get(name)
                if inode is not None and inode == entry.inode() and not rechecks:
                    too_old[name] = inode
                    continue
                try:
                    if entry.is_dir():
                        folders.append(name)
                        continue
                    if not self._filter.takes_name(name) or not self._has_a_name(path, name):
                        continue
                    status = entry.stat()
                except OSError as error:
                    if is_missing(error):  # gone since it was listed, or a link that leads nowhere
                        # What a link leads to may come without any change of this directory.
                        is_to_be_listed_again |= entry.is_symlink()
                        continue
                    raise _unavailable(entry.path, error) from error
                if not stat.S_ISREG(status.st_mode):
                    continue
                uri = uris[name] = f"{prefix}/{uri_of('/' + name)[len('file:///') :]}"
                file = FoundFile(uri, status.st_size, status.st_mtime_ns // 1_000_000)
                if self._is_new(file):
                    if is_being_written(entry.path, status, now_ms):
                        is_to_be_listed_again = True
                        continue
                    candidates.append(file)
                elif uri not in self._seen:
                    too_old[name] = entry.inode()
        folder.folders, folder.uris = folders, uris
        folder.too_old, folder.candidates = too_old, candidates
        folder.mark = None if is_to_be_listed_again else lasting_mark(folder_status, now_ms)
        if rechecks:
            folder.rechecked_ms = now_ms

    def _single_file(self, path: str, status: os.stat_result) -> list[FoundFile]:
        name = os.path.basename(path)
        if not stat.S_ISREG(status.st_mode) or not self._has_a_name(path, name):
            return []
        if self._filter.hides(name) or not self._filter.takes_name(name):
            return []
        file = FoundFile(uri_of(path), status.st_size, status.st_mtime_ns // 1_000_000)
        if not self._is_new(file) or is_being_written(path, status, self._wall_clock.wall_ms()):
            return []
        return [file]

    def _is_new(self, file: FoundFile) -> bool:
        return self._filter.takes_time(file.modified_ms) and self._seen.is_new(
            file.path, file.modified_ms
        )

    def _has_a_name(self, path: str, name: str) -> bool:
        """Return False for a name that is not UTF-8: Spark can neither read nor log such a file."""
        if name.isascii():
            return True
        try:
            name.encode()
        except UnicodeEncodeError:
            self._report_once(os.path.join(path, name), "its name is not UTF-8")
            return False
        return True

    def _report_once(self, path: str, error: OSError | str) -> None:
        if path not in self._reported:
            self._reported.add(path)
            logger.warning(
                "cannot look into %s: %s; trying again at every batch", ascii(path), error
            )


def _unavailable(path: str, error: OSError) -> InputUnavailableError:
    return InputUnavailableError(path, error.strerror or str(error))


class HadoopTree:
    """A directory, a file or a pattern of either, listed through Hadoop (``hdfs:``, ``s3a:``, ...)."""

    def __init__(
        self,
        file_system: HadoopFileSystem,
        path: str,
        file_filter: FileFilter,
        recursive: bool,
        seen: SeenFiles,
    ) -> None:
        self._fs = file_system
        self._path = path
        self._filter = file_filter
        self._recursive = recursive
        self._seen = seen
        self._reported = False

    def new_files(self) -> list[FoundFile]:
        try:
            roots = self._fs.glob(self._path)
            if roots or is_pattern(self._path):
                self._reported = False
            elif not self._reported:
                self._reported = True
                logger.warning(
                    "cannot list %s: there is no such file or directory; trying again at every batch",
                    self._path,
                )
            found: list[FoundFile] = []
            for root in roots:
                if not (is_pattern(self._path) and self._filter.hides(root.name)):
                    found += self._visit(root, self._recursive)
        except Exception as error:  # every kind of IOException has the same type
            raise InputUnavailableError(self._path, java_reason(error)) from error
        return found

    def size_of(self, uri: str) -> int | None:
        try:
            statuses = self._fs.glob(escaped(path_of(uri)))
        except Exception as error:  # every kind of IOException has the same type
            raise InputUnavailableError(path_of(uri), java_reason(error)) from error
        return statuses[0].size if statuses else None

    def is_gone(self, uri: str) -> bool:
        return False

    def _visit(self, status: HadoopStatus, everything: bool) -> list[FoundFile]:
        if not status.is_directory:
            if not self._filter.takes_name(status.name):
                return []
            file = FoundFile(uri_of(status.path), status.size, status.modified_ms)
            is_new = self._filter.takes_time(file.modified_ms) and self._seen.is_new(
                file.path, file.modified_ms
            )
            return [file] if is_new else []
        try:
            children = self._fs.listing(status.path)
        except Exception as error:
            if is_not_found(error):
                return []  # gone since the directory above was listed
            raise
        shown = [child for child in children if not self._filter.hides(child.name)]
        found = []
        for child in shown:
            if not child.is_directory:
                found += self._visit(child, everything)
        for child in shown:
            if child.is_directory and (everything or "=" in child.name):
                found += self._visit(child, True)
        return found
