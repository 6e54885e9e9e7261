"""The driver's calls to executors."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidemill.common.rpc.client_pool import ClientPool
from tidemill.errors import TidemillError
from tidemill.receivers.messages import CleanupOldBlocks, Done, Message

TIMEOUT_S = 5.0
IDS_PER_CALL = 1000

logger = logging.getLogger(__name__)


class ExecutorCalls:
    """Tells executors what the driver has decided. Never waits long for an executor that is gone."""

    def __init__(self, secret: bytes) -> None:
        self.clients = ClientPool(secret, TIMEOUT_S)

    def tell(self, endpoint: str, message: Message, name: str | None = None) -> bool:
        """Send a message. Return False if it did not arrive."""
        try:
            with self.clients.client(endpoint) as client:
                client.call(name or type(message).__name__, message.encode())
            return True
        except (TidemillError, ValueError) as error:  # ValueError: this is not an endpoint
            logger.info("%s was not told %s: %s", endpoint, type(message).__name__, error)
            self.forget(endpoint)
            return False

    def forget(self, endpoint: str) -> None:
        """Drop the connection to a receiver or block server that has ended."""
        self.clients.forget(endpoint)

    def cleanup(self, endpoint: str, block_ids: tuple[str, ...]) -> bool:
        """Have blocks deleted, in several calls if they are many. Return False if one did not arrive."""
        return all(
            self.tell(endpoint, CleanupOldBlocks(block_ids[start : start + IDS_PER_CALL]))
            for start in range(0, len(block_ids), IDS_PER_CALL)
        )

    def stop_block_servers(self, endpoints: Iterable[str]) -> None:
        for endpoint in endpoints:
            self.tell(endpoint, Done(), "StopBlockServer")

    def close(self) -> None:
        self.clients.close()
