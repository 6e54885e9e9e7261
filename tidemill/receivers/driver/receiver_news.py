"""Telling running receivers what the driver has decided."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from tidemill.common.clock import Clock
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.driver.receiver_registry import ReceiverRegistry
from tidemill.receivers.messages import StopReceiver, UpdateHeldBytes, UpdateRateLimit

RATE_PAUSE_MS = 1000
"""Wait this long before a receiver that was not reached is told its rate again."""
STOP_TRIES = 2


class ReceiverNews:
    """Tells receivers their rates and how much is left to process, and ends them.

    What does not arrive is told again where the receiver could not find it out by itself: its rate, and that
    it has to end. A receiver asks by itself how much is left when it waits for that; files of blocks that it
    was not told to delete go with its run.
    """

    def __init__(self, registry: ReceiverRegistry, calls: ExecutorCalls, clock: Clock) -> None:
        self._registry = registry
        self._calls = calls
        self._clock = clock

    def rate(self, stream_id: int) -> None:
        """Tell a receiver its rate; again after a while, if it did not arrive and still holds."""
        known = self._registry.get(stream_id)
        if not known.endpoint or self._calls.tell(
            known.endpoint, UpdateRateLimit(known.rate, known.rate_version)
        ):
            return

        def is_settled() -> bool:
            now = self._registry.get(stream_id)
            is_same = (now.endpoint, now.rate_version) == (known.endpoint, known.rate_version)
            return not is_same or not self._registry.accepts

        def wait() -> None:
            if self._clock.wait_till(until_ms, is_settled):
                self.rate(stream_id)

        until_ms = self._clock.now_ms() + RATE_PAUSE_MS
        threading.Thread(target=wait, name="tidemill-receiver-rate", daemon=True).start()

    def held(self, stream_id: int, held: UpdateHeldBytes) -> None:
        """Tell a receiver how much of its stream waits to be processed."""
        if endpoint := self._registry.get(stream_id).endpoint:
            self._calls.tell(endpoint, held)

    def cleanup(self, blocks: Sequence[BlockInfo]) -> None:
        """Have the receivers of these blocks delete them."""
        for stream_id in {block.stream_id for block in blocks}:
            if stream_id in self._registry and (endpoint := self._registry.get(stream_id).endpoint):
                ids = tuple(b.block_id for b in blocks if b.stream_id == stream_id)
                self._calls.cleanup(endpoint, ids)

    def stop(self, endpoints: Iterable[str], message: str, at_once: bool) -> None:
        """Tell receivers to end. Those that are not reached end when their jobs are cancelled."""
        for _ in range(STOP_TRIES):
            endpoints = [
                endpoint
                for endpoint in endpoints
                if not self._calls.tell(endpoint, StopReceiver(message, at_once))
            ]
