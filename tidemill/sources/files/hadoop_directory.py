"""Finding the new files of a directory that only Hadoop can reach (hdfs:, s3a:, ...)."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import TYPE_CHECKING

from tidemill.common.paths import split_path
from tidemill.errors import InputUnavailableError, OptionError
from tidemill.sources.files.directory import DirectoryLister, LocalDirectory, is_ignored
from tidemill.spark.files.hadoop_files import (
    HadoopFileSystem,
    HadoopStatus,
    is_not_found,
    java_reason,
    locate,
)
from tidemill.tasks.files.file_records import FoundFile

if TYPE_CHECKING:
    from pyspark import SparkContext

logger = logging.getLogger(__name__)


def lister_for(
    spark_context: SparkContext, directory: str, batches_remembered: int
) -> DirectoryLister:
    """Return the cheapest lister that can reach ``directory``: a path, a ``file:`` or any Hadoop URI."""
    path, is_local = locate(spark_context, directory)
    if not is_local:
        try:
            return HadoopDirectory(HadoopFileSystem(spark_context, path), path)
        except Exception as error:
            raise OptionError(
                f"the directory {path} cannot be watched, because Spark has no way to it: "
                f"{java_reason(error)}. Check the URI, or give Spark the jars of its file system.",
                "directory",
            ) from error
    # A file that a listing may overlook must be found while it is still within the remember window.
    return LocalDirectory(path, recheck_over=max(1, batches_remembered // 2))


def absolute_directory(spark_context: SparkContext, directory: str) -> str:
    """Return ``directory`` as it is found from anywhere a stream may be started again."""
    return directory if split_path(directory)[0] else locate(spark_context, directory)[0]


class HadoopDirectory:
    """A directory, or a glob pattern of directories, listed through Hadoop."""

    def __init__(self, file_system: HadoopFileSystem, directory: str) -> None:
        self.directory = directory
        self._fs = file_system
        self._reported = False

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[FoundFile]
    ) -> list[FoundFile]:
        try:
            files = self._all_files()
        except Exception as error:  # every kind of IOException has the same type
            raise InputUnavailableError(self.directory, java_reason(error)) from error
        return [
            file
            for file in files
            if modified_after_ms < file.modified_ms <= modified_until_ms and file not in skip
        ]

    def look_at(self, path: str) -> FoundFile | None:
        try:
            (status,) = self._fs.listing(path)  # of a file: the file itself
        except Exception as error:
            logger.debug("cannot look at %s: %s", path, java_reason(error))
            return None
        return FoundFile(path, status.size, status.modified_ms)

    def is_being_written(self, file: FoundFile) -> bool:
        return False

    def _all_files(self) -> list[FoundFile]:
        directories = [status for status in self._fs.glob(self.directory) if status.is_directory]
        if directories:
            self._reported = False
        elif not self._reported:
            self._reported = True
            logger.warning(
                "cannot list %s: there is no such directory; trying again at every batch",
                self.directory,
            )
        statuses = [each for one in directories for each in self._children(one)]
        return [
            FoundFile(status.path, status.size, status.modified_ms)
            for status in statuses
            if not status.is_directory and not is_ignored(status.name)
        ]

    def _children(self, directory: HadoopStatus) -> list[HadoopStatus]:
        try:
            return self._fs.listing(directory.path)
        except Exception as error:
            if is_not_found(error):
                return []  # gone since the directories were found
            raise
