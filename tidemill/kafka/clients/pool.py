"""Clients that stay open in a Python worker, from one task to the next."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class ClientPool(Generic[T]):
    """The clients of one process. A client is taken out while it is used, so that nobody shares it, and one
    that has met an error, or whose user was interrupted, is never used again.
    """

    def __init__(self, most_kept: int) -> None:
        self._most_kept = most_kept
        self._pid = os.getpid()
        self._idle: OrderedDict[Hashable, tuple[Hashable, T]] = OrderedDict()

    @contextmanager
    def lend(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> Iterator[T]:
        """Lend the client of ``key``, a new one unless there is one of that ``version``."""
        if self._pid != os.getpid():
            # A forked process has the memory of librdkafka, and none of its threads.
            self._idle, self._pid = OrderedDict(), os.getpid()
        kept_version, client = self._idle.pop(key, (None, None))
        if client is not None and kept_version != version:
            client.close()
            client = None
        lent = make() if client is None else client
        try:
            yield lent
        except BaseException:
            lent.close()
            raise
        self._idle[key] = version, lent
        while len(self._idle) > self._most_kept:
            _, (_, oldest) = self._idle.popitem(last=False)
            oldest.close()

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1][1].close()
