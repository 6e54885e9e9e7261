"""The driver's record of a block: its stream, its size, and the places that have it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.log_records import LogSlice

BLOCK_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")  # also the name of a file


@dataclass(frozen=True)
class BlockPlace:
    """A copy of a block: a file on the host of an executor; other hosts read it from its block server.

    ``server`` is the endpoint of that block server, or empty in local mode, which needs none.
    """

    executor_id: str
    host: str
    path: str
    server: str = ""

    def to_json(self) -> list[str]:
        return [self.executor_id, self.host, self.path, self.server]

    @classmethod
    def from_json(cls, value: Any) -> BlockPlace:
        """``ValueError`` for anything but what :meth:`to_json` gives."""
        match value:
            case [str(executor_id), str(host), str(path), str(server)]:
                return cls(executor_id, host, path, server)
        raise ValueError("not a place of a block (executor, host, path, server)")


@dataclass(frozen=True)
class BlockInfo:
    """One block. ``sha256`` is the digest of its bytes, by which every reader recognises the right block.

    ``slice_`` is its place in the write-ahead log, or None without one.
    """

    stream_id: int
    block_id: str
    records: int
    bytes: int
    sha256: str
    places: tuple[BlockPlace, ...] = ()
    slice_: LogSlice | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream_id,
            "block": self.block_id,
            "records": self.records,
            "bytes": self.bytes,
            "sha256": self.sha256,
            "places": [place.to_json() for place in self.places],
            "log": None if self.slice_ is None else self.slice_.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> BlockInfo:
        """``ValueError`` for anything but what :meth:`to_json` gives."""
        if not isinstance(value, dict) or set(value) != {*_FIELDS, "log"}:
            raise ValueError("not the fields of a block")
        for name, type_ in _FIELDS.items():
            if type(value[name]) is not type_ or (type_ is int and value[name] < 0):
                least = " of at least 0" if type_ is int else ""
                raise ValueError(
                    f"{name} of a block must be a {type_.__name__}{least}, not {value[name]!r:.100}"
                )
        if not BLOCK_ID.fullmatch(value["block"]):
            raise ValueError("not the id of a block")
        log = value["log"]
        return cls(
            value["stream"],
            value["block"],
            value["records"],
            value["bytes"],
            value["sha256"],
            tuple(BlockPlace.from_json(place) for place in value["places"]),
            None if log is None else _slice(log),
        )


_FIELDS: dict[str, type] = {
    "stream": int,
    "block": str,
    "records": int,
    "bytes": int,
    "sha256": str,
    "places": list,
}


def _slice(value: Any) -> LogSlice:
    slice_ = LogSlice.from_json(value)
    if bool in map(type, value) or slice_.offset < 0 or slice_.length < 0:
        raise ValueError("not a slice of a log")
    if slice_.path.startswith("/") or ".." in slice_.path.split("/"):
        raise ValueError("a slice of a log outside of the checkpoint directory")
    return slice_
