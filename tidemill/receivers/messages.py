"""The messages between the driver and its receivers.

Each message is a small frozen type. Those that cross the network are calls of :mod:`tidemill.common.rpc`: the
name of the type, and its fields as JSON.

====================== ============================= =========================================
from an executor       answer                        means
====================== ============================= =========================================
RegisterReceiver       Registered                    may I run here?
AddBlock               BlockAdded                    this block is stored: it is yours now
AskHeldBytes           UpdateHeldBytes               I wait: how much is not processed yet?
ReportError                                          an error happened: tell the user
DeregisterReceiver                                   I have ended
AddBlockServer                                       this executor can keep copies of blocks
====================== ============================= =========================================

====================== =================================================================
to an executor         means
====================== =================================================================
StopReceiver           store what you have, then end; or end at once
UpdateRateLimit        accept at most this many records a second
UpdateHeldBytes        so many bytes of your stream wait to be processed
CleanupOldBlocks       delete these blocks: no batch needs them
====================== =================================================================

Any of these may get lost, come twice, or be overtaken by a later one, when a call takes longer than its
deadline. So each says what holds, not what has changed; a figure has a version, which grows with every change
on the driver, and nobody goes back to an older one; and whoever waits for a figure asks for it again.

====================== =================================================================
on the driver          means
====================== =================================================================
StartAllReceivers      the stream starts
RestartReceiver        the job of a receiver has ended: start it again
UpdateReceiverRateLimit a rate controller has found a new rate
UpdateReceiverHeld     batches of a stream are done: its receiver may take in more
CleanupReceivedBlocks  no batch needs these blocks any more
ReceiverJobEnded       the Spark job of a receiver has ended, for whatever reason
====================== =================================================================
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints

from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.request_keys import RequestKey


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
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value.to_json() if isinstance(value, BlockInfo | RequestKey) else value


def _from_json(hint: Any, value: Any) -> Any:
    if hint is BlockInfo:
        return BlockInfo.from_json(value)
    if hint == tuple[RequestKey, ...]:
        if not isinstance(value, list):
            raise ValueError("not a list of keys")
        return tuple(RequestKey.from_json(item) for item in value)
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
    """``rate`` and ``held_bytes`` are those of the later messages UpdateRateLimit and UpdateHeldBytes."""

    accepted: bool
    rate: float | None
    held_bytes: int
    replica_servers: tuple[str, ...] = ()
    rate_version: int = 0
    held_version: int = 0


@dataclass(frozen=True)
class AddBlock(Message):
    """``keys`` has the requests in the block that their senders may repeat.

    The receiver will report no block of this run with a number below ``first_unreported``, and none from a
    segment of the write-ahead log before ``oldest_segment`` (empty: before the segment of this block).
    """

    attempt: int
    info: BlockInfo
    keys: tuple[RequestKey, ...] = ()
    first_unreported: int = 0
    oldest_segment: str = ""


@dataclass(frozen=True)
class BlockAdded(Message):
    """``accepted`` is False if the tracker could not log the block, or accepts no blocks any more.

    It is False as well if some of the block's requests were stored before: ``repeated`` has those. Nothing of
    the block is kept then; the others are to be stored in a new block.

    ``held_bytes`` is the size of all blocks of this stream that wait to be processed, this one included.
    """

    accepted: bool
    held_bytes: int
    reason: str = ""
    held_version: int = 0
    repeated: tuple[RequestKey, ...] = ()


@dataclass(frozen=True)
class AskHeldBytes(Message):
    stream_id: int


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


FROM_EXECUTORS: dict[str, type[Message]] = {
    each.__name__: each
    for each in (
        RegisterReceiver,
        AddBlock,
        AskHeldBytes,
        ReportError,
        DeregisterReceiver,
        AddBlockServer,
    )
}
"""The messages that executors may send, by their names."""


# -- to an executor ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopReceiver(Message):
    """With ``at_once`` the receiver stops trying to store what it has."""

    message: str
    at_once: bool = False


@dataclass(frozen=True)
class UpdateRateLimit(Message):
    rate: float | None
    version: int = 0


@dataclass(frozen=True)
class UpdateHeldBytes(Message):
    """Also the answer to :class:`AskHeldBytes`."""

    held_bytes: int
    version: int = 0


@dataclass(frozen=True)
class CleanupOldBlocks(Message):
    block_ids: tuple[str, ...]


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
class UpdateReceiverHeld:
    stream_id: int


@dataclass(frozen=True)
class CleanupReceivedBlocks:
    blocks: tuple[BlockInfo, ...]


@dataclass(frozen=True)
class ReceiverJobEnded:
    """``error`` is empty if the task ended without one."""

    stream_id: int
    attempt: int
    error: str
