"""What a supervisor works with: the phases of a receiver, the driver, the store of blocks, its settings."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock
from tidemill.receivers.messages import BlockAdded, UpdateHeldBytes
from tidemill.receivers.request_keys import RequestKey


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
