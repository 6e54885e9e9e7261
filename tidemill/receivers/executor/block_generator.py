"""Cutting the records that arrive into blocks."""

from __future__ import annotations

import enum
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.common.clock import Clock
from tidemill.common.lines import count_lines
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.errors import IllegalStateError, SourceError
from tidemill.receivers.blocks.format import EncodedBlock, encode_lines, encode_records
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records, require_readable
from tidemill.receivers.executor.rate_limiter import RateLimiter

MAX_BLOCK_BYTES = 8 << 20
"""Cut a block of this size before its interval is over, to bound the memory of waiting records."""

OnSafe = Callable[[], Any]

logger = logging.getLogger(__name__)


class GeneratorState(enum.Enum):
    INITIALIZED = "initialized"  # not started yet: accepts nothing
    ACTIVE = "active"  # records come in, blocks go out
    STOPPED_ADDING = "stopped adding"  # accepts nothing more; cuts the last block
    STOPPED_GENERATING = "stopped generating"  # cuts nothing more; the last blocks go out
    STOPPED = "stopped"  # every block has gone out, or was given up


@dataclass
class PendingBlock:
    """The records of one block, in memory. With ``of_lines``, its items are pieces of text.

    ``on_safe`` has functions to call when the block is safe, by the positions of their items.
    """

    of_lines: bool
    items: list[Any] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    on_safe: dict[int, OnSafe] = field(default_factory=dict)

    def encode(self, read_back: ReadBack = read_back_records) -> EncodedBlock:
        """Return the block; raise ``SourceError`` if its records cannot be written, or read back."""
        if self.of_lines:
            return require_readable(encode_lines(self.items, self.records), read_back)
        return require_readable(encode_records(self.items), read_back, self.items)

    def encode_in_parts(self, read_back: ReadBack = read_back_records) -> list[EncodedBlock]:
        """Return the records in several blocks if they can be read by themselves and not all together:
        numbers and texts of one column, say, each of which could be converted.
        """
        try:
            return [self.encode(read_back)]
        except SourceError:
            if len(self.items) < 2:
                raise
        middle = len(self.items) // 2
        parts = (self.items[:middle], self.items[middle:])
        return [
            block
            for items in parts
            for block in PendingBlock(
                self.of_lines, items, sum(map(self._size_of, items))
            ).encode_in_parts(read_back)
        ]

    def _size_of(self, item: Any) -> int:
        return count_lines(item) if self.of_lines else 1

    def drop_unstorable(self, read_back: ReadBack = read_back_records) -> int:
        """Drop the records that cannot be stored, keep the others, and return how many were dropped."""
        sizes = [self._size_of(item) for item in self.items]
        kept = []
        for at, item in enumerate(self.items):
            try:
                PendingBlock(self.of_lines, [item], sizes[at]).encode(read_back)
                kept.append(at)
            except SourceError:
                pass
        self.items = [self.items[at] for at in kept]
        self.on_safe = {new: self.on_safe[at] for new, at in enumerate(kept) if at in self.on_safe}
        self.records = sum(sizes[at] for at in kept)
        return sum(sizes) - self.records


