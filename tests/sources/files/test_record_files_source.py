"""What a directory stream knows of its files from one listing to the next."""

from __future__ import annotations

from collections.abc import Container

from pyspark import SparkContext

from tidemill.batches.batch import UNLIMITED
from tidemill.errors import InputUnavailableError
from tidemill.sources.files.record_readers import TextFilesSource
from tidemill.tasks.file_records import FoundFile

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Directory:
    """A directory whose listing a test writes; None: it cannot be listed."""

    def __init__(self) -> None:
        self.files: list[FoundFile] | None = []
        self.being_written: set[str] = set()

    def find(
        self, modified_after_ms: int, modified_until_ms: int, skip: Container[FoundFile]
    ) -> list[FoundFile]:
        if self.files is None:
            raise InputUnavailableError("/data", "Stale file handle")
        return [
            file
            for file in self.files
            if modified_after_ms < file.modified_ms <= modified_until_ms and file not in skip
        ]

    def look_at(self, path: str) -> FoundFile | None:
        return None

    def is_being_written(self, file: FoundFile) -> bool:
        return file.path in self.being_written


def test_a_file_is_found_once_while_another_of_a_long_absence_is_being_written(
    sc: SparkContext,
) -> None:
    """The directory is back after ten hours, and one of the files that came meanwhile changes just now."""
    directory = Directory()
    source = TextFilesSource(sc, directory, MINUTE_MS)
    source.defined(0)

    def found(time_ms: int) -> int:
        end = source.latest_offset(0, UNLIMITED, time_ms)
        assert isinstance(end, int)
        return end

    assert found(MINUTE_MS) == 0
    directory.files = None
    assert found(2 * MINUTE_MS) == 0
    changing = FoundFile("/data/changing", 1, 3 * MINUTE_MS)
    directory.files = [changing, FoundFile("/data/whole", 1, 4 * MINUTE_MS)]
    directory.being_written = {"/data/changing"}
    assert found(10 * HOUR_MS) == 1
    assert found(10 * HOUR_MS + MINUTE_MS) == 1
    directory.being_written = set()
    assert found(10 * HOUR_MS + 2 * MINUTE_MS) == 2
    assert found(10 * HOUR_MS + 3 * MINUTE_MS) == 2
