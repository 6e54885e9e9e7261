"""The input of a stream of files: a local path, a URI of Hadoop's, or a pattern of either."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.storage import Storage, open_storage
from tidemill.common.paths import split_path
from tidemill.errors import OptionError, SourceError
from tidemill.sources.files.clean_source import Archiver, Deleter, SourceCleaner, require_apart
from tidemill.sources.files.file_stream_options import FileStreamOptions
from tidemill.sources.files.file_tree import FileTree, HadoopTree, LocalTree
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.sources.files.sink_manifest import MANIFEST_FOLDER, ManifestTree
from tidemill.spark.files.hadoop_files import HadoopFileSystem, locate
from tidemill.spark.files.hadoop_paths import expand_braces, glob_regex, is_pattern
from tidemill.tasks.files.file_records import FoundFile

if TYPE_CHECKING:
    from pyspark import SparkContext


class FilePlace:
    """Knows what the path of a stream stands for, and how its files are listed and cleaned up."""

    def __init__(self, spark_context: SparkContext, path: str, options: FileStreamOptions) -> None:
        self._options = options
        self.path, is_local = locate(spark_context, path)
        if not is_local and not split_path(self.path)[0]:
            raise SourceError(
                f"{path!r} is a relative path, and the default file system is not local: write the whole URI",
                path,
            )
        self._hadoop = None if is_local else HadoopFileSystem(spark_context, self.path)
        self.is_pattern = is_pattern(self.path)
        try:
            for one in expand_braces(self.path) if self.is_pattern else ():
                for part in one.split("/"):
                    glob_regex(part)
        except ValueError as error:
            raise SourceError(f"{path!r} is not a pattern of paths: {error}", path) from None
        self.cleaner = self._cleaner(spark_context)

    @property
    def name(self) -> str:
        """The input's name in Spark's progress reports."""
        return self.path if self._hadoop is not None else f"file:{self.path}"

    def exists(self) -> bool:
        """Return True if the input is there. A pattern always is: it may match something at any time."""
        if self.is_pattern:
            return True
        if self._hadoop is None:
            return os.path.exists(self.path)
        return bool(self._hadoop.glob(self.path))

    def tree(self, seen: SeenFiles) -> FileTree:
        """Return what lists the files that are not in ``seen``."""
        files = self._listing(seen)
        if self.is_pattern:
            return files
        return InputTree(self, files, seen, self._options)

    def _listing(self, seen: SeenFiles) -> FileTree:
        where = self._options.filter, self._options.recursive, seen
        if self._hadoop is None:
            return LocalTree(self.path, *where)
        return HadoopTree(self._hadoop, self.path, *where)

    def manifest(self) -> Storage | None:
        """Return the manifest of the query that writes the input, or None if no query does."""
        if self._hadoop is None:
            folder = os.path.join(self.path, MANIFEST_FOLDER)
            return LocalStorage(folder) if os.path.isdir(folder) else None
        folder = f"{self.path}/{MANIFEST_FOLDER}"
        return open_storage(folder) if self._hadoop.glob(folder) else None

    def _cleaner(self, spark_context: SparkContext) -> SourceCleaner | None:
        if self._options.clean_source == "off":
            return None
        if self._options.clean_source == "delete":
            return Deleter(self._hadoop)
        assert self._options.archive_dir is not None
        archive, _ = locate(spark_context, self._options.archive_dir)
        require_apart(self.path, archive)
        return Archiver(self._hadoop, archive)


class InputTree:
    """The files of a directory, or those of its manifest once it has one.

    After files have been found without a manifest, nobody looks for one again.
    """

    def __init__(
        self, place: FilePlace, files: FileTree, seen: SeenFiles, options: FileStreamOptions
    ) -> None:
        self._place = place
        self._files = files
        self._seen = seen
        self._options = options
        self._decided = False

    def new_files(self) -> list[FoundFile]:
        if self._decided:
            return self._files.new_files()
        if self._use_manifest():
            return self._files.new_files()
        found = self._files.new_files()
        # A query may have made the manifest and the first files since the look for it.
        if found and not self._use_manifest():
            self._decided = True
            return found
        return self._files.new_files() if found else []

    def _use_manifest(self) -> bool:
        storage = self._place.manifest()
        if storage is None:
            return False
        if self._place.cleaner is not None:
            raise OptionError(
                f"option cleanSource cannot be used with {self._place.path}: another query writes it, and "
                f"its manifest ({MANIFEST_FOLDER}) would name files that are gone. Leave the option out",
                "cleanSource",
            )
        self._files = ManifestTree(storage, self._options.filter, self._seen, self._files)
        self._decided = True
        return True

    def size_of(self, uri: str) -> int | None:
        return self._files.size_of(uri)

    def is_gone(self, uri: str) -> bool:
        return self._files.is_gone(uri)
