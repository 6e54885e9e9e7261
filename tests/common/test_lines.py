from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.common.lines import count_lines, split_lines

PIECES = st.lists(
    st.sampled_from(
        [b"a", b"\n", b"\r", b"\r\n", b"\xff", b"\xc3", "é\u2028".encode(), b"\x0b\x0c"]
    )
).map(b"".join)


@pytest.mark.parametrize(
    ("piece", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\rc\n\n", ["a", "b", "c", ""]),
        (b"\r\r\n\n\r", ["", "", "", ""]),
        (b"a\x0bb\x0cc", ["a\x0bb\x0cc"]),
        (b"\xe2\x82\n", ["\ufffd"]),
    ],
)
def test_lines(piece: bytes, lines: list[str]) -> None:
    assert split_lines(piece) == lines
    assert count_lines(piece) == len(lines)


@given(st.binary() | PIECES)
def test_the_count_is_the_number_of_lines(piece: bytes) -> None:
    assert count_lines(piece) == len(split_lines(piece))


@given(st.binary() | PIECES)
def test_lines_end_where_python_ends_them(piece: bytes) -> None:
    text = io.TextIOWrapper(io.BytesIO(piece), encoding="utf-8", errors="replace", newline=None)
    assert split_lines(piece) == [line.removesuffix("\n") for line in text]
