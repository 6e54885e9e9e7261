"""Who may read a checkpoint: its owner, or the group that the directory was made for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.checkpoint.local_storage import LocalStorage


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_all_kinds(directory: Path) -> None:
    storage = LocalStorage(str(directory))
    storage.write("program", b"token")
    with storage.open_write("state/0/1.delta", b"sums of the file") as file:
        file.write(b"rows")
    storage.open_append("received/blocks/1.log", b"head").close()
    with storage.lock("owner"):
        pass


def modes_in(directory: Path) -> tuple[set[int], set[int]]:
    found = [directory, *directory.rglob("*")]
    return (
        {mode_of(path) for path in found if path.is_file()},
        {mode_of(path) for path in found if path.is_dir()},
    )


@pytest.mark.usefixtures("umask")
def test_only_the_owner_may_read_what_tidemill_makes(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "checkpoint"
    write_all_kinds(directory)
    assert modes_in(directory) == ({0o600}, {0o700})
    assert len(list(directory.rglob("*"))) >= 8


@pytest.mark.usefixtures("umask")
def test_a_directory_that_everybody_may_read_is_not_a_wish(tmp_path: Path) -> None:
    for mode in (0o755, 0o777):
        directory = tmp_path / str(mode)
        directory.mkdir()
        directory.chmod(mode)
        write_all_kinds(directory)
        assert modes_in(directory) == ({0o600}, {0o700, mode})


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o770, 0o775, 0o2770, 0o2750])
def test_a_directory_for_a_group_is_shared_with_it(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    directory.chmod(mode)
    write_all_kinds(directory)
    files, folders = modes_in(directory)
    assert files == {0o660}
    assert folders - {mode} <= {0o770, 0o2770}
    assert {path.stat().st_gid for path in directory.rglob("*")} == {directory.stat().st_gid}
