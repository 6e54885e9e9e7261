"""The driver's side of the calls to executors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from tidemill.common.rpc.client import RpcClient
from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import TidemillError
from tidemill.receivers.messages import CleanupOldBlocks, Done, Message

TIMEOUT_S = 5.0
IDS_A_CALL = 1000

logger = logging.getLogger(__name__)


class ExecutorCalls:
    """One client for each endpoint. Nobody waits long for an executor that is gone."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._clients: dict[str, RpcClient] = {}

    def tell(self, endpoint: str, message: Message, name: str | None = None) -> bool:
        """False if nobody is there any more."""
        try:
            self._client(endpoint).call(name or type(message).__name__, message.encode(), TIMEOUT_S)
            return True
        except (TidemillError, ValueError) as error:  # ValueError: that is no endpoint at all
            logger.info("%s was not told %s: %s", endpoint, type(message).__name__, error)
            self.forget(endpoint)
            return False

    def _client(self, endpoint: str) -> RpcClient:
        with self._lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = RpcClient(Endpoint.parse(endpoint), self._secret)
            return self._clients[endpoint]

    def forget(self, endpoint: str) -> None:
        """Nobody is called there any more, as far as is known."""
        with self._lock:
            client = self._clients.pop(endpoint, None)
        if client is not None:
            client.close()

    def cleanup(self, endpoint: str, block_ids: tuple[str, ...], held_bytes: int) -> None:
        for start in range(0, max(1, len(block_ids)), IDS_A_CALL):
            some = block_ids[start : start + IDS_A_CALL]
            if not self.tell(endpoint, CleanupOldBlocks(some, held_bytes)):
                return

    def stop_block_servers(self, endpoints: Iterable[str]) -> None:
        for endpoint in endpoints:
            self.tell(endpoint, Done(), "StopBlockServer")

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
