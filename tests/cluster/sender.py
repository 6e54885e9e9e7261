"""The other side of ``NumberReceiver``: sends every number once, and knows which were acknowledged."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress

PIECE = 20


class Sender:
    """Serves any number of receivers. It never resends numbers under way when a connection broke."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._lock = threading.Lock()
        self._next = 0
        self.acknowledged: set[int] = set()
        self.pids: list[int] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._is_closed:
            with suppress(OSError):
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as answers:
            hello = answers.readline().split()
            if not hello:
                return
            with self._lock:
                self.pids.append(int(hello[1]))
            while not self._is_closed:
                with self._lock:
                    numbers = list(range(self._next, self._next + PIECE))
                    self._next += PIECE
                connection.sendall(f"{json.dumps(numbers)}\n".encode())
                answer = answers.readline()
                if not answer:
                    return
                with self._lock:
                    self.acknowledged.update(json.loads(answer))

    def close(self) -> None:
        """Stop sending; receivers still acknowledge the numbers that were sent."""
        self._is_closed = True
        self._server.close()
