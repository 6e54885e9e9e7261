"""Splitting text into lines, at the speed of C."""

from __future__ import annotations


def split_lines(piece: bytes) -> list[str]:
    """Return the lines of a text, which end with ``\\n``, ``\\r\\n`` or ``\\r``, as in Hadoop and Java.

    Bytes that are not UTF-8 become U+FFFD. A last line without an end counts as a line.
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
    """Return the number of lines that :func:`split_lines` would return."""
    if not piece:
        return 0
    ends = piece.count(b"\n")
    if b"\r" in piece:
        ends += piece.count(b"\r") - piece.count(b"\r\n")
    return ends if piece.endswith((b"\n", b"\r")) else ends + 1
