"""The checksums beside local files: Hadoop's format, and no crash that looks like damage."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.checkpoint.drawings import flips
from tidemill.checkpoint import checksums as module
from tidemill.checkpoint.checksums import ChecksumError, read_checked, sums_of
from tidemill.checkpoint.local_storage import LocalStorage

# commits/0 of a checkpoint, and commits/.0.crc, as Spark 4.3 has written them.
OF_SPARK = b'v1\n{"nextBatchWatermarkMs":0}'
SUMS_OF_SPARK = bytes.fromhex("63726300 00000200 f32abfdd")


def test_the_sums_are_those_of_hadoop() -> None:
    assert sums_of(OF_SPARK) == SUMS_OF_SPARK
    assert sums_of(b"") == SUMS_OF_SPARK[:8]
    assert len(sums_of(b"x" * 512)) == 12
    assert len(sums_of(b"x" * 513)) == 16


def test_the_drawing_has_the_parts_of_a_sidecar() -> None:
    drawn = re.findall(
        r"^ {4}((?:[0-9a-f]{2} ){3}[0-9a-f]{2}) ", module.__doc__ or "", re.MULTILINE
    )
    assert bytes.fromhex("".join(drawn[:2])) == SUMS_OF_SPARK[:8]
    assert len(drawn) == len(sums_of(b"x" * 700)) // 4


def test_every_changed_byte_is_found_and_so_is_one_less_or_more(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("file", OF_SPARK)
    for data in [*flips(OF_SPARK), OF_SPARK[:-1], OF_SPARK + b"\n", b"", OF_SPARK * 40]:
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(ChecksumError, match=r"delete \.file\.crc"):
            storage.read("file")
    (tmp_path / ".file.crc").unlink()
    assert storage.read("file") == OF_SPARK * 40


def test_a_changed_sidecar_is_found(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("file", OF_SPARK)
    # A file of one piece is the same for any longer piece.
    changed = [sums for sums in flips(SUMS_OF_SPARK) if sums[4:8] == SUMS_OF_SPARK[4:8]]
    for sums in [*changed, SUMS_OF_SPARK[:-1], SUMS_OF_SPARK[:3], SUMS_OF_SPARK * 2]:
        (tmp_path / ".file.crc").write_bytes(sums)
        with pytest.raises(ChecksumError):
            storage.read("file")


@pytest.mark.parametrize("left", [b"", bytes(12), bytes(4096)])
def test_what_a_power_failure_leaves_of_a_sidecar_is_no_damage(tmp_path: Path, left: bytes) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("file", OF_SPARK)
    (tmp_path / ".file.crc").write_bytes(left)
    assert storage.read("file") == OF_SPARK


@pytest.mark.parametrize("call", ["replace", "rename", "unlink", "open", "write", "fsync"])
@pytest.mark.parametrize("occurrence", range(6))
def test_a_writer_that_dies_anywhere_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, occurrence: int
) -> None:
    """Each call of the operating system is the last one, once."""
    storage = LocalStorage(str(tmp_path))
    storage.write("file", b"old")
    actual, calls = getattr(os, call), iter(range(100))

    class Died(BaseException):
        pass

    def die_here(*args: object, **options: object) -> object:
        if next(calls) >= occurrence:
            raise Died
        return actual(*args, **options)

    monkeypatch.setattr(os, call, die_here)
    try:
        storage.write("file", b"new" * 300)
    except Died:
        pass
    finally:
        monkeypatch.undo()
    assert storage.read("file") in (b"old", b"new" * 300)
    storage.write("file", b"newer")
    assert storage.read("file") == b"newer"
    assert (tmp_path / ".file.crc").read_bytes() == sums_of(b"newer")


def test_a_full_disk_takes_a_file_without_its_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    LocalStorage(str(tmp_path)).write("file", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_within_a_sidecar_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system takes the part of it that has room, and reports no error."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:4096]))
    storage, large = LocalStorage(str(tmp_path)), bytes(1 << 20)
    storage.write("file", large)
    assert storage.read("file") == large
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_between_two_files_of_a_name_sees_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("file", b"old")
    read_sums = module._read_sums

    def replaced_meanwhile(path: str) -> bytes:
        sums = read_sums(path)
        monkeypatch.undo()
        storage.write("file", b"new")
        return sums

    monkeypatch.setattr(module, "_read_sums", replaced_meanwhile)
    assert read_checked(str(tmp_path / "file")) == b"new"


def test_a_deleted_file_takes_its_sidecar_along(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.write("offsets/7", b"x")
    storage.delete("offsets/7")
    assert list((tmp_path / "offsets").iterdir()) == []
