"""The block servers that the driver knows."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.receivers.messages import AddBlockServer
from tidemill.spark.session.executor_info import ExecutorInfo


class BlockServerList:
    """The block servers that have registered, one for each executor. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, AddBlockServer] = {}

    def add(self, server: AddBlockServer) -> None:
        with self._lock:
            self._servers[server.executor_id] = server

    def executors_without(self, executors: Sequence[ExecutorInfo]) -> list[ExecutorInfo]:
        """Return which of all living executors have no server; forget the servers of dead ones."""
        alive = {each.executor_id for each in executors}
        with self._lock:
            self._servers = {id_: each for id_, each in self._servers.items() if id_ in alive}
            return [each for each in executors if each.executor_id not in self._servers]

    def as_replicas(self) -> tuple[str, ...]:
        """Return the servers in the form in which receivers learn where to keep copies."""
        with self._lock:
            return tuple(
                f"{each.executor_id} {each.host} {each.endpoint}" for each in self._servers.values()
            )

    def remove_all(self) -> list[str]:
        """Empty the list, and return the endpoints that it had."""
        with self._lock:
            endpoints = [each.endpoint for each in self._servers.values()]
            self._servers = {}
            return endpoints
