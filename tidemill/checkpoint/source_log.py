"""The notes that a source needs to return the same range again.

Each source has a folder ``sources/<name>/`` of small files: a version line with a checksum (CRC-32) of the
rest, then one JSON value per line. Here are the files that a directory stream has found,
``sources/orders/12``::

    v1 704e4382
    {"path":"/in/orders-0012.csv","size":1024,"modified_ms":1772366400000}

Each source chooses its own file names and contents, except for ``initial``: there the planner notes where
the stream began.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError

INITIAL = "initial"


class SourceLog:
    """The folder of one source; or, below ``sinks``, of one sink."""

    def __init__(self, storage: Storage, source_name: str, folder: str = "sources") -> None:
        # A source with a file format of its own (Spark's) reads and writes its files here directly.
        self.storage = storage.under(f"{folder}/{folder_name(source_name)}")

    def put(self, name: str, values: Iterable[Any]) -> None:
        """Write an entry durably, replacing the entry of the same name."""
        lines = [json.dumps(value, separators=(",", ":")) for value in values]
        body = "\n".join(lines)
        with self.storage.open_write(name) as file:
            file.write(f"{_version_line(body)}\n{body}".encode())

    def get(self, name: str) -> list[Any] | None:
        """Return an entry, or None if there is none of that name."""
        try:
            return self._parse(name)
        except FileNotFoundError:
            return None

    def entries(self) -> dict[str, list[Any]]:
        return {name: self._parse(name) for name in self.storage.list("")}

    def delete(self, name: str) -> None:
        self.storage.delete(name)

    def clear(self) -> None:
        for name in self.storage.list(""):
            self.storage.delete(name)

    def _parse(self, name: str) -> list[Any]:
        try:
            version, _, body = self.storage.read(name).decode().partition("\n")
            if not version.startswith("v1 "):
                raise ValueError(f"the first line is {version[:20]!r}, not v1 and a checksum")
            if version != _version_line(body):
                raise ValueError("its checksum is wrong")
            return [json.loads(line) for line in body.split("\n")] if body else []
        except ValueError as error:
            raise DamagedCheckpointError(
                self.storage.full_name(name),
                f"cannot be read ({error})",
                "Restore it from a backup: without it, the stream cannot know what it has read or written.",
                self.storage.uri,
            ) from None


def is_note(data: bytes) -> bool:
    """Return True for the contents of a file of a source log, whatever its name is."""
    version, _, body = data.decode(errors="replace").partition("\n")
    return version == _version_line(body)


def _version_line(body: str) -> str:
    return f"v1 {zlib.crc32(body.encode()):08x}"


def folder_name(source_name: str) -> str:
    """Return a source's name as the name of one folder: quoted, and never ``.`` or ``..``."""
    quoted = quote(source_name, safe="")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")
