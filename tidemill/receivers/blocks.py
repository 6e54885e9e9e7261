"""What the driver knows of a block: who it belongs to, how much is in it, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.checkpoint.log_records import LogSlice


@dataclass(frozen=True)
class BlockPlace:
    """A copy of a block: a file on the host of an executor, which others get from its block server.

    ``server`` is empty where there is no need of one: in local mode.
    """

    executor_id: str
    host: str
    path: str
    server: str = ""

    def to_json(self) -> list[str]:
        return [self.executor_id, self.host, self.path, self.server]

    @classmethod
    def from_json(cls, value: Any) -> BlockPlace:
        executor_id, host, path, server = map(str, value)
        return cls(executor_id, host, path, server)


@dataclass(frozen=True)
class BlockInfo:
    """One block. ``sha256`` is that of its bytes: whoever reads it, from wherever, can tell that this is it.

    ``slice_`` is where the write-ahead log has it, if there is one.
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
        log = value["log"]
        return cls(
            int(value["stream"]),
            str(value["block"]),
            int(value["records"]),
            int(value["bytes"]),
            str(value["sha256"]),
            tuple(BlockPlace.from_json(place) for place in value["places"]),
            None if log is None else LogSlice.from_json(log),
        )
