"""On the driver: which executors have a block server."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemill.receivers.messages import AddBlockServer
from tidemill.spark.session.executor_info import ExecutorInfo


class BlockServerList:
    """The block servers that have said so, one for each executor. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: dict[str, AddBlockServer] = {}

    def add(self, server: AddBlockServer) -> None:
        with self._lock:
            self._servers[server.executor_id] = server

    def without_one(self, executors: Sequence[ExecutorInfo]) -> list[ExecutorInfo]:
        """Those of all living executors that have none. Servers of executors that are gone are forgotten."""
        alive = {each.executor_id for each in executors}
        with self._lock:
            self._servers = {id_: each for id_, each in self._servers.items() if id_ in alive}
            return [each for each in executors if each.executor_id not in self._servers]

    def as_replicas(self) -> tuple[str, ...]:
        """As receivers are told where they can keep copies."""
        with self._lock:
            return tuple(
                f"{each.executor_id} {each.host} {each.endpoint}" for each in self._servers.values()
            )

    def take_all(self) -> list[str]:
        """Their endpoints; the list is empty after this."""
        with self._lock:
            endpoints = [each.endpoint for each in self._servers.values()]
            self._servers = {}
            return endpoints
