from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import StorageLevel

from tests.receivers.helpers import InThread
from tests.waiting import DEADLINE_S
from tidemill.common.processes import is_alive
from tidemill.receivers.blocks import files as block_files
from tidemill.receivers.blocks.files import (
    BlockFiles,
    BlockFolders,
    block_folders,
    map_block,
    sweep,
    write_block,
)

MEMORY_AND_DISK = StorageLevel.MEMORY_AND_DISK
MEMORY_ONLY = StorageLevel.MEMORY_ONLY
DISK_ONLY = StorageLevel.DISK_ONLY


@pytest.fixture
def folders(tmp_path: Path) -> BlockFolders:
    return BlockFolders(str(tmp_path / "memory"), str(tmp_path / "disk"), memory_bytes=100)


@pytest.fixture
def files(folders: BlockFolders) -> BlockFiles:
    folders.make()
    return BlockFiles(folders)


def block(size: int, fill: bytes = b"x") -> pa.Buffer:
    return pa.py_buffer(fill * size)


def where(path: str) -> str:
    return os.path.basename(os.path.dirname(path))


def test_what_is_put_can_be_mapped(files: BlockFiles) -> None:
    path = files.put("b-1", block(50), MEMORY_AND_DISK)
    assert where(path) == "memory"
    assert map_block(path).to_pybytes() == b"x" * 50
    assert files.path_of("b-1") == path
    assert os.listdir(os.path.dirname(path)) == ["b-1"]


def test_an_empty_block_can_be_mapped(files: BlockFiles) -> None:
    assert map_block(files.put("b", block(0), DISK_ONLY)).size == 0


def test_what_another_process_has_deleted_makes_room(files: BlockFiles) -> None:
    """The driver or the block server deletes the file, and the word to the receiver may get lost."""
    os.unlink(files.put("b-1", block(60), MEMORY_AND_DISK))
    assert where(files.put("b-2", block(60), MEMORY_AND_DISK)) == "memory"
    assert where(files.put("b-3", block(60), MEMORY_AND_DISK)) == "disk"


def test_first_memory_then_disk_and_deleting_makes_room(files: BlockFiles) -> None:
    assert where(files.put("a", block(60), MEMORY_AND_DISK)) == "memory"
    assert where(files.put("b", block(40), MEMORY_AND_DISK)) == "memory"
    assert where(files.put("c", block(1), MEMORY_AND_DISK)) == "disk"
    files.delete(["a", "b", "c", "never there"])
    for name in "abc":
        with pytest.raises(FileNotFoundError):
            files.path_of(name)
    assert where(files.put("d", block(100), MEMORY_AND_DISK)) == "memory"


@pytest.mark.parametrize(
    ("level", "size", "folder"),
    [
        (MEMORY_ONLY, 100, "memory"),
        (MEMORY_ONLY, 101, "disk"),  # not dropped
        (MEMORY_AND_DISK, 101, "disk"),
        (StorageLevel.MEMORY_ONLY_2, 100, "memory"),
        (DISK_ONLY, 1, "disk"),
    ],
)
def test_where_a_block_goes(files: BlockFiles, level: StorageLevel, size: int, folder: str) -> None:
    path = files.put("b", block(size), level)
    assert where(path) == folder
    assert files.path_of("b") == path


def test_without_a_file_system_in_memory_all_goes_to_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    files = BlockFiles(BlockFolders(None, str(tmp_path / "disk"), 100))
    assert where(files.put("b", block(1), MEMORY_ONLY)) == "disk"
    files.delete(["b"])
    assert os.listdir(tmp_path / "disk") == []


def test_a_block_that_is_put_again_counts_once(files: BlockFiles) -> None:
    files.put("b", block(60), MEMORY_AND_DISK)
    path = files.put("b", block(60, b"y"), MEMORY_AND_DISK)
    assert where(path) == "memory"
    assert map_block(path).to_pybytes() == b"y" * 60
    assert where(files.put("c", block(40), MEMORY_AND_DISK)) == "memory"


def test_when_memory_is_full_earlier_than_planned_the_block_goes_to_disk(
    files: BlockFiles, folders: BlockFolders
) -> None:
    assert folders.memory is not None
    os.rmdir(folders.memory)  # what any failed write looks like
    path = files.put("b", block(60), MEMORY_AND_DISK)
    assert where(path) == "disk"
    assert map_block(path).size == 60
    os.mkdir(folders.memory)
    assert where(files.put("c", block(100), MEMORY_AND_DISK)) == "memory"  # b takes none of it


def test_a_disk_that_is_full_is_an_error(files: BlockFiles, folders: BlockFolders) -> None:
    os.rmdir(folders.disk)
    with pytest.raises(FileNotFoundError):
        files.put("b", block(60), DISK_ONLY)


