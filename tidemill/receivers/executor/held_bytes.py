"""How much of a stream waits to be processed, as a receiver knows it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidemill.common.clock import Clock
from tidemill.receivers.messages import UpdateHeldBytes

ASK_HELD_MS = 1000
"""How long a receiver that waits for room waits before it asks the driver: the driver's word may get lost."""

logger = logging.getLogger(__name__)


class HeldBytes:
    """Makes a receiver wait while ``max_bytes`` or more of its stream wait to be processed. Thread-safe."""

    def __init__(
        self, clock: Clock, max_bytes: int, ask: Callable[[], UpdateHeldBytes], title: str
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._ask = ask
        self._title = title
        self._lock = threading.Lock()
        self._latest = UpdateHeldBytes(0)

    def update(self, held_bytes: int, version: int) -> None:
        """Note what the driver says, unless it said that before what is known already."""
        with self._lock:
            if version >= self._latest.version:
                self._latest = UpdateHeldBytes(held_bytes, version)
        self._clock.interrupt_waiters()

    def has_room(self) -> bool:
        return self._latest.held_bytes < self._max_bytes

    def wait_for_room(self, interrupted: Callable[[], bool]) -> None:
        """Wait until batches have freed memory, or until interrupted: without batches nothing frees any."""
        if self.has_room():
            return
        logger.warning(
            "%s waits: %d bytes are stored and not processed yet",
            self._title,
            self._latest.held_bytes,
        )
        while self._clock.wait_till(
            self._clock.now_ms() + ASK_HELD_MS, lambda: self.has_room() or interrupted()
        ):
            try:
                answer = self._ask()
                self.update(answer.held_bytes, answer.version)
            except Exception as error:
                logger.info("cannot ask the driver how much is not processed yet: %s", error)