class BlockGenerator:
    """Collects records, cuts a block at every block interval, and pushes blocks on a thread of its own.

    It calls ``push`` with one block after the other, in order. Meanwhile up to ``queue_size`` blocks wait;
    when the queue and the buffer are full, callers of :meth:`add` wait as well. This bounds the memory, and
    slows down the sender of a receiver that reads no further.

    When ``push`` raises, the generator is dead: it refuses records, and calls ``on_death`` with the error, on
    the pushing thread. Another one can go on with its :meth:`unpushed` blocks, as ``first_blocks``.
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
        on_death: Callable[[BaseException], None] = lambda error: None,
        first_blocks: Sequence[PendingBlock] = (),
    ) -> None:
        self._clock = clock
        self._limiter = limiter
        self._push = push
        self._queue_size = queue_size
        self._max_block_bytes = max_block_bytes
        self._on_death = on_death
        self._state = GeneratorState.INITIALIZED
        self._buffer = PendingBlock(of_lines=False)
        self._is_due = False
        self._may_wait = True
        self._queue = deque(first_blocks)
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

    def refuse_to_wait(self) -> None:
        """From now on refuse records that would have to wait, also those that wait already.

        For a receiver that is about to stop: its ``onStop`` may wait for threads that store.
        """
        with self._changed:
            self._may_wait = False
            self._changed.notify_all()
        self._clock.interrupt_waiters()

    def stop(self, timeout_s: float | None = None) -> int:
        """Accept nothing more, and wait until all accepted records have been pushed.

        1. Refuse new records.
        2. Make the buffer the last block.
        3. Wait for the pushing thread, which ends when the queue is empty.

        Return the number of records that were not pushed within ``timeout_s``: 0, if all is well.
        """
        with self._changed:
            if self._state is GeneratorState.INITIALIZED:
                self._state = GeneratorState.STOPPED
                return 0
            if self._state is GeneratorState.ACTIVE:
                self._state = GeneratorState.STOPPED_ADDING  # 1
                self._changed.notify_all()
        self._clock.interrupt_waiters()
        self._timer.stop()
        with self._changed:
            if self._state is GeneratorState.STOPPED_ADDING:
                self._cut()  # 2
                self._state = GeneratorState.STOPPED_GENERATING
                self._changed.notify_all()
        if self._pusher.ident is not None and self._pusher is not threading.current_thread():
            self._pusher.join(timeout_s)  # 3
        return sum(block.records for block in self.unpushed())

    def unpushed(self) -> list[PendingBlock]:
        """Return the blocks that have not been pushed, the oldest first: of a dead generator, the one that
        it died of."""
        with self._changed:
            return [*self._queue, *([self._buffer] if self._buffer.records else [])]

    # -- records come in -----------------------------------------------------------------------

    def add(self, record: Any, on_safe: OnSafe | None = None) -> None:
        """Accept one record. Wait for the rate limit, and for room."""
        if self._limiter.rate is not None:
            self._wait_for_rate(1)
        self._accept(False, (record,), 1, _size_of(record), on_safe)

    def add_lines(self, piece: bytes, lines: int | None = None) -> None:
        """Accept a piece of whole lines; count them if the caller has not done so."""
        records = count_lines(piece) if lines is None else lines
        while (size := self._limiter.slice_size(records)) < records:
            head, piece = _cut_lines(piece, size)
            self._wait_for_rate(size)
            self._accept(True, (head,), size, len(head), None)
            records -= size
        if records:
            self._wait_for_rate(records)
            self._accept(True, (piece,), records, len(piece), None)

    def _wait_for_rate(self, records: int) -> None:
        if not self._limiter.acquire(records, self._must_not_wait):
            raise self._refusal()

    def _accept(
        self, of_lines: bool, items: Sequence[Any], records: int, size: int, on_safe: OnSafe | None
    ) -> None:
        with self._changed:
            self._make_room(of_lines)
            if self._state is not GeneratorState.ACTIVE:
                raise self._refusal()
            buffer = self._buffer
            buffer.of_lines = of_lines
            if on_safe is not None:
                buffer.on_safe[len(buffer.items)] = on_safe
            buffer.items += items
            buffer.records += records
            buffer.bytes += size

    def _make_room(self, of_lines: bool) -> None:
        """Cut the block in the buffer if it is full, or of another kind. Wait for room in the queue."""
        while self._buffer.bytes >= self._max_block_bytes or (
            self._buffer.of_lines is not of_lines and self._buffer.records
        ):
            # An ``on_safe`` that stores runs on the pushing thread, which would wait for itself.
            if self._has_room() or threading.current_thread() is self._pusher:
                self._cut()
            elif self._must_not_wait():
                raise self._refusal()
            else:
                self._changed.wait()

    def _must_not_wait(self) -> bool:
        return self._state is not GeneratorState.ACTIVE or not self._may_wait

    def _refusal(self) -> IllegalStateError:
        why = (
            "this receiver is being stopped"
            if self._state is GeneratorState.ACTIVE
            else f"the block generator of this receiver is {self._state.value}"
        )
        return IllegalStateError(f"nothing can be stored now: {why}")

    # -- blocks go out -------------------------------------------------------------------------

    def _on_interval(self, _: int) -> None:
        with self._changed:
            if self._has_room():
                self._cut()
            else:
                self._is_due = True  # the pushing thread cuts it, when it has made room

    def _has_room(self) -> bool:
        return len(self._queue) < self._queue_size

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
            except BaseException as error:
                # `push` tries again by itself, and raises only when trying again is useless.
                logger.exception("cannot push blocks any more")
                with self._changed:
                    self._state = GeneratorState.STOPPED
                    self._changed.notify_all()
                self._on_death(error)
                self._timer.stop()
                return
            with self._changed:
                self._queue.popleft()
                if self._is_due:
                    self._cut()
                self._changed.notify_all()


def _size_of(record: Any) -> int:
    """Estimate the memory of a record, down to one level of nesting."""
    size = sys.getsizeof(record)
    if isinstance(record, (str, bytes)):
        return size
    if isinstance(record, dict):
        return size + sum(map(sys.getsizeof, record)) + sum(map(sys.getsizeof, record.values()))
    if isinstance(record, (tuple, list, set, frozenset)):
        return size + sum(map(sys.getsizeof, record))
    return size


def _cut_lines(piece: bytes, lines: int) -> tuple[bytes, bytes]:
    """Split a piece after its first ``lines`` lines."""
    position = 0
    if b"\r" not in piece:
        for _ in range(lines):
            position = piece.index(b"\n", position) + 1
        return piece[:position], piece[position:]
    head = b"".join(piece.splitlines(keepends=True)[:lines])
    return head, piece[len(head) :]
