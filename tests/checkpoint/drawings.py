"""Helpers for tests of on-disk formats: the drawings in docstrings, and a directory as a value."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

REPLACEMENTS = b"\x00\n\"'{}[],:-.019eE \xff"
"""Bytes that mean something in the formats, and some that cannot be there."""


def drawings(docstring: str | None) -> list[str]:
    """Return the indented blocks of a docstring, each as the text of a file.

    A line that begins with a blank continues the one above: files have longer lines than docstrings.
    """
    blocks = re.findall(r"::\n\n((?: {4}.*\n)+)", docstring or "")
    return [textwrap.dedent(block).replace("\n ", " ") for block in blocks]


def files_in(directory: Path) -> dict[str, bytes]:
    """Return every file, hidden ones too, but no checksums. Empty folders mean nothing to a checkpoint."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.endswith(".crc")
    }


def write_unchecked(path: Path, data: bytes | str) -> None:
    """Write a file without a checksum, as versions did that had none: what a damaged file says, counts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def flips(data: bytes) -> list[bytes]:
    """Return the files that differ from this one in one byte, for a choice of other bytes."""
    return [
        data[:at] + bytes([other]) + data[at + 1 :]
        for at, byte in enumerate(data)
        for other in {*REPLACEMENTS, byte ^ 1, byte ^ 0x20}
        if other != byte
    ]
