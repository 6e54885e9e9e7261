"""The manifest of a directory that another query writes: it tells which files are whole.

The folder ``_spark_metadata`` in that directory is a compact log (:mod:`tidemill.checkpoint.compact_log`),
with a file for each batch, here ``_spark_metadata/3``::

    v1
    {"path":"file:///out/part-0.parquet","size":512,"isDir":false,
     "modificationTime":1772366400000,"blockReplication":1,"blockSize":33554432,"action":"add"}

A file in the directory that the manifest does not list belongs to a batch that failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tidemill.checkpoint.compact_log import batch_files, decode, first_gap, live_files
from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError
from tidemill.sources.files.file_stream_options import FileFilter
from tidemill.sources.files.file_tree import FileTree
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.spark.files.hadoop_paths import path_of
from tidemill.tasks.files.file_records import FoundFile

MANIFEST_FOLDER = "_spark_metadata"


class ManifestTree:
    """Finds the files that a manifest lists, instead of all files in the directory."""

    def __init__(
        self, storage: Storage, file_filter: FileFilter, seen: SeenFiles, files: FileTree
    ) -> None:
        """``storage`` is the folder of the manifest, ``files`` the directory that it describes."""
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
        """Return the files listed since the last call. Old ones may come again, in a compact file.

        A listing that lacks a batch is repeated: the writer may have compacted its log meanwhile. If the
        batch is still missing then, the manifest is damaged: nobody would ever read its files.
        """
        missing: int | None = None
        while True:
            files = batch_files(self._storage.list(""))
            live = live_files(files)
            before, missing = missing, first_gap(live)
            if missing is not None:
                if missing == before:
                    raise self._damaged(
                        f"{missing}", "is missing, although later batches are there"
                    )
                continue
            names = [name for number, name in live.items() if number > self._last_read]
            try:
                listed = [file for name in names for file in self._parse(name)]
            except FileNotFoundError:
                continue  # the writer has compacted its log and deleted a file since it was listed
            self._last_read = max(files, default=self._last_read)
            return listed

    def size_of(self, uri: str) -> int | None:
        return self._files.size_of(uri)

    def is_gone(self, uri: str) -> bool:
        return self._files.is_gone(uri)

    def _parse(self, name: str) -> Iterable[FoundFile]:
        try:
            records = [json.loads(line) for line in decode(self._storage.read(name))]
            return [
                FoundFile(str(record["path"]), int(record["size"]), int(record["modificationTime"]))
                for record in records
                if record.get("action", "add") == "add"
                and not record.get("isDir")
                and self._filter.takes_name(path_of(record["path"]).rsplit("/", 1)[-1])
                and self._filter.takes_time(int(record["modificationTime"]))
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._damaged(name, f"cannot be read ({error})") from None

    def _damaged(self, name: str, finding: str) -> DamagedCheckpointError:
        return DamagedCheckpointError(
            self._storage.full_name(name),
            finding,
            "Restore it from a backup: without it, nobody knows which files are whole. Or read another "
            "directory. Nothing has been changed.",
            self._storage.uri,
        )
