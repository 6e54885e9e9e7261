"""What a directory stream knows of its files from one listing to the next."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import pytest
from pyspark import SparkContext

from tidemill.batches.batch import UNLIMITED, OffsetRange
from tidemill.batches.source import SourceRuntime
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.errors import InputUnavailableError
from tidemill.sources.files.record_readers import TextFilesSource
from tidemill.tasks.files.file_records import FoundFile
from tidemill.testing import ManualClock

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
        return next((file for file in self.files or [] if file.path == path), None)

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


FIRST = FoundFile("/data/file", 1, 10)
SECOND = FoundFile("/data/file", 2, 20)


@pytest.fixture
def source(sc: SparkContext, directory: Directory) -> TextFilesSource:
    """A source that has planned a batch with the first file of a name."""
    source = TextFilesSource(sc, directory, MINUTE_MS)
    source.defined(0)
    directory.files = [FIRST]
    assert source.latest_offset(0, UNLIMITED, 10) == 1
    return source


@pytest.fixture
def directory() -> Directory:
    return Directory()


def paths(source: TextFilesSource, start: int, end: int) -> list[tuple[str, int]]:
    size = source.size(OffsetRange(start, end))
    return [(size.description, size.bytes)]


def test_a_file_that_is_replaced_while_its_batch_waits_is_read_by_that_batch_alone(
    source: TextFilesSource, directory: Directory
) -> None:
    directory.files = [SECOND]
    assert source.latest_offset(1, UNLIMITED, 20) == 1
    assert paths(source, 0, 1) == [("/data/file", 2)]


def test_a_file_that_replaces_one_which_is_being_read_belongs_to_a_later_batch(
    source: TextFilesSource, directory: Directory
) -> None:
    source.read(OffsetRange(0, 1), 1)
    directory.files = [SECOND]
    assert source.latest_offset(1, UNLIMITED, 20) == 2
    assert paths(source, 0, 1) == [("/data/file", 1)]
    assert paths(source, 1, 2) == [("/data/file", 2)]


def test_a_replacement_that_is_being_written_waits_as_long_as_its_batch_does(
    source: TextFilesSource, directory: Directory
) -> None:
    directory.files = [SECOND]
    directory.being_written = {"/data/file"}
    assert source.latest_offset(1, UNLIMITED, 20) == 1
    assert paths(source, 0, 1) == [("/data/file", 1)]
    with pytest.raises(InputUnavailableError, match=r"/data/file: .* replaced by another"):
        source.read(OffsetRange(0, 1), 1)
    directory.being_written = set()
    source.processed(1)  # without a checkpoint, the stream goes on
    assert source.latest_offset(1, UNLIMITED, 30) == 2
    assert paths(source, 1, 2) == [("/data/file", 2)]


def test_a_file_that_was_repaired_after_days_is_known_through_the_next_restart(
    sc: SparkContext, directory: Directory, tmp_path: Path
) -> None:
    """What is known of the damaged file may be forgotten by then, and not what is known of the new one."""
    log = SourceLog(LocalStorage(str(tmp_path)), "files")

    def started(done: int, planned: int) -> TextFilesSource:
        source = TextFilesSource(sc, directory, MINUTE_MS)
        if not log.entries():
            source.defined(0)
        source.start(SourceRuntime(0, ManualClock(1 << 40), log))
        source.resumed(planned)
        source.processed(done)
        return source

    source = started(0, 0)
    directory.files = [FIRST]
    assert source.latest_offset(0, UNLIMITED, 10) == 1

    source = started(0, 1)
    repaired = FoundFile("/data/file", 2, 30 * HOUR_MS)
    directory.files = [repaired, FoundFile("/data/next", 1, 30 * HOUR_MS)]
    assert source.latest_offset(1, UNLIMITED, 30 * HOUR_MS) == 2
    source.read(OffsetRange(0, 1), 1)
    for end in (1, 2):
        source.processed(end)
        source.commit(end)

    source = started(2, 2)
    assert source.latest_offset(2, UNLIMITED, 30 * HOUR_MS + 1000) == 2


def test_a_stream_without_a_checkpoint_remembers_no_files_for_ever(
    source: TextFilesSource, directory: Directory
) -> None:
    for minute in range(1, 400):
        time_ms = minute * MINUTE_MS
        directory.files = [FoundFile(f"/data/{minute}", 1, time_ms)]
        end = source.latest_offset(minute, UNLIMITED, time_ms)
        assert end == minute + 1
        source.processed(end)
        source.commit(end)
    held = [value for value in vars(source).values() if isinstance(value, dict | set)]
    assert max(map(len, held)) < 200
