"""Finding the new files of a directory that only Hadoop can reach (hdfs:, s3a:, ...)."""

from __future__ import annotations

import logging
import os
from collections.abc import Container
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tidemill.common.clock import Clock, SystemClock
from tidemill.sources.files.directory import DirectoryLister, FoundFile, LocalDirectory, is_ignored
from tidemill.spark.files.hadoop_files import HadoopFileSystem, default_file_system

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)


def lister_for(
    spark_context: SparkContext, directory: str, batches_remembered: int
) -> DirectoryLister:
    """The cheapest lister that can reach ``directory``: a path, a ``file:`` URI, or any Hadoop URI.

    A path without a scheme is local only if that is what Spark would take it for.
    """
    # A file that a listing may overlook must be found while it is still within the remember window.
    recheck_over = max(1, batches_remembered // 2)
    scheme = urlsplit(directory).scheme
    if scheme == "file":
        return LocalDirectory(unquote(urlsplit(directory).path), recheck_over=recheck_over)
    if not scheme and default_file_system(spark_context).startswith("file:"):
        return LocalDirectory(directory, recheck_over=recheck_over)
    return HadoopDirectory(HadoopFileSystem(spark_context, directory), directory)


def absolute_directory(spark_context: SparkContext, directory: str) -> str:
    """``directory`` as it is found from anywhere, such as the place where a stream is started again."""
    is_relative_path = not urlsplit(directory).scheme and default_file_system(
        spark_context
    ).startswith("file:")
    return os.path.abspath(directory) if is_relative_path else directory


class HadoopDirectory:
    """A directory, or a glob pattern of directories, listed through Hadoop.

    A directory whose own modification time has not moved is not listed again. An object store does
    not keep one: there every batch lists.
    """

    SETTLED_AFTER_MS = LocalDirectory.SETTLED_AFTER_MS
    _UNSETTLED = -1

    def __init__(
        self, file_system: HadoopFileSystem, directory: str, wall_clock: Clock | None = None
    ) -> None:
        self.directory = directory
        self._fs = file_system
        self._wall_clock = wall_clock or SystemClock()
        self._listings: dict[str, tuple[int, list[FoundFile]]] = {}
        self._reported = False

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[str]
    ) -> list[FoundFile]:
        try:
            files = self._all_files()
        except Exception as error:  # every kind of IOException has the same type
            if not self._reported:
                self._reported = True
                reason = str(error).split("\n\tat ")[0].replace("\n", " ")
                logger.warning(
                    "cannot list %s: %s; trying again at every batch", self.directory, reason
                )
            return []
        self._reported = False
        return [
            file
            for file in files
            if modified_after_ms < file.modified_ms <= modified_until_ms and file.path not in skip
        ]

    def _all_files(self) -> list[FoundFile]:
        directories = [status for status in self._fs.glob(self.directory) if status.is_directory]
        if not directories:
            raise FileNotFoundError("there is no such directory")
        listings = {}
        for directory in directories:
            known = self._listings.get(directory.path)
            if known is None or known[0] != directory.modified_ms:
                known = self._list(directory.path, directory.modified_ms)
            listings[directory.path] = known
        self._listings = listings
        return [file for _, files in listings.values() for file in files]

    def _list(self, path: str, modified_ms: int) -> tuple[int, list[FoundFile]]:
        settled = 0 < modified_ms < self._wall_clock.wall_ms() - self.SETTLED_AFTER_MS
        files = [
            FoundFile(status.path, status.size, status.modified_ms)
            for status in self._fs.listing(path)
            if not status.is_directory and not is_ignored(status.path.rsplit("/", 1)[-1])
        ]
        return (modified_ms if settled else self._UNSETTLED), files
