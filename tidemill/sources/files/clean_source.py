"""Cleaning up files that a query has read: ``option("cleanSource", "delete")`` or ``"archive"``.

A thread cleans up after the batch is committed. A file that cannot be cleaned up stays where it is, with a
warning; so do the files of a batch if the program ends right after it. Neither is read again.
"""

from __future__ import annotations

import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tidemill.common.paths import split_path
from tidemill.errors import OptionError
from tidemill.spark.files.hadoop_files import HadoopFileSystem, java_reason
from tidemill.spark.files.hadoop_paths import expand_braces, glob_regex, path_of

logger = logging.getLogger(__name__)


class SourceCleaner(ABC):
    """Cleans up files one after another, in the background."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clean-source")

    def clean(self, uris: Sequence[str]) -> None:
        for uri in uris:
            try:
                self._thread.submit(self._try, uri)
            except RuntimeError:  # the program is ending: the thread accepts nothing new
                self._try(uri)

    def _try(self, uri: str) -> None:
        try:
            problem = self._clean(path_of(uri))
        except Exception as error:  # every kind of IOException has the same type
            problem = java_reason(error)
        if problem:
            logger.warning("file %s was read and stays where it is: %s", uri, problem)

    @abstractmethod
    def _clean(self, path: str) -> str | None:
        """Clean up one file, or return why that did not work."""

    def stop(self) -> None:
        """Wait for the files that are still to be cleaned up. Idempotent."""
        self._thread.shutdown()


class Deleter(SourceCleaner):
    """Deletes files."""

    def __init__(self, hadoop: HadoopFileSystem | None) -> None:
        super().__init__()
        self._hadoop = hadoop

    def _clean(self, path: str) -> str | None:
        if self._hadoop is None:
            os.unlink(path)
            return None
        return None if self._hadoop.delete(path) else "the file system did not delete it"


class Archiver(SourceCleaner):
    """Moves ``/in/a.csv`` to ``<archive>/in/a.csv``."""

    def __init__(self, hadoop: HadoopFileSystem | None, archive: str) -> None:
        super().__init__()
        self._hadoop = hadoop
        self._archive = archive.rstrip("/")

    def _clean(self, path: str) -> str | None:
        target = self._archive + split_path(path)[2]
        if self._hadoop is not None:
            moved = self._hadoop.move(path, target)
            return None if moved else f"the file system did not move it to {target}"
        if os.path.lexists(target):
            return f"{target} is there already"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.move(path, target)
        return None


def require_apart(source: str, archive: str) -> None:
    """Refuse an archive whose files the stream would find again. Both are absolute; source may be a pattern.

    Compare as many parts of both as the shorter one has: everything below a directory that the stream reads
    belongs to the stream, and an archive may get files where the pattern looks.
    """
    if split_path(source)[:2] != split_path(archive)[:2]:
        raise OptionError(
            f"option sourceArchiveDir is {archive!r}, which is in another file system than the input "
            f"{source!r}: files can only be moved within one",
            "sourceArchiveDir",
        )
    archive_parts = [part for part in split_path(archive)[2].split("/") if part]
    for pattern in expand_braces(split_path(source)[2]):
        source_parts = [part for part in pattern.split("/") if part]
        pairs = zip(source_parts, archive_parts, strict=False)
        if all(glob_regex(wanted).fullmatch(part) for wanted, part in pairs):
            raise OptionError(
                f"option sourceArchiveDir is {archive!r}, where the stream would find the files again "
                f"that it has read from {source!r}: choose a directory neither below nor above the input",
                "sourceArchiveDir",
            )