def test_a_mapped_block_survives_its_deletion(files: BlockFiles) -> None:
    mapped = map_block(files.put("b", block(5000), DISK_ONLY))
    files.delete(["b"])
    assert mapped.to_pybytes() == b"x" * 5000


def test_a_reader_never_sees_half_a_block(tmp_path: Path) -> None:
    path = str(tmp_path / "b")
    half, go_on = threading.Event(), threading.Event()

    def parts() -> object:
        yield block(10)
        half.set()
        go_on.wait(DEADLINE_S)
        yield block(10)

    writing = InThread(lambda: write_block(path, parts()))  # type: ignore[arg-type]
    assert half.wait(DEADLINE_S)
    with pytest.raises(FileNotFoundError):
        map_block(path)
    write_block(path, [block(20, b"y")])  # the same block, sent again meanwhile
    assert map_block(path).to_pybytes() == b"y" * 20
    go_on.set()
    writing.join()
    assert map_block(path).to_pybytes() == b"x" * 20
    assert os.listdir(tmp_path) == ["b"]


def test_what_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> object:
        yield block(10)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        write_block(str(tmp_path / "b"), failing())  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


# -- folders ---------------------------------------------------------------------------------------


def test_nobody_else_can_look_into_the_folders(folders: BlockFolders) -> None:
    assert folders.memory is not None
    os.mkdir(folders.disk, mode=0o755)
    before = os.umask(0)
    try:
        folders.make()
    finally:
        os.umask(before)
    for folder in (folders.memory, folders.disk):
        assert os.stat(folder).st_mode & 0o777 == 0o700
    folders.remove()
    assert not os.path.exists(folders.memory)
    assert not os.path.exists(folders.disk)
    folders.remove()


def test_a_task_that_comes_after_the_stop_does_not_make_the_folders_again(
    folders: BlockFolders, tmp_path: Path
) -> None:
    folders.make()
    folders.remove()
    late = BlockFiles(folders)
    for level in (MEMORY_AND_DISK, DISK_ONLY):
        with pytest.raises(FileNotFoundError):
            late.put("b", block(1), level)
    assert os.listdir(tmp_path) == []


def test_folders_take_no_more_than_half_of_the_memory_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_files, "SHARED_MEMORY", str(tmp_path))
    stat = os.statvfs(tmp_path)
    folders = block_folders("run", "/local", 1 << 60)
    assert folders.memory == str(tmp_path / "run")
    assert folders.disk == "/local/run"
    assert folders.memory_bytes <= stat.f_blocks * stat.f_frsize // 2
    assert block_folders("run", "/local", 5).memory_bytes == 5
    assert block_folders("run", "/local", 0).memory is None
    monkeypatch.setattr(block_files, "SHARED_MEMORY", str(tmp_path / "nothing here"))
    assert block_folders("run", "/local", 5) == BlockFolders(None, "/local/run", 0)


def a_dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_the_folders_of_the_dead_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, local = tmp_path / "memory", tmp_path / "local"
    monkeypatch.setattr(block_files, "SHARED_MEMORY", str(memory))
    dead = a_dead_pid()
    names = {
        f"tidemill-blocks-{dead}-run-1": False,
        f"tidemill-blocks-{10**30}-run-1": False,  # no process has ever had such a number
        f"tidemill-blocks-{os.getpid()}-run-1": True,
        "tidemill-blocks-1-run": True,
        f"tidemill-blocks-{dead}": True,  # not one of ours
        f"other-{dead}-run": True,
        f"my-tidemill-blocks-{dead}-run": True,
        "tidemill-blocks-x-run": True,
    }
    for parent in (memory, local):
        for name in names:
            (parent / name).mkdir(parents=True)
            (parent / name / "b").write_bytes(b"x")
    sweep(str(local))
    for parent in (memory, local):
        assert {name: (parent / name / "b").exists() for name in names} == names
    sweep(str(tmp_path / "not there"))


def test_what_somebody_claims_is_not_swept_whatever_its_name_says(tmp_path: Path) -> None:
    folder = tmp_path / f"tidemill-blocks-{a_dead_pid()}-run-1"
    folders = BlockFolders(None, str(folder), 0)
    folders.make()
    command = (
        "import sys; from tidemill.receivers.blocks.files import *; "
        "claim(BlockFolders(None, sys.argv[1], 0)); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        sweep(str(tmp_path))
        assert folder.exists()
        owner.kill()
    sweep(str(tmp_path))
    assert not folder.exists()


def test_who_is_alive() -> None:
    assert is_alive(os.getpid())
    assert is_alive(1)
    assert not is_alive(a_dead_pid())
