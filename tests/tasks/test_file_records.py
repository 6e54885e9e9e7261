from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.reports import Report
from tidemill.common.lines import split_lines
from tidemill.tasks import file_records
from tidemill.tasks.file_records import (
    BinaryRecords,
    FileSplit,
    ReadReport,
    TextLines,
    pack_splits,
    whole_line_pieces,
)


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
    files = [(f"f{number}", size, True) for number, size in enumerate(sizes)]
    groups = pack_splits(files, tasks, align)
    splits = [split for group in groups for split in group]
    for path, size, _ in files:
        parts = [split for split in splits if split.path == path]
        assert [part.start for part in parts] == [0, *[part.end for part in parts[:-1]]][
            : len(parts)
        ]
        assert (parts[-1].end if parts else 0) == size
        assert all(part.start % align == 0 for part in parts)
    assert len(groups) <= tasks + len(files)


def test_text_lines_reads_splits_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one\ntwo\nthree\n")
    report: Any = Report()
    splits = [FileSplit(str(path), 0, 5), FileSplit(str(path), 5, 14)]
    assert list(TextLines(report)(0, splits)) == ["one", "two", "three"]
    assert report.value.records_of({str(path)}) == 3
    # A task that runs again, or an RDD computed by two output operations, changes no count.
    list(TextLines(report)(0, splits))
    assert report.value.records_of({str(path)}) == 3


def test_a_file_that_vanished_or_cannot_be_read_is_reported_and_left_out(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("fine\n")
    report: Any = Report()
    splits = [
        FileSplit(str(tmp_path / "gone"), 0, 5),
        FileSplit(str(tmp_path), 0, 5),
        FileSplit(str(good), 0, 5),
    ]
    assert list(TextLines(report)(0, splits)) == ["fine"]
    assert report.value.problems == {
        str(tmp_path / "gone"): "cannot be read (No such file or directory)",
        str(tmp_path): "cannot be read (Is a directory)",
    }
    report.value.forget({str(tmp_path), str(tmp_path / "gone"), str(good)})
    assert report.value == ReadReport()


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
            groups = pack_splits([(file.name, len(data), True)], tasks, length)
            records = [r for group in groups for r in BinaryRecords(length, report)(0, group)]
    finally:
        file_records.PIECE_BYTES = before
    whole = len(data) // length
    assert records == [data[i * length : (i + 1) * length] for i in range(whole)]
    assert report.value.records_of({file.name}) == whole
    assert bool(report.value.problems) == bool(len(data) % length)


def test_a_long_line_without_an_end_is_read_in_linear_time() -> None:
    data = b"x" * (20 * file_records.PIECE_BYTES)
    (line,) = lines_of(data, [])
    assert len(line) == len(data)
