"""The files of a batch between Spark's tasks and their place.

::

    _tidemill_staging/
      5c8bf0d5-2a3a-4a7e-9f0e-0b6b2f4f8a11/     the query
        7/                                      the batch
          93d0c1aa/                             an attempt
            files/                              what Spark has written
              day=1/part-00000-6a1c.snappy.parquet
            journal                             where the files will be

Every attempt has a folder of its own: tasks of a driver that has been replaced may still write into theirs.

``journal``, whose last line says that it is whole. Before the files it has the folders that were not there
yet, with a slash: only those are removed with the files, if nothing else is in them::

    v1
    day=1/
    day=1/part-00000-6a1c.snappy.parquet
    end
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence

from tidemill.checkpoint.checksums import ChecksumError
from tidemill.common.fault_points import fault_point
from tidemill.errors import DamagedCheckpointError
from tidemill.sinks.files.target_directory import TargetDirectory

STAGING = "_tidemill_staging"
COMPARED = "compared"
"""What ``query.verify()`` writes there in place of a batch, to read it as the sink is read."""
BATCH_NUMBER = re.compile("[0-9]+")


class StagedBatch:
    """A new attempt of a batch, and all that earlier ones have left."""

    def __init__(self, target: TargetDirectory, query_id: str, batch_id: int) -> None:
        self._target = target
        self._root = f"{STAGING}/{query_id}/{batch_id}"
        attempt = f"{self._root}/{uuid.uuid4().hex[:8]}"
        self._journal = f"{attempt}/journal"
        self.folder = f"{attempt}/files"
        """Where Spark is to write."""

    def make_durable(self) -> list[str]:
        """The contents of what Spark has written, and a journal of where it goes. Paths below the target."""
        files = list(self._written(self.folder))
        self._target.sync(files)
        places = [path.removeprefix(f"{self.folder}/") for path in files]
        text = "\n".join(["v1", *self._new_folders(places), *places, "end"])
        self._target.create(self._journal, text.encode())
        return places

    def _new_folders(self, places: Sequence[str]) -> list[str]:
        """Return the folders of these files that are not there yet, each after the one above it."""
        folders: set[str] = set()
        for place in places:
            while place := place.rpartition("/")[0]:
                folders.add(place)
        new: list[str] = []
        for folder in sorted(folders):
            if f"{folder.rpartition('/')[0]}/" in new or self._target.entry(folder) is None:
                new.append(f"{folder}/")
        return new

    def _written(self, folder: str) -> Iterator[str]:
        """The data files. A folder is that of a partition, whatever its column is called."""
        for entry in self._target.list(folder):
            if entry.is_folder:
                if "=" in entry.name:
                    yield from self._written(entry.path)
            elif not entry.name.startswith((".", "_")):
                yield entry.path

    def move(self, places: Sequence[str]) -> Sequence[str]:
        """Put the files of the journal into place."""
        for place in places:
            self._target.move(f"{self.folder}/{place}", place)
            fault_point("sink.move")
        self._target.sync_names(places)
        return places

    def undo(self) -> None:
        """Remove all attempts of a batch that is not committed: what is in place first, the journal last."""
        for attempt in self._target.list(self._root):
            self._undo(f"{attempt.path}/journal")
        self.remove()

    def _undo(self, journal: str) -> None:
        try:
            version, *places, end = self._target.read(journal).decode().split("\n")
        except (FileNotFoundError, NotADirectoryError):
            return  # nothing has been moved without a journal
        except ChecksumError as error:
            raise DamagedCheckpointError(
                f"{self._target.uri}/{journal}",
                f"cannot be read ({error})",
                "It names the files of a batch that was interrupted, which have to go. Restore it from a "
                "backup. Without one: of the newest data files (part-...), delete those that no file of "
                "_spark_metadata names, and then the journal. Leave older files, those of others, and a "
                "checkpoint in the directory alone.",
                self._target.uri,
            ) from None
        assert (version, end) == ("v1", "end"), f"{journal} is cut off"
        for place in reversed(places):  # files first, then their folders, the deepest first
            if place.endswith("/"):
                self._target.delete_folder(place.removesuffix("/"), only_if_empty=True)
            else:
                self._target.delete(place)
        if places:
            fault_point("sink.undone")

    def remove(self) -> None:
        """Remove the folder of a batch that has been committed."""
        self._target.delete_folder(self._root)

    @staticmethod
    def remove_empty_folders(target: TargetDirectory, query_id: str) -> None:
        target.delete_folder(f"{STAGING}/{query_id}", only_if_empty=True)
        target.delete_folder(STAGING, only_if_empty=True)


def remove_all_staging(target: TargetDirectory, query_id: str, latest: int | None) -> None:
    """After a crash: undo what is not in the manifest, whose newest batch is ``latest``, forget what is."""
    target.delete_folder(f"{STAGING}/{query_id}/{COMPARED}")
    for entry in target.list(f"{STAGING}/{query_id}"):
        if BATCH_NUMBER.fullmatch(entry.name):
            staged = StagedBatch(target, query_id, int(entry.name))
            if latest is not None and int(entry.name) <= latest:
                staged.remove()
            else:
                staged.undo()
