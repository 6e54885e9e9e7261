"""What a supervisor works with: the phases of a receiver, the driver, the store of blocks, its settings."""

from __future__ import annotations

import enum
import errno
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidemill.failures.error_chain import error_chain
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, encode_batches, encode_records
from tidemill.receivers.blocks.read_back import ReadBack, require_readable
from tidemill.receivers.messages import BlockAdded, UpdateHeldBytes
from tidemill.receivers.request_keys import RequestKey
from tidemill.spark.errors.failures import user_traceback

NETWORK_ERRORS = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
    }
)
"""The numbers of errors of a network for which Python has no class of their own."""

RETRY_FIRST_MS = 500
RETRY_LAST_MS = 30_000


class ReceiverPhase(enum.Enum):
    STOPPED = "stopped"  # onStart() has not been called, or onStop() has
    STARTED = "started"  # onStart() has been called, or is being called
    STOPPING = "stopping"  # asked to stop; onStop() follows when onStart() has returned
    ENDED = "ended"  # it will not start again


class Tracker(Protocol):
    """The driver's tracker, as the supervisor uses it."""

    def add_block(
        self,
        info: BlockInfo,
        keys: Sequence[RequestKey] = (),
        first_unreported: int = 0,
        oldest_segment: str = "",
    ) -> BlockAdded: ...

    def ask_held(self) -> UpdateHeldBytes: ...

    def report_error(self, message: str, error: str) -> None: ...


class Handler(Protocol):
    """Stores blocks, for several threads at once: blocks that are stored at the same time share a write."""

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo: ...

    def discard(self, info: BlockInfo) -> None: ...


@dataclass(frozen=True)
class SupervisorSettings:
    block_interval_ms: int = 200
    queue_size: int = 10
    restart_delay_ms: int = 2000
    max_failures: int = 3
    max_held_bytes: int = 4 << 30
    stop_timeout_ms: int = 60_000
    max_failed_starts: int = 10


def block_of(data: Any, read_back: ReadBack) -> EncodedBlock | None:
    """Return the block that a receiver stores as a whole; None for a single record."""
    if isinstance(data, pa.RecordBatch):
        return require_readable(encode_batches([data]), read_back)
    if isinstance(data, pa.Table):
        return require_readable(encode_batches(data.to_batches()), read_back)
    if isinstance(data, (bytes, bytearray, memoryview)):
        data = [bytes(data)]
    elif not isinstance(data, (list, Iterator)):
        return None
    records = list(data)
    return require_readable(encode_records(records), read_back, records)


def describe(error: BaseException | None) -> str:
    """Return the traceback of an error, the user's frames only, or an empty text."""
    return "" if error is None else user_traceback(error)


class FailedStarts:
    """Counts how often in a row a receiver could not start.

    A connection that cannot be made does not count: whom the receiver connects to may be down for hours.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tries = 0

    def __str__(self) -> str:
        return f"it could not start, {self._tries} times in a row"

    def forget(self) -> None:
        self._tries = 0

    def reason_to_try_again(self, error: BaseException) -> str:
        """Return why the receiver is started again after an error; empty if that was its last try."""
        if is_of_a_connection(error):
            return "it could not connect"
        self._tries += 1
        if self._tries >= self._most:
            return ""
        return f"it could not start (try {self._tries} of {self._most})"


def is_of_a_connection(error: BaseException | None) -> bool:
    """Say whether an error, or one that it came of, means that another machine does not answer now."""
    return any(_is_of_the_network(each) for each in error_chain(error))


def _is_of_the_network(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in NETWORK_ERRORS:
        return True
    # The last two: the connection broke off in a handshake.
    return isinstance(
        error,
        ConnectionError | TimeoutError | socket.gaierror | ssl.SSLEOFError | ssl.SSLZeroReturnError,
    )


def retry_pause_ms(failures: int) -> int:
    """Return how long to wait before a block is stored again: twice as long after each failure."""
    return min(RETRY_FIRST_MS << min(failures - 1, 10), RETRY_LAST_MS)
