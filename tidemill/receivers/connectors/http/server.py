"""The server of an HTTP receiver: accepts connections, up to a limit."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, cast

from tidemill.common.clock import Clock
from tidemill.receivers.connectors.http.intake import Intake
from tidemill.receivers.connectors.http.requests import HttpRequests

POLL_S = 0.1
"""How often the accepting thread checks whether to end."""

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 42\r\n\r\n"
    b'{"error": "too many requests are at work"}'
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpSettings:
    """The settings of the server: ``timeout_s`` limits storing records, ``read_timeout_s`` reading a body."""

    path: str
    format: str
    token: bytes | None = field(repr=False)
    max_body_bytes: int
    max_connections: int
    timeout_s: float
    read_timeout_s: float

    @property
    def max_held_bytes(self) -> int:
        """The limit for all bodies together that are read and not answered yet."""
        return 4 * self.max_body_bytes


class HttpServer(ThreadingMixIn, TCPServer):
    """Runs a thread for each connection. Idle connections give way to new ones.

    When ``max_connections`` are open, it closes the one that has waited longest for a complete request head:
    an idle or slow client cannot keep others out. If all connections have a request in progress, it answers a
    new one with 503.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, settings: HttpSettings, intake: Intake, clock: Clock
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.settings = settings
        self.intake = intake
        self.clock = clock
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._idle: OrderedDict[socket.socket, None] = OrderedDict()
        self._held_bytes = 0
        super().__init__((host, port), HttpRequests)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        threading.Thread(
            target=self.serve_forever, args=(POLL_S,), name="tidemill-http-accept", daemon=True
        ).start()

    def stop(self, grace_s: float) -> None:
        """Accept no more connections, give requests ``grace_s`` to be answered, then close them all."""
        self.shutdown()
        self.server_close()
        with self._changed:
            for connection in self._idle:
                _shut(connection)
            self._changed.wait_for(lambda: not self._open, grace_s)
            for connection in self._open:
                _shut(connection)

    # -- memory --------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Add ``size`` bytes to the count of all bodies. Return False if that exceeds the limit."""
        with self._changed:
            if self._held_bytes + size > self.settings.max_held_bytes:
                return False
            self._held_bytes += size
            return True

    def release(self, size: int) -> None:
        """Subtract the bytes of a body that has been answered."""
        with self._changed:
            self._held_bytes -= size

    # -- connections ---------------------------------------------------------------------------

    def begin_request(self, connection: socket.socket) -> bool:
        """Note that a request head has arrived. Return False if the connection was closed meanwhile."""
        with self._changed:
            self._idle.pop(connection, None)
            return connection in self._open

    def end_request(self, connection: socket.socket) -> None:
        """Note that a request is answered: the connection is idle."""
        with self._changed:
            if connection in self._open:
                self._idle[connection] = None

    def process_request(self, request: Any, client_address: Any) -> None:
        connection = cast(socket.socket, request)
        with self._changed:
            if len(self._open) >= self.settings.max_connections and self._idle:
                oldest, _ = self._idle.popitem(last=False)
                self._open.discard(oldest)
                _shut(oldest)
            is_full = len(self._open) >= self.settings.max_connections
            if not is_full:
                self._open.add(connection)
                self._idle[connection] = None
        if is_full:
            connection.settimeout(0)  # the send buffer of a new connection has room for this
            with suppress(OSError):
                connection.send(FULL)
            self.shutdown_request(connection)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
            self._idle.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            logger.debug("the connection from %s broke: %s", client_address, error)
        else:
            logger.warning("a request from %s failed", client_address, exc_info=error)


def _shut(connection: socket.socket) -> None:
    """Wake the thread that reads from a connection; that thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
