"""The program of a stream, written down once when it first starts.

``program`` has a version line, a line of JSON for people and for checks, and then the pickled graph::

    v1
    {"tidemill": "0.1.0", "python": "3.11", "pyspark": "4.3.0", "batch_ms": 1000, "zero_ms": 1772366400000,
     "operators": [{"id": "orders", "name": "orders", "kind": "textFileStream", "detail": "/in", ...}],
     "retired": [], "conf": {"spark.app.name": "orders"}, "size": 20518, "sha256": "9f2c..."}
    <the bytes of the pickle>

(here broken into lines). Whoever can write this file can run code as whoever starts the stream.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemill.checkpoint.storage import Storage
from tidemill.errors import DamagedCheckpointError

PROGRAM = "program"


@dataclass(frozen=True)
class Operator:
    """A source, or an operation with state: what the directory keeps something for.

    ``id`` is what the log and the folders call it: the first name that it had.
    """

    id: str
    name: str
    kind: str
    detail: str = ""
    partitions: int | None = None

    def __str__(self) -> str:
        details = [self.detail] if self.detail else []
        if self.partitions is not None:
            details.append(f"{self.partitions} partitions")
        return f"{self.name} ({', '.join([self.kind, *details])})"


@dataclass(frozen=True)
class ProgramHeader:
    tidemill: str
    python: str
    pyspark: str
    batch_ms: int
    zero_ms: int
    operators: tuple[Operator, ...]
    conf: Mapping[str, str]
    # Ids of operators that an upgrade has dropped: no other may have them.
    retired: tuple[str, ...] = ()


def write_program(storage: Storage, header: ProgramHeader, pickled: bytes) -> None:
    line = json.dumps(
        {**asdict(header), "size": len(pickled), "sha256": hashlib.sha256(pickled).hexdigest()}
    )
    storage.write(PROGRAM, b"v1\n" + line.encode() + b"\n" + pickled)


def read_program(storage: Storage) -> tuple[ProgramHeader, bytes] | None:
    """The program of a directory, checked; None if it has none."""
    try:
        data = storage.read(PROGRAM)
    except FileNotFoundError:
        return None
    file = storage.full_name(PROGRAM)
    _require_safe(file)
    try:
        version, line, pickled = data.split(b"\n", 2)
        if version != b"v1":
            raise ValueError(f"format {version[:20]!r}")
        fields: dict[str, Any] = json.loads(line)
        size, digest = fields.pop("size"), fields.pop("sha256")
        if len(pickled) != size:
            raise ValueError(f"{len(pickled)} bytes of {size}")
        if hashlib.sha256(pickled).hexdigest() != digest:
            raise ValueError("its checksum is wrong")
        fields["retired"] = tuple(fields["retired"])
        fields["operators"] = tuple(Operator(**operator) for operator in fields["operators"])
        return ProgramHeader(**fields), pickled
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(
            file,
            f"damaged, or written by a newer version ({error})",
            "Restore it from a backup, or start with getOrCreate(..., upgrade=True), which makes the "
            "program anew and needs only the names in the second line.",
            storage.uri,
        ) from None


def _require_safe(file: str) -> None:
    """A pickle that anybody could have put there is not read."""
    try:
        mode = os.stat(file).st_mode
    except OSError:
        return  # not a file of this machine
    if mode & stat.S_IWOTH:
        raise DamagedCheckpointError(
            file,
            "everybody on this machine may write it, and reading it runs code that is in it",
            f"Take that right away (chmod o-w {file}) once you know that the file is yours.",
        )
