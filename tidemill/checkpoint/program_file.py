"""The program of a DStream context, written once when it first starts.

``program`` has a version line, a line of JSON for people and for checks, and then the pickled graph::

    v1
    {"tidemill": "0.1.0", "python": "3.11", "pyspark": "4.3.0", "batch_ms": 1000, "zero_ms": 1772366400000,
     "operators": [{"id": "orders", "name": "orders", "kind": "textFileStream", "detail": "/in",
     "partitions": null}], "conf": {"spark.app.name": "orders"}, "retired": [], "size": 26,
     "sha256": "95268910353e458292d61adf92b453992d243cf411e177de2a7e4328da1e923a"}
    <the bytes of the pickle>

(here broken into lines). The checksum covers the line and the pickle. Anyone who can write this file can
run code as the user who starts the stream.
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
    """A source, or an operation with state, for which the directory keeps files.

    ``id`` is its name in the log and the folders: the first name that it had.
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
    """The line of JSON: which versions wrote the program, its operators and settings."""

    tidemill: str
    python: str
    pyspark: str
    batch_ms: int
    zero_ms: int
    operators: tuple[Operator, ...]
    conf: Mapping[str, str]
    # Ids of operators that an upgrade dropped: no new operator may use them.
    retired: tuple[str, ...] = ()


def write_program(storage: Storage, header: ProgramHeader, pickled: bytes) -> None:
    fields = {**asdict(header), "size": len(pickled)}
    line = json.dumps({**fields, "sha256": _digest(fields, pickled)})
    with storage.open_write(PROGRAM) as file:  # it has its checksum inside
        file.write(b"v1\n" + line.encode() + b"\n" + pickled)


def _digest(fields: Mapping[str, Any], pickled: bytes) -> str:
    """Return the checksum of all fields but the versions, which are compared with the running ones."""
    checked = {name: value for name, value in fields.items() if name not in ("tidemill", "python")}
    return hashlib.sha256(json.dumps(checked).encode() + b"\n" + pickled).hexdigest()


def read_program(storage: Storage) -> tuple[ProgramHeader, bytes] | None:
    """Return header and pickle of a directory's program, safe to run, or None if there is none."""
    data = _read(storage)
    if data is None:
        return None
    _require_safe(storage)
    return _parse(storage, data)


def read_header(storage: Storage) -> ProgramHeader | None:
    """Return the header of a directory's program without running any of it, or None if there is none."""
    data = _read(storage)
    return None if data is None else _parse(storage, data)[0]


def _read(storage: Storage) -> bytes | None:
    try:
        return storage.read(PROGRAM)
    except FileNotFoundError:
        return None


def _parse(storage: Storage, data: bytes) -> tuple[ProgramHeader, bytes]:
    try:
        version, line, pickled = data.split(b"\n", 2)
        if version != b"v1":
            raise ValueError(f"format {version[:20]!r}")
        fields: dict[str, Any] = json.loads(line)
        if len(pickled) != fields["size"]:
            raise ValueError(f"{len(pickled)} bytes of {fields['size']}")
        if fields.pop("sha256") != _digest(fields, pickled):
            raise ValueError("its checksum is wrong")
        del fields["size"]
        fields["retired"] = tuple(fields["retired"])
        fields["operators"] = tuple(Operator(**operator) for operator in fields["operators"])
        return ProgramHeader(**fields), pickled
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(
            storage.full_name(PROGRAM),
            f"damaged, or written by a newer version ({error})",
            "Restore it from a backup: it says what the rest of the directory belongs to.",
            storage.uri,
        ) from None


def _require_safe(storage: Storage) -> None:
    """Refuse a pickle that any user of this machine could have put there."""
    file = storage.full_name(PROGRAM)
    for path in (file, os.path.dirname(file)):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return  # not a file of this machine
        # In a folder with the sticky bit, others cannot replace a file.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise DamagedCheckpointError(
                path,
                "everybody on this machine may write it, and reading the program runs its code",
                f"Check that {PROGRAM} is yours, then remove that permission (chmod o-w {path}).",
                storage.uri,
            )
