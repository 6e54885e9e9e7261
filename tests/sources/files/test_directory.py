from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tidemill.common.clock import ManualClock
from tidemill.errors import InputUnavailableError
from tidemill.sources.files import directory_mark
from tidemill.sources.files.directory import LocalDirectory, is_ignored

LATER = 1 << 60


def put(directory: Path, name: str, modified_ms: int, text: str = "x") -> str:
    """Move a file into place, as a producer should."""
    staged = directory.parent / f"staged-{name}"
    staged.write_text(text)
    os.utime(staged, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    staged.rename(directory / name)
    return str(directory / name)


def paths(
    lister: LocalDirectory, after: int = 0, until: int = LATER, skip: object = ()
) -> set[str]:
    return {file.path for file in lister.find(after, until, skip)}  # type: ignore[arg-type]


@pytest.fixture
def incoming(tmp_path: Path) -> Path:
    directory = tmp_path / "incoming"
    directory.mkdir()
    return directory


@pytest.mark.parametrize(
    "name",
    [".hidden", "_SUCCESS", "part._COPYING_", "a.tmp", "a.inprogress", "a.filepart", "a.txt~"],
)
def test_hidden_and_unfinished_files_are_ignored(incoming: Path, name: str) -> None:
    put(incoming, name, 100)
    assert is_ignored(name)
    assert paths(LocalDirectory(str(incoming))) == set()


def test_files_are_found_by_their_modification_time(incoming: Path) -> None:
    put(incoming, "old", 100)
    good = put(incoming, "good", 101)
    edge = put(incoming, "edge", 200)
    put(incoming, "future", 201)
    assert paths(LocalDirectory(str(incoming)), after=100, until=200) == {good, edge}


def test_a_file_from_the_future_is_found_when_its_time_has_come(incoming: Path) -> None:
    lister = LocalDirectory(str(incoming))
    path = put(incoming, "future", 500)
    assert paths(lister, until=499) == set()
    assert paths(lister, until=500) == {path}


def test_the_size_and_time_of_a_file_are_known(incoming: Path) -> None:
    put(incoming, "a", 12_345, "four")
    (file,) = LocalDirectory(str(incoming)).find(0, LATER, ())
    assert (file.size, file.modified_ms) == (4, 12_345)


def test_subdirectories_and_dangling_links_are_no_files(incoming: Path) -> None:
    (incoming / "directory").mkdir()
    (incoming / "dangling").symlink_to(incoming / "nowhere")
    assert paths(LocalDirectory(str(incoming))) == set()


def test_a_link_to_a_file_is_one(incoming: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x")
    (incoming / "link").symlink_to(tmp_path / "elsewhere")
    assert paths(LocalDirectory(str(incoming))) == {str(incoming / "link")}


def test_a_link_is_read_when_what_it_leads_to_comes(incoming: Path, tmp_path: Path) -> None:
    """The directory with the link does not change by that."""
    first = put(incoming, "a", 100)
    (incoming / "link").symlink_to(tmp_path / "elsewhere")
    lister = LocalDirectory(str(incoming), ManualClock(1 << 42))
    assert paths(lister) == paths(lister) == {first}
    (tmp_path / "elsewhere").write_text("x")
    assert paths(lister) == {first, str(incoming / "link")}


def test_a_pattern_stands_for_all_its_directories_also_new_ones(tmp_path: Path) -> None:
    for day in ("01", "02"):
        (tmp_path / day / "in").mkdir(parents=True)
    first = put(tmp_path / "01" / "in", "a", 100)
    lister = LocalDirectory(str(tmp_path / "*" / "in"))
    assert paths(lister) == {first}
    (tmp_path / "03" / "in").mkdir(parents=True)
    second = put(tmp_path / "03" / "in", "b", 100)
    assert paths(lister) == {first, second}


def test_a_directory_that_is_missing_is_reported_once_and_read_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lister = LocalDirectory(str(tmp_path / "later"))
    assert paths(lister) == set()
    assert paths(lister) == set()
    assert caplog.text.count("cannot look into") == 1
    (tmp_path / "later").mkdir()
    path = put(tmp_path / "later", "a", 100)
    assert paths(lister) == {path}


def test_a_name_that_comes_to_stand_for_another_file_is_looked_at_again(incoming: Path) -> None:
    lister = LocalDirectory(str(incoming))
    put(incoming, "data", 50)
    assert paths(lister, after=100) == set()
    path = put(incoming, "data", 150)
    assert paths(lister, after=100) == {path}


class CountingOs:
    """Counts what is asked of the file system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stats = 0
        self.listings = 0
        stat, scandir = os.stat, os.scandir

        def counting_stat(path: str) -> os.stat_result:
            self.stats += 1
            return stat(path)

        def counting_scandir(path: str) -> object:
            self.listings += 1
            return scandir(path)

        monkeypatch.setattr("tidemill.sources.files.directory.os.stat", counting_stat)
        monkeypatch.setattr("tidemill.sources.files.directory.os.scandir", counting_scandir)


def test_thousands_of_old_files_cost_nothing_when_nothing_changes(
    incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3000):
        (incoming / f"old-{number}").touch()
        os.utime(incoming / f"old-{number}", (1, 1))
    monkeypatch.setattr(directory_mark, "_file_system", lambda device: "ext4")
    wall = ManualClock(int(incoming.stat().st_mtime * 1000) + 60_000)
    lister = LocalDirectory(str(incoming), wall)
    assert paths(lister, after=5000) == set()
    calls = CountingOs(monkeypatch)
    for _ in range(10):
        assert paths(lister, after=5000) == set()
    assert (calls.listings, calls.stats) == (0, 10)

    calls = CountingOs(monkeypatch)
    new = put(incoming, "new", 6000)
    assert paths(lister, after=5000) == {new}
    assert calls.listings == 1
    assert calls.stats <= 3, "of the old files only what their names stand for is compared"


def test_a_directory_that_changed_just_now_is_listed_again(
    incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the resolution of its clock a directory may change without showing it."""
    first = put(incoming, "a", 100)
    modified_ns = incoming.stat().st_mtime_ns
    lister = LocalDirectory(str(incoming), ManualClock(modified_ns // 1_000_000 + 10))
    assert paths(lister) == {first}
    second = put(incoming, "b", 100)
    os.utime(incoming, ns=(modified_ns, modified_ns))
    assert paths(lister) == {first, second}


@pytest.mark.parametrize("file_system", ["ext4", "fuse.s3fs"])
def test_a_directory_shows_what_comes_whatever_its_modification_time(
    incoming: Path, monkeypatch: pytest.MonkeyPatch, file_system: str
) -> None:
    """Archives are restored with their times; mounts of object stores keep neither of a directory's times."""
    monkeypatch.setattr(directory_mark, "_file_system", lambda device: file_system)
    if file_system != "ext4":
        monkeypatch.setattr("tidemill.sources.files.directory.mark_of", lambda status: (1, 2, 3, 4))
    expected = {put(incoming, "a", 100)}
    lister = LocalDirectory(str(incoming), ManualClock(1 << 42))
    for name in ("b", "c"):
        os.utime(incoming, (1000, 1000))
        assert paths(lister) == expected
        expected.add(put(incoming, name, 100))
        os.utime(incoming, (1000, 1000))
        assert paths(lister) == expected


@pytest.mark.parametrize("pattern", ["", "/*"])
@pytest.mark.parametrize("call", ["stat", "scandir", "listdir"])
def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(
    incoming: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, call: str
) -> None:
    inner = incoming / "x" if pattern else incoming
    inner.mkdir(exist_ok=True)
    path = put(inner, "a", 100)
    lister = LocalDirectory(f"{incoming}{pattern}")
    broken = incoming if call == "listdir" else inner
    real = getattr(os, call)

    def failing(asked: Any, *args: Any) -> Any:
        if os.fspath(asked) == str(broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(broken))
        return real(asked, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        if call == "listdir" and not pattern:
            assert paths(lister) == {path}  # nothing to match
        else:
            with pytest.raises(InputUnavailableError, match="Input/output error") as caught:
                paths(lister)
            assert caught.value.path == str(broken)
    assert paths(lister) == {path}


def test_a_new_file_with_an_old_name_and_its_inode_is_found(incoming: Path) -> None:
    lister = LocalDirectory(str(incoming))
    put(incoming, "current", 50)
    assert paths(lister, after=100) == set()
    for _ in range(5):  # a freed inode is often the next one handed out
        (incoming / "current").unlink()
        path = put(incoming, "current", 150)
        assert paths(lister, after=100) == {path}
        os.utime(incoming / "current", ns=(0, 0))
        assert paths(lister, after=100) == set()


def test_a_file_that_vanishes_while_it_is_looked_at_harms_nobody(
    incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, good = put(incoming, "gone", 100), put(incoming, "good", 100)
    stat = os.stat

    def vanishing_stat(path: str) -> os.stat_result:
        if path == gone:
            os.unlink(gone)
        return stat(path)

    lister = LocalDirectory(str(incoming))
    monkeypatch.setattr("tidemill.sources.files.directory.os.stat", vanishing_stat)
    assert paths(lister) == {good}


def test_with_a_recheck_in_turns_such_a_file_comes_late_but_comes(incoming: Path) -> None:
    for number in range(40):
        put(incoming, f"old-{number}", 50)
    wall = ManualClock(int(incoming.stat().st_mtime * 1000) + 60_000)
    lister = LocalDirectory(str(incoming), wall, recheck_over=10)
    assert paths(lister, after=100) == set()
    expected = set()
    for number in range(0, 40, 4):
        # In place: the name and the inode stay, the change time moves, as with a reused inode.
        path = incoming / f"old-{number}"
        path.write_text("new")
        os.utime(path, ns=(150_000_000, 150_000_000))
        expected.add(str(path))
    put(incoming, "another", 50)
    found: set[str] = set()
    for _ in range(10):
        found |= paths(lister, after=100)
    assert found == expected


def test_every_old_name_has_its_turn_in_a_directory_that_changes_all_the_time(
    incoming: Path,
) -> None:
    for number in range(40):
        put(incoming, f"old-{number}", 50)
    lister = LocalDirectory(str(incoming), recheck_over=10)
    assert paths(lister, after=100) == set()
    expected = set()
    for number in range(40):
        path = incoming / f"old-{number}"
        path.write_text("new")
        os.utime(path, ns=(150_000_000, 150_000_000))
        expected.add(str(path))
    found: set[str] = set()
    for number in range(10):
        put(incoming, f"another-{number}", 50)
        found |= paths(lister, after=100)
    assert found == expected
