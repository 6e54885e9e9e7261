"""A directory that a query writes to, read by another: its manifest says which files are whole.

The writer's folder ``_spark_metadata`` is a log like that of a source
(:mod:`tidemill.sources.files.spark_file_log`), with a file for each batch, here ``_spark_metadata/3``::

    v1
    {"path":"file:///out/part-0.parquet","size":512,"isDir":false,
     "modificationTime":1772366400000,"blockReplication":1,"blockSize":33554432,"action":"add"}

A file that is in the directory and not in the manifest belongs to a batch that failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tidemill.checkpoint.storage import Storage
from tidemill.sources.files.directory import FoundFile
from tidemill.sources.files.file_stream_options import FileFilter
from tidemill.sources.files.file_tree import FileTree
from tidemill.sources.files.hadoop_paths import path_of
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.sources.files.spark_file_log import (
    batch_files,
    damaged,
    read_lines,
    valid_names,
)

MANIFEST_FOLDER = "_spark_metadata"


class ManifestTree:
    """The files that a manifest lists, instead of those that are there."""

    def __init__(
        self, storage: Storage, file_filter: FileFilter, seen: SeenFiles, files: FileTree
    ) -> None:
        """``storage`` is the folder of the manifest, ``files`` the directory that it is about."""
        self._storage = storage
        self._filter = file_filter
        self._seen = seen
        self._files = files
        self._last_read = -1
        self._candidates: list[FoundFile] = []

    def new_files(self) -> list[FoundFile]:
        found = {file.path: file for file in self._candidates}
        for file in self._listed():
            found[file.path] = file
        self._candidates = [
            file for file in found.values() if self._seen.is_new(file.path, file.modified_ms)
        ]
        return self._candidates

    def _listed(self) -> list[FoundFile]:
        """What has come since the last call. Old entries may come again, in a compact file."""
        while True:
            files = batch_files(self._storage.list(""))
            names = [name for number, name in valid_names(files) if number > self._last_read]
            try:
                listed = [file for name in names for file in self._parse(name)]
            except FileNotFoundError:
                continue  # the writer has compacted its log in between, and deleted what was listed
            self._last_read = max(files, default=self._last_read)
            return listed

    def size_of(self, uri: str) -> int | None:
        return self._files.size_of(uri)

    def is_gone(self, uri: str) -> bool:
        return self._files.is_gone(uri)

    def _parse(self, name: str) -> Iterable[FoundFile]:
        try:
            records = [json.loads(line) for line in read_lines(self._storage, name)]
            return [
                FoundFile(str(record["path"]), int(record["size"]), int(record["modificationTime"]))
                for record in records
                if record.get("action", "add") == "add"
                and not record.get("isDir")
                and self._filter.takes_name(path_of(record["path"]).rsplit("/", 1)[-1])
                and self._filter.takes_time(int(record["modificationTime"]))
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise damaged(self._storage, name, f"cannot be read ({error})") from None
