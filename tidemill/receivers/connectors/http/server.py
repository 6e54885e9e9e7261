"""The listening side of an HTTP receiver: connections, and no more of them than it can bear."""

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
"""How soon the accepting thread sees that it is to end."""

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: 42\r\n\r\n"
    b'{"error": "too many requests are at work"}'
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpSettings:
    """``timeout_s`` is for records to become safe, ``read_timeout_s`` for a whole body to arrive."""

    path: str
    format: str
    token: bytes | None = field(repr=False)
    max_body_bytes: int
    max_connections: int
    timeout_s: float
    read_timeout_s: float

    @property
    def max_held_bytes(self) -> int:
        """Of all bodies together that have been read and are not answered yet."""
        return 4 * self.max_body_bytes


class HttpServer(ThreadingMixIn, TCPServer):
    """A thread for each connection. Connections that have not sent a request yet give way to new ones.

    When ``max_connections`` are open, the one that has been without a complete request head for the
    longest time is closed: a client that is idle or dawdles cannot keep others out. If all of them are
    at work, a new one is answered 503.
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
        """Take no connection any more, let requests be answered for ``grace_s``, then close them."""
        self.shutdown()
        self.server_close()
        with self._changed:
            for connection in self._idle:
                _shut(connection)
            self._changed.wait_for(lambda: not self._open, grace_s)
            for connection in self._open:
                _shut(connection)

    # -- memory --------------------------------------------------------------------------------

    def hold(self, size: int) -> bool:
        """Count bytes of a body that has been read. False: there are too many already."""
        with self._changed:
            if self._held_bytes + size > self.settings.max_held_bytes:
                return False
            self._held_bytes += size
            return True

    def let_go(self, size: int) -> None:
        with self._changed:
            self._held_bytes -= size

    # -- connections ---------------------------------------------------------------------------

    def begin_request(self, connection: socket.socket) -> bool:
        """The head of a request is there. False: too late, the connection has been given up."""
        with self._changed:
            self._idle.pop(connection, None)
            return connection in self._open

    def end_request(self, connection: socket.socket) -> None:
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
            connection.settimeout(0)  # a new connection has room for as little as this
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
            logger.debug("the connection of %s broke: %s", client_address, error)
        else:
            logger.warning("a request of %s failed", client_address, exc_info=error)


def _shut(connection: socket.socket) -> None:
    """Wake the thread that reads; it closes the connection itself."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
