from __future__ import annotations

import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.waiting import wait_for
from tidemill.common.clock import ManualClock
from tidemill.sources.files import being_written
from tidemill.sources.files.being_written import (
    PATIENCE_MS,
    REPORTED_AFTER_MS,
    SETTLED_MS,
    FinishedFiles,
    is_being_written,
)
from tidemill.sources.files.directory import LocalDirectory
from tidemill.sources.files.file_stream_options import FileFilter
from tidemill.sources.files.file_tree import LocalTree
from tidemill.sources.files.seen_files import SeenFiles
from tidemill.tasks.files.file_records import FoundFile

pytestmark = pytest.mark.skipif(
    not hasattr(fcntl, "F_SETLEASE"), reason="only Linux tells who has a file open"
)


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[BinaryIO]:
    """A file that a copy has begun to write."""
    (tmp_path / "incoming").mkdir()
    with open(tmp_path / "incoming" / "file", "wb", buffering=0) as file:
        file.write(b"half a li")
        yield file


def ask(path: str | Path, age_ms: int = 0) -> bool:
    """Ask about a file as if its last write was ``age_ms`` ago."""
    status = os.stat(path)
    return is_being_written(str(path), status, status.st_mtime_ns // 1_000_000 + age_ms)


@pytest.fixture(params=["no lease", "another user"])
def untold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not tell who has a file open."""
    if request.param == "no lease":
        monkeypatch.delattr(being_written.fcntl, "F_SETLEASE")
    else:

        def refuse(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(being_written.fcntl, "fcntl", refuse)


def test_a_file_is_finished_when_its_writer_closes_it(copied: BinaryIO) -> None:
    assert ask(copied.name)
    copied.write(b"ne\n")
    assert ask(copied.name)
    copied.close()
    assert not ask(copied.name)


def test_a_file_that_was_moved_in_is_finished(copied: BinaryIO) -> None:
    copied.close()
    moved = copied.name + "-moved"
    os.rename(copied.name, moved)
    assert not ask(moved)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.chmod(path, 0o600),
        lambda path: os.link(path, path + "-linked") or os.unlink(path + "-linked"),
        lambda path: os.rename(path, path + "-moved") or os.rename(path + "-moved", path),
        lambda path: os.utime(path, ns=(1, os.stat(path).st_mtime_ns - 1)),
    ],
    ids=["rights", "link", "name", "times"],
)
def test_a_change_that_is_no_write_does_not_make_a_file_finished(
    copied: BinaryIO, change: Callable[[str], object]
) -> None:
    def is_told_by_its_times() -> bool:
        change(copied.name)
        status = os.stat(copied.name)
        return status.st_ctime_ns != status.st_mtime_ns

    wait_for(is_told_by_its_times, "a tick of the kernel's clock", 60)
    assert ask(copied.name)


def test_a_writer_that_has_stalled_is_not_waited_for(copied: BinaryIO) -> None:
    assert ask(copied.name, PATIENCE_MS - 1)
    assert not ask(copied.name, PATIENCE_MS)


def test_a_file_must_stand_still_where_nobody_tells(copied: BinaryIO, untold: None) -> None:
    assert ask(copied.name, SETTLED_MS - 1)
    assert not ask(copied.name, SETTLED_MS)
    assert ask(copied.name, -1), "the clock of the file server is ahead"
    assert not ask(copied.name, -PATIENCE_MS), "the clock was set back"


def test_whoever_opens_the_file_at_that_moment_only_waits(
    copied: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal that the kernel sends then must not end the process, as its default would."""
    copied.close()
    set_lease = fcntl.fcntl
    opened: list[bool] = []

    def open_while_leased(file: int, command: int, argument: int) -> int:
        result = set_lease(file, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_RDLCK):
            with pytest.raises(BlockingIOError):
                os.open(copied.name, os.O_WRONLY | os.O_NONBLOCK)
            opened.append(True)
        return result

    monkeypatch.setattr(being_written.fcntl, "fcntl", open_while_leased)
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    assert not ask(copied.name)
    assert opened == [True]
    os.close(os.open(copied.name, os.O_WRONLY | os.O_NONBLOCK))  # the lease was given back


def listed_ms(file: BinaryIO) -> int:
    return os.stat(file.name).st_mtime_ns // 1_000_000 + 1


def test_a_directory_tells_of_its_files(copied: BinaryIO) -> None:
    folder = os.path.dirname(copied.name)
    directory = LocalDirectory(folder, ManualClock(listed_ms(copied)))
    (half,) = directory.find(0, 1 << 60, ())
    assert directory.is_being_written(half)
    copied.write(b"ne\n")
    copied.close()
    assert directory.is_being_written(half), "it is another file than the one that was listed"
    (whole,) = directory.find(0, 1 << 60, ())
    assert not directory.is_being_written(whole)
    os.unlink(copied.name)
    assert not directory.is_being_written(whole)


@pytest.mark.parametrize("path_of", [os.path.dirname, str], ids=["directory", "single file"])
def test_a_query_takes_a_file_that_was_being_written_later_and_whole(
    copied: BinaryIO, path_of: Callable[[str], str]
) -> None:
    # Nothing in the directory changes any more, so that its old listing would do.
    clock = ManualClock(listed_ms(copied) + PATIENCE_MS // 2)
    tree = LocalTree(path_of(copied.name), FileFilter(), False, SeenFiles(), clock)
    assert tree.new_files() == []
    copied.write(b"ne\n")
    clock.set_to(max(clock.now_ms(), listed_ms(copied)))
    assert tree.new_files() == []
    copied.close()
    (whole,) = tree.new_files()
    assert whole.size == len(b"half a line\n")


class Written:
    def __init__(self) -> None:
        self.paths: set[str] = set()

    def is_being_written(self, file: FoundFile) -> bool:
        return file.path in self.paths


def test_finished_files_are_picked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lister = Written()
    lister.paths = {"b"}
    files = FinishedFiles(lister)
    a, b = FoundFile("a", 1, 1000), FoundFile("b", 1, 1001)
    assert files.pick([a, b], 2000) == ([a], [b])
    assert files.pick([b], 2000 + REPORTED_AFTER_MS - 1) == ([], [b])
    assert [record.levelname for record in caplog.records] == ["INFO"]
    for _ in range(3):
        assert files.pick([b], 2000 + REPORTED_AFTER_MS) == ([], [b])
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "file b has been written to for 60 s" in caplog.text
    lister.paths.clear()
    assert files.pick([b], 90_000) == ([b], [])
