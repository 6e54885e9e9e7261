"""From records that arrive to blocks that are stored."""

from __future__ import annotations

import enum
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.common.clock import Clock
from tidemill.common.lines import count_lines
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.errors import IllegalStateError
from tidemill.receivers.block_format import EncodedBlock, encode_lines, encode_records
from tidemill.receivers.rate_limiter import RateLimiter

MAX_BLOCK_BYTES = 8 << 20
"""A block that has grown to this size is cut before its interval is over: what waits in memory is bounded."""

OnSafe = Callable[[], Any]


class GeneratorState(enum.Enum):
    INITIALIZED = "initialized"  # not started yet: nothing is accepted
    ACTIVE = "active"  # records come in, blocks go out
    STOPPED_ADDING = "stopped adding"  # nothing is accepted any more; the last block is being cut
    STOPPED_GENERATING = "stopped generating"  # no other block will be cut; the last ones go out
    STOPPED = "stopped"  # every block has gone out, or has been given up


@dataclass
class PendingBlock:
    """Records that belong to one block, in memory. ``of_lines``: they are pieces of text."""

    of_lines: bool
    items: list[Any] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    on_safe: list[OnSafe] = field(default_factory=list)

    def encode(self) -> EncodedBlock:
        if self.of_lines:
            return encode_lines(self.items, self.records)
        return encode_records(self.items)


class BlockGenerator:
    """Collects records, cuts a block at every block interval, and pushes blocks on a thread of its own.

    ``push`` is given one block after the other, in order. While it is busy up to ``queue_size`` blocks
    wait; when these and the buffer are full, whoever adds a record waits as well. So what is held in
    memory is bounded, and a sender whose receiver does not read on is slowed down.
    """

    def __init__(
        self,
        clock: Clock,
        limiter: RateLimiter,
        push: Callable[[PendingBlock], None],
        *,
        interval_ms: int,
        queue_size: int,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> None:
        self._clock = clock
        self._limiter = limiter
        self._push = push
        self._queue_size = queue_size
        self._max_block_bytes = max_block_bytes
        self._state = GeneratorState.INITIALIZED
        self._buffer = PendingBlock(of_lines=False)
        self._is_due = False
        self._queue: deque[PendingBlock] = deque()
        self._changed = threading.Condition()
        self._timer = RecurringTimer(clock, interval_ms, self._on_interval, "blocks")
        self._pusher = threading.Thread(
            target=self._keep_pushing, name="tidemill-block-pusher", daemon=True
        )

    @property
    def state(self) -> GeneratorState:
        return self._state

    def start(self) -> None:
        with self._changed:
            if self._state is not GeneratorState.INITIALIZED:
                raise IllegalStateError(f"this block generator is {self._state.value} already")
            self._state = GeneratorState.ACTIVE
        self._timer.start()
        self._pusher.start()

    def stop(self, timeout_s: float | None = None) -> int:
        """Accept nothing more, and wait until what was accepted has been pushed.

        1. no record is accepted any more;
        2. what is in the buffer becomes the last block;
        3. the pushing thread ends when the queue is empty.

        The number of records that were not pushed within ``timeout_s``: 0, if all is well.
        """
        with self._changed:
            was_active = self._state is GeneratorState.ACTIVE
            if was_active:
                self._state = GeneratorState.STOPPED_ADDING  # 1
                self._changed.notify_all()
            elif self._state is GeneratorState.INITIALIZED:
                self._state = GeneratorState.STOPPED
        self._clock.interrupt_waiters()
        if was_active:
            self._timer.stop()
            with self._changed:
                self._cut()  # 2
                self._state = GeneratorState.STOPPED_GENERATING
                self._changed.notify_all()
        if self._pusher.ident is not None and self._pusher is not threading.current_thread():
            self._pusher.join(timeout_s)  # 3
        with self._changed:
            return sum(block.records for block in self._queue)

    # -- records come in -----------------------------------------------------------------------

    def add(self, record: Any, on_safe: OnSafe | None = None) -> None:
        """Accept one record. Waits for the rate limit, and for room."""
        if self._limiter.rate is not None:
            self._limiter.acquire(1, self._is_closed)
        self._accept(False, (record,), 1, _size_of(record), on_safe)

    def add_lines(self, piece: bytes, lines: int | None = None) -> None:
        """Accept a piece of whole lines, which are counted if the caller has not done so."""
        records = count_lines(piece) if lines is None else lines
        while (size := self._limiter.slice_size(records)) < records:
            head, piece = _cut_lines(piece, size)
            self._limiter.acquire(size, self._is_closed)
            self._accept(True, (head,), size, len(head), None)
            records -= size
        if records:
            self._limiter.acquire(records, self._is_closed)
            self._accept(True, (piece,), records, len(piece), None)

    def _accept(
        self, of_lines: bool, items: Sequence[Any], records: int, size: int, on_safe: OnSafe | None
    ) -> None:
        with self._changed:
            buffer = self._buffer
            if buffer.bytes >= self._max_block_bytes or (
                buffer.of_lines is not of_lines and buffer.records
            ):
                self._changed.wait_for(self._has_room)
                self._refuse_unless_active()
                self._cut()
            self._refuse_unless_active()
            buffer = self._buffer
            buffer.of_lines = of_lines
            buffer.items += items
            buffer.records += records
            buffer.bytes += size
            if on_safe is not None:
                buffer.on_safe.append(on_safe)

    def _refuse_unless_active(self) -> None:
        if self._state is not GeneratorState.ACTIVE:
            raise IllegalStateError(
                f"nothing can be stored now: the block generator of this receiver is {self._state.value}"
            )

    def _is_closed(self) -> bool:
        return self._state is not GeneratorState.ACTIVE

    # -- blocks go out -------------------------------------------------------------------------

    def _on_interval(self, _: int) -> None:
        with self._changed:
            if self._has_room():
                self._cut()
            else:
                self._is_due = True  # the pushing thread does it, when it has made room

    def _has_room(self) -> bool:
        return len(self._queue) < self._queue_size or self._is_closed()

    def _cut(self) -> None:
        self._is_due = False
        if self._buffer.records:
            self._queue.append(self._buffer)
            self._buffer = PendingBlock(of_lines=False)
            self._changed.notify_all()

    def _keep_pushing(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._queue or self._state is GeneratorState.STOPPED_GENERATING
                )
                if not self._queue:
                    self._state = GeneratorState.STOPPED
                    self._changed.notify_all()
                    return
                block = self._queue[0]
            try:
                self._push(block)
            except Exception:
                # `push` reports its own errors, and raises only when there is no use in trying on.
                with self._changed:
                    self._state = GeneratorState.STOPPED
                    self._changed.notify_all()
                return
            with self._changed:
                self._queue.popleft()
                if self._is_due:
                    self._cut()
                self._changed.notify_all()


def _size_of(record: Any) -> int:
    return len(record) if isinstance(record, (str, bytes)) else sys.getsizeof(record)


def _cut_lines(piece: bytes, lines: int) -> tuple[bytes, bytes]:
    """The first so many lines of a piece, and the rest."""
    position = 0
    if b"\r" not in piece:
        for _ in range(lines):
            position = piece.index(b"\n", position) + 1
        return piece[:position], piece[position:]
    head = b"".join(piece.splitlines(keepends=True)[:lines])
    return head, piece[len(head) :]
