"""One client for each server that a process calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import IllegalStateError, RpcUnavailableError

if TYPE_CHECKING:
    from tidemill.common.rpc.client import RpcClient


class ClientPool:
    """Keeps one client for each endpoint, so that all threads of a process share its connection. Thread-safe.

    A client is made by the first call to its server, and dropped when the server turns out to be gone: the
    next call connects anew. ``timeout_s`` is the deadline of every call that has none of its own.
    """

    def __init__(self, secret: bytes, timeout_s: float = 10.0) -> None:
        self._secret = secret
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._clients: dict[str, RpcClient] = {}
        self._is_closed = False

    @contextmanager
    def client(self, endpoint: str) -> Iterator[RpcClient]:
        """Lend the client of a server; drop it if the block raises ``RpcUnavailableError``.

        ``ValueError`` for a text that is not an endpoint, ``IllegalStateError`` after :meth:`close`.
        """
        client = self._client(endpoint)
        try:
            yield client
        except RpcUnavailableError:
            with self._lock:
                # Another thread may have noticed first, and connected anew.
                if self._clients.get(endpoint) is client:
                    del self._clients[endpoint]
            raise

    def _client(self, endpoint: str) -> RpcClient:
        # Here, not above: gRPC does not survive a fork, so only a process that calls may import it.
        from tidemill.common.rpc.client import RpcClient

        with self._lock:
            if self._is_closed:
                raise IllegalStateError(f"the RPC clients are closed: {endpoint} is not called")
            if endpoint not in self._clients:
                self._clients[endpoint] = RpcClient(
                    Endpoint.parse(endpoint), self._secret, self._timeout_s
                )
            return self._clients[endpoint]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of the servers that have a client now."""
        with self._lock:
            return tuple(self._clients)

    def forget(self, endpoint: str) -> None:
        """Drop the client of a server, if there is one. Calls in progress finish."""
        with self._lock:
            self._clients.pop(endpoint, None)

    def close(self) -> None:
        """Close all clients, and make no more of them. Idempotent. Calls in progress finish."""
        with self._lock:
            self._is_closed = True
            for client in self._clients.values():
                client.close()
            self._clients.clear()
