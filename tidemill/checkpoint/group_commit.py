"""Group commits: threads that write at the same time share a write.

1. A thread queues its item, and waits.
2. When no write is under way, the items that wait become a group, in the order in which they came. They are
   written together. Nothing of the group is durable yet.
3. The write ends: the whole group is durable, and every thread of it goes on with its own result. If the
   write fails, every thread of the group gets the error, and may add its item again.

What comes while a write is under way waits for the next group. So the slower the storage, the larger are the
groups, and no thread waits for more than two writes.

With a time limit, writes run on a thread of their own. A write that takes longer, counted from its begin, is
*abandoned*: its callers get a ``TimeoutError``, the next group does not queue behind it, and its items may be
written all the same, some time later or twice. Time in the queue does not count: many callers of a slow
storage wait for each other, and nothing hangs.

An abandoned write keeps its thread until it ends. While ``MOST_HANGING`` of them hang, no other write begins:
items wait for one to end, and get a ``TimeoutError`` when none has within the time limit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import IllegalStateError

T = TypeVar("T")
R = TypeVar("R")

MOST_HANGING = 4
"""The most writes that may hang, each with a thread and its items in memory."""


@dataclass(eq=False)
class _Waiting(Generic[T, R]):
    """An item, and what has become of it."""

    item: T
    has_begun: bool = False
    is_done: bool = False
    result: R | None = None
    error: BaseException | None = None


class GroupCommit(Generic[T, R]):
    """Gives items to ``write`` in groups, one group at a time, and each caller its own result.

    ``fits(group, item)`` says whether one more item may join a group. ``name`` is for messages.
    ``on_abandoned`` is called, under the lock, when a write has taken longer than ``timeout_s``: the next
    group must not use anything that the abandoned one may still use.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[T]], Sequence[R]],
        fits: Callable[[Sequence[T], T], bool],
        timeout_s: float | None = None,
        on_abandoned: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._write = write
        self._fits = fits
        self._timeout_s = timeout_s
        self._on_abandoned = on_abandoned
        self._changed = threading.Condition()
        self._queue: deque[_Waiting[T, R]] = deque()
        self._running: list[_Waiting[T, R]] | None = None
        self._hanging = 0
        self._is_closed = False

    def add(self, item: T) -> R:
        """Return what ``write`` has returned for this item; raise what it has raised for its group."""
        waiting: _Waiting[T, R] = _Waiting(item)
        with self._changed:
            if self._is_closed:
                raise IllegalStateError(f"{self._name} is closed")
            self._queue.append(waiting)
        if self._timeout_s is None:
            self._write_here(waiting)
        else:
            self._write_elsewhere(waiting, self._timeout_s)
        if waiting.error is not None:
            raise waiting.error
        return waiting.result  # type: ignore[return-value]  # None only if R is

    def close(self) -> None:
        """Refuse items from now on, and wait for those that were added, but no longer than the time limit."""
        with self._changed:
            self._is_closed = True
            is_idle = self._changed.wait_for(
                lambda: self._running is None and not self._queue, self._timeout_s
            )
            if not is_idle:
                self._fail(self._queue, TimeoutError(f"{self._name} was closed before its turn"))
                self._queue.clear()
                self._abandon()

    # -- on the threads of the callers ---------------------------------------------------------

    def _write_here(self, waiting: _Waiting[T, R]) -> None:
        """Wait for the write of another caller, or be the one that writes."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting.is_done or self._running is None)
                if waiting.is_done:
                    return
                group = self._next_group()
            failure = self._run(group)
            with self._changed:
                self._running = None
                self._changed.notify_all()
            if failure is not None and not isinstance(failure, Exception):
                raise failure  # Ctrl-C is for this thread alone

    # -- on threads that can be abandoned ------------------------------------------------------

    def _write_elsewhere(self, waiting: _Waiting[T, R], timeout_s: float) -> None:
        with self._changed:
            self._start()
            while not self._changed.wait_for(
                lambda: waiting.has_begun or waiting.is_done, timeout_s
            ):
                if self._running is None:
                    self._queue.remove(waiting)
                    raise TimeoutError(
                        f"{self._name} takes no records: {self._hanging} writes hang, and none has ended "
                        f"within {timeout_s:g} s"
                    )
            if not self._changed.wait_for(lambda: waiting.is_done, timeout_s):
                self._abandon()

    def _start(self) -> None:
        """Begin the next write, if one is due and may begin."""
        if self._running is not None or not self._queue or self._hanging >= MOST_HANGING:
            return
        group = self._next_group()
        try:
            threading.Thread(
                target=self._keep_writing, args=(group,), name="tidemill-log-writer", daemon=True
            ).start()
        except (
            RuntimeError
        ) as error:  # the process has too many threads, for those that wait as well
            self._running = None
            self._fail([*group, *self._queue], error)
            self._queue.clear()

    def _keep_writing(self, group: list[_Waiting[T, R]]) -> None:
        while True:
            self._run(group)
            with self._changed:
                if self._running is not group:  # abandoned: another thread writes now
                    self._hanging -= 1
                    self._start()
                    return
                self._running = None
                if self._queue:
                    group = self._next_group()
                self._changed.notify_all()
                if self._running is None:
                    return

    def _abandon(self) -> None:
        """Wait no longer for the write that runs, if one does, and tell its callers."""
        if self._running is None:
            return
        group, self._running = self._running, None
        self._hanging += 1
        self._on_abandoned()
        limit = f"{self._timeout_s:g} s"
        self._fail(group, TimeoutError(f"{self._name} has not taken a record within {limit}"))
        self._start()

    def _fail(self, group: Iterable[_Waiting[T, R]], error: Exception) -> None:
        for each in group:
            if not each.is_done:
                each.error, each.is_done = error, True
        self._changed.notify_all()

    # -- both ----------------------------------------------------------------------------------

    def _next_group(self) -> list[_Waiting[T, R]]:
        group = [self._queue.popleft()]
        while self._queue and self._fits([each.item for each in group], self._queue[0].item):
            group.append(self._queue.popleft())
        for each in group:
            each.has_begun = True
        self._running = group
        self._changed.notify_all()
        return group

    def _run(self, group: list[_Waiting[T, R]]) -> BaseException | None:
        """Write a group, and tell its callers. Return the error, if there was one."""
        results: Sequence[R | None] = [None] * len(group)
        failure: BaseException | None = None
        try:
            results = self._write([each.item for each in group])
        except BaseException as error:
            failure = error
        told = failure
        if failure is not None and not isinstance(failure, Exception):
            told = InterruptedError(f"a write to {self._name} was interrupted")
        with self._changed:
            for each, result in zip(group, results, strict=True):
                if not each.is_done:  # else its caller was told that the write is abandoned
                    each.result, each.error, each.is_done = result, told, True
            self._changed.notify_all()
        return failure
