from __future__ import annotations

import builtins
import bz2
import errno
import gzip
import io
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.reports import Report
from tidemill.common.lines import split_lines
from tidemill.errors import InputUnavailableError
from tidemill.tasks.files import file_records
from tidemill.tasks.files.file_records import (
    WHOLE_FILE,
    BinaryRecords,
    FileSplit,
    FoundFile,
    LeftOut,
    ReadReport,
    TextLines,
    pack_splits,
    whole_line_pieces,
)


def version(path: Path | str) -> FoundFile:
    status = os.stat(path)
    return FoundFile(str(path), status.st_size, status.st_mtime_ns // 1_000_000)


def lines_of(data: bytes, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [
        line
        for start, end in pairwise(bounds)
        for piece in whole_line_pieces(io.BytesIO(data), start, end)
        for line in split_lines(piece)
    ]


texts = st.lists(st.text(alphabet="ab \t\u2028\x0c\x1c\u00e9", max_size=6))


@given(
    texts,
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 999), max_size=4),
    st.integers(1, 9),
)
def test_any_cut_of_a_file_gives_every_line_once(
    lines: list[str], end: str, last_has_end: bool, cuts: list[int], piece_bytes: int
) -> None:
    data = end.join(lines).encode() + (end.encode() if lines and last_has_end else b"")
    expected = lines if lines and (last_has_end or lines[-1]) else lines[:-1]
    before = file_records.PIECE_BYTES
    file_records.PIECE_BYTES = piece_bytes
    try:
        assert lines_of(data, cuts) == expected
    finally:
        file_records.PIECE_BYTES = before


def test_line_ends_of_all_kinds_and_a_byte_order_mark() -> None:
    assert lines_of(b"\xef\xbb\xbfa\nb\r\nc\rd\n\ne", []) == ["a", "b", "c", "d", "", "e"]


def test_only_line_ends_end_a_line() -> None:
    assert split_lines("a\x0bb\x0cc\x1cd\u2028e\u0085f\n".encode()) == [
        "a\x0bb\x0cc\x1cd\u2028e\u0085f"
    ]


def test_bytes_that_are_not_utf8_do_not_stop_the_stream() -> None:
    assert split_lines(b"caf\xe9\nok\n") == ["caf\ufffd", "ok"]


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 64),
)
def test_splits_cover_every_byte_once_and_cut_only_between_records(
    sizes: list[int], tasks: int, align: int
) -> None:
    files = [(FoundFile(f"f{n}", size, 0), True) for n, size in enumerate(sizes)]
    groups = pack_splits(files, tasks, align)
    splits = [split for group in groups for split in group]
    for file, _ in files:
        parts = [split for split in splits if split.file == file]
        assert [part.start for part in parts] == [0, *[part.end for part in parts[:-1]]][
            : len(parts)
        ]
        assert (parts[-1].end if parts else 0) == file.size
        assert all(part.start % align == 0 for part in parts)
    assert len(groups) <= tasks + len(files)


def test_text_lines_reads_splits_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\nthree\n")
    report: Any = Report()
    splits = [FileSplit(version(path), 0, 5), FileSplit(version(path), 5, 14)]
    assert list(TextLines(report)(0, splits)) == ["one", "two", "three"]
    assert report.value.records_of({version(path)}) == 3
    # A task that runs again, or an RDD computed by two output operations, changes no count.
    list(TextLines(report)(0, splits))
    assert report.value.records_of({version(path)}) == 3


