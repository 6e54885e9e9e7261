"""Answering receivers that report their blocks."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ReceiverError, TidemillError
from tidemill.receivers.driver.block_cleaner import BlockCleaner
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.driver.receiver_registry import ReceiverRegistry
from tidemill.receivers.messages import AddBlock, BlockAdded, UpdateHeldBytes
from tidemill.receivers.request_keys import RepeatedRequestsError, RequestKey


class BlockReports:
    """Adds the blocks that receivers report, under the ``names`` of their streams. Thread-safe."""

    def __init__(
        self,
        names: Mapping[int, str],
        blocks: BlockTracker,
        cleaner: BlockCleaner,
        registry: ReceiverRegistry,
    ) -> None:
        self._names = names
        self._blocks = blocks
        self._cleaner = cleaner
        self._registry = registry

    def add(self, message: AddBlock) -> BlockAdded:
        info = message.info
        if info.stream_id not in self._names:
            return BlockAdded(False, 0, "there is no such stream")
        accepted, reason = False, ""
        repeated: tuple[RequestKey, ...] = ()
        try:
            accepted = self._blocks.add(
                self._names[info.stream_id],
                info,
                lambda block: self._cleaner.on_new_block(block, message.oldest_segment),
                keys=message.keys,
                first_unreported=message.first_unreported,
                admit=lambda: self._require_latest(info.stream_id, message.attempt),
            )
            reason = "" if accepted else "the stream has been stopped"
        except RepeatedRequestsError as error:
            repeated, reason = error.requests, str(error)
        except (TidemillError, OSError) as error:
            reason = str(error)
        held = self.held(info.stream_id)
        return BlockAdded(accepted, held.held_bytes, reason, held.version, repeated)

    def _require_latest(self, stream_id: int, attempt: int) -> None:
        """Refuse the blocks of a receiver that was replaced: their segments may be deleted already."""
        if not self._registry.is_latest(stream_id, attempt):
            raise ReceiverError("another start has replaced this receiver")

    def held(self, stream_id: int) -> UpdateHeldBytes:
        """Return how much of a stream waits to be processed."""
        return UpdateHeldBytes(*self._blocks.held(self._names[stream_id]))
