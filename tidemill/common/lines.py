"""Text that is cut into lines, in C."""

from __future__ import annotations


def split_lines(piece: bytes) -> list[str]:
    """The lines of a piece of text. They end with ``\\n``, ``\\r\\n`` or ``\\r``, as in Hadoop and Java.

    Bytes that are not UTF-8 become U+FFFD. A last line without an end is a line.
    """
    text = piece.decode("utf-8", "replace")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # str.splitlines would also split at form feeds and Unicode separators, which are data.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def count_lines(piece: bytes) -> int:
    """How many :func:`split_lines` would give."""
    if not piece:
        return 0
    ends = piece.count(b"\n")
    if b"\r" in piece:
        ends += piece.count(b"\r") - piece.count(b"\r\n")
    return ends if piece.endswith((b"\n", b"\r")) else ends + 1