def test_a_file_that_vanished_or_is_damaged_is_reported_and_left_out_if_the_user_has_asked(
    tmp_path: Path,
) -> None:
    good, torn = tmp_path / "good", tmp_path / "torn.gz"
    good.write_text("fine\n")
    torn.write_bytes(gzip.compress(b"x\n" * 5)[:-4])
    report: Any = Report()
    gone = FileSplit(FoundFile(str(tmp_path / "gone"), 5, 0), 0, 5)
    damaged = FileSplit(version(torn), 0, WHOLE_FILE)
    read = TextLines(report, LeftOut(missing=True, damaged=True))
    assert list(read(0, [gone, damaged, FileSplit(version(good), 0, 5)]))[-1] == "fine"
    assert list(report.value.problems) == [gone.file, damaged.file]
    assert report.value.problems[gone.file] == "cannot be read (No such file or directory)"
    report.value.forget({gone.file, damaged.file, version(good)})
    assert report.value == ReadReport()
    for split, setting in ((gone, "ignoreMissingFiles"), (damaged, "ignoreCorruptFiles")):
        with pytest.raises(InputUnavailableError, match=f"spark.files.{setting} to true") as caught:
            list(TextLines(report)(0, [split]))
        assert caught.value.path == split.file.path


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_was_replaced_is_not_the_one_that_was_found(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    os.utime(path, (100, 100))
    report: Any = Report()
    splits = [FileSplit(version(path), 0, 8)]
    path.write_text("ONE\nTWO\n" if change == "time" else "one\ntwo\nthree\n")
    os.utime(path, (200, 200) if change == "time" else (100, 100))
    for reader in (TextLines(report), BinaryRecords(4, report)):
        with pytest.raises(InputUnavailableError, match=r"of 8 bytes .* replaced by another"):
            list(reader(0, splits))
    assert list(TextLines(report, LeftOut(missing=True))(0, splits)) == []


@pytest.mark.parametrize("name", ["plain", "packed.gz", "packed.bz2"])
@pytest.mark.parametrize("change", ["append", "truncate", "overwrite"])
def test_a_file_that_is_written_to_while_it_is_read_gives_no_row_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    """Whatever the user lets the stream leave out: a part of one version and one of another is no file."""
    monkeypatch.setattr(file_records, "PIECE_BYTES", 1 << 16)
    before = [f"old {n}" for n in range(50_000)]
    data = "\n".join(before).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "packed.gz": lambda data: gzip.compress(data, 0),
        "packed.bz2": bz2.compress,
    }
    path = tmp_path / name
    path.write_bytes(packers.get(name, bytes)(data))
    os.utime(path, (100, 100))
    found = version(path)

    rows = TextLines(Report(), LeftOut(missing=True, damaged=True))(  # type: ignore[arg-type]
        0, [FileSplit(found, 0, WHOLE_FILE if name in packers else found.size)]
    )
    read = [next(rows)]
    with path.open("r+b") as file:
        if change == "append":
            file.seek(0, os.SEEK_END)
            file.write(b", continued\nnew\n")
        elif change == "truncate":
            file.truncate(found.size // 2)
        else:
            file.write(b"N" * found.size)
    with pytest.raises(InputUnavailableError, match="changed while its batch read it"):
        read.extend(rows)
    assert read == before[: len(read)]


def test_binary_records_of_a_file_that_is_written_to_while_it_is_read_are_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_records, "PIECE_BYTES", 1 << 16)
    path = tmp_path / "a"
    path.write_bytes(b"old." * (1 << 18))
    os.utime(path, (100, 100))
    records = BinaryRecords(4, Report())(0, [FileSplit(version(path), 0, 1 << 20)])  # type: ignore[arg-type]
    read = [next(records)]
    path.write_bytes(b"new." * (1 << 18))
    with pytest.raises(InputUnavailableError, match="changed while its batch read it"):
        read.extend(records)
    assert set(read) == {b"old."}


def test_a_file_that_is_written_to_after_it_was_read_has_given_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    rows = TextLines(Report())(0, [FileSplit(version(path), 0, 8)])  # type: ignore[arg-type]
    assert next(rows) == "one"
    path.write_text("one\ntwo\nthree\n")
    assert list(rows) == ["two"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("at", ["open", "read"])
def test_an_error_of_the_system_says_nothing_about_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, at: str
) -> None:
    """Whatever the user has asked for: the task fails, and its next attempt has all rows."""
    path = tmp_path / "a"
    path.write_text("one\ntwo\n")
    report: Any = Report()
    left_out = LeftOut(missing=True, damaged=True)
    splits = [FileSplit(version(path), 0, 8)]
    real = builtins.open

    def failing(*args: Any, **kwargs: Any) -> Any:
        error = OSError(number, os.strerror(number), str(path))
        if at == "open":
            raise error
        file = real(*args, **kwargs)

        class Broken(io.BytesIO):
            def readinto(self, buffer: Any, /) -> int:
                raise error

            def fileno(self) -> int:
                return int(file.fileno())

        return Broken()

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", failing)
        for reader in (TextLines(report, left_out), BinaryRecords(4, report, left_out)):
            with pytest.raises(InputUnavailableError, match=os.strerror(number)):
                list(reader(0, splits))
    assert report.value.problems == {}
    assert list(TextLines(report, left_out)(0, splits)) == ["one", "two"]
    assert list(BinaryRecords(4, report, left_out)(0, splits)) == [b"one\n", b"two\n"]


@given(st.binary(max_size=300), st.integers(1, 40), st.integers(1, 50), st.integers(1, 5))
def test_binary_records_come_whole_and_a_torn_end_is_reported(
    data: bytes, length: int, piece_bytes: int, tasks: int
) -> None:
    import tempfile

    before = file_records.PIECE_BYTES
    file_records.PIECE_BYTES = piece_bytes
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            report: Any = Report()
            found = version(file.name)
            groups = pack_splits([(found, True)], tasks, length)
            records = [r for group in groups for r in BinaryRecords(length, report)(0, group)]
    finally:
        file_records.PIECE_BYTES = before
    whole = len(data) // length
    assert records == [data[i * length : (i + 1) * length] for i in range(whole)]
    assert report.value.records_of({found}) == whole
    assert bool(report.value.problems) == bool(len(data) % length)


def test_a_long_line_without_an_end_is_read_in_linear_time() -> None:
    data = b"x" * (20 * file_records.PIECE_BYTES)
    (line,) = lines_of(data, [])
    assert len(line) == len(data)
