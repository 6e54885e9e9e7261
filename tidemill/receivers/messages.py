"""The messages between the driver and its receivers.

Each message is a small frozen type. Those that cross the network are calls of :mod:`tidemill.common.rpc`: the
name of the type, and its fields as JSON.

====================== ============================= =========================================
from an executor       answer                        means
====================== ============================= =========================================
RegisterReceiver       Registered                    may I run here?
AddBlock               BlockAdded                    this block is stored: it is yours now
ReportError                                          an error happened: tell the user
DeregisterReceiver                                   I have ended
AddBlockServer                                       this executor can keep copies of blocks
====================== ============================= =========================================

====================== =================================================================
to an executor         means
====================== =================================================================
StopReceiver           store what you have, then end; the second time: end at once
UpdateRateLimit        accept at most this many records a second
CleanupOldBlocks       delete these blocks: no batch needs them
====================== =================================================================

====================== =================================================================
on the driver          means
====================== =================================================================
StartAllReceivers      the stream starts
RestartReceiver        the job of a receiver has ended: start it again
UpdateReceiverRateLimit a rate controller has found a new rate
CleanupReceivedBlocks  the batches of these blocks are done
AllReceiverIds         which receivers are scheduled or active?
GetAllReceiverInfo     what is known of each receiver?
StopAllReceivers       the stream stops
ReceiverJobEnded       the Spark job of a receiver has ended, for whatever reason
====================== =================================================================
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

from tidemill.receivers.blocks.block import BlockInfo


class Message:
    """The base of messages that cross the network."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                field.name: _to_json(getattr(self, field.name))
                for field in fields(self)  # type: ignore[arg-type]
            },
            separators=(",", ":"),
        ).encode()


M = TypeVar("M", bound=Message)


def decode(cls: type[M], body: bytes) -> M:
    """Decode a message of the type ``cls``. ``ValueError`` if the bytes are anything else."""
    try:
        values = json.loads(body)
        hints = get_type_hints(cls)
        if not isinstance(values, dict) or set(values) != set(hints):
            raise ValueError(f"its fields must be {', '.join(hints)}")
        return cls(**{name: _from_json(hints[name], values[name]) for name in hints})
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not a {cls.__name__}: {error}") from None


def _to_json(value: Any) -> Any:
    return value.to_json() if isinstance(value, BlockInfo) else value


def _from_json(hint: Any, value: Any) -> Any:
    if hint is BlockInfo:
        return BlockInfo.from_json(value)
    if hint == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("not a list of names")
        return tuple(value)
    if hint in (float, float | None):
        return None if value is None and hint is not float else _number(value)
    if type(value) is not hint:
        raise ValueError(f"a {type(value).__name__} where a {hint.__name__} should be")
    return value


def _number(value: Any) -> float:
    # Python reads Infinity, NaN and numbers of any length from JSON.
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("not a number")
    return number


# -- from an executor ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RegisterReceiver(Message):
    stream_id: int
    attempt: int
    name: str
    executor_id: str
    host: str
    endpoint: str


@dataclass(frozen=True)
class Registered(Message):
    """``rate`` and ``held_bytes`` are those of the later messages UpdateRateLimit and CleanupOldBlocks."""

    accepted: bool
    rate: float | None
    held_bytes: int
    replica_servers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddBlock(Message):
    attempt: int
    info: BlockInfo


@dataclass(frozen=True)
class BlockAdded(Message):
    """``accepted`` is False if the tracker could not log the block, or accepts no blocks any more.

    ``held_bytes`` is the size of all blocks of this stream that wait to be processed, this one included.
    """

    accepted: bool
    held_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class ReportError(Message):
    stream_id: int
    message: str
    error: str


@dataclass(frozen=True)
class DeregisterReceiver(Message):
    stream_id: int
    attempt: int
    message: str
    error: str


@dataclass(frozen=True)
class AddBlockServer(Message):
    executor_id: str
    host: str
    endpoint: str


# -- to an executor ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopReceiver(Message):
    message: str


@dataclass(frozen=True)
class UpdateRateLimit(Message):
    rate: float | None


@dataclass(frozen=True)
class CleanupOldBlocks(Message):
    block_ids: tuple[str, ...]
    held_bytes: int


@dataclass(frozen=True)
class Done(Message):
    """The answer to a message that has no other."""


# -- on the driver -------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartAllReceivers:
    pass


@dataclass(frozen=True)
class RestartReceiver:
    stream_id: int


@dataclass(frozen=True)
class UpdateReceiverRateLimit:
    stream_id: int
    rate: float


@dataclass(frozen=True)
class CleanupReceivedBlocks:
    blocks: tuple[BlockInfo, ...]


@dataclass(frozen=True)
class AllReceiverIds:
    pass


@dataclass(frozen=True)
class GetAllReceiverInfo:
    pass


@dataclass(frozen=True)
class StopAllReceivers:
    message: str


@dataclass(frozen=True)
class ReceiverJobEnded:
    """``error`` is empty if the task ended without one."""

    stream_id: int
    attempt: int
    error: str
