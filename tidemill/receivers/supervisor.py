"""On the executor: everything around one receiver."""

from __future__ import annotations

import enum
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidemill.common.clock import Clock
from tidemill.errors import IllegalStateError, ReceiverError
from tidemill.receivers.block_format import EncodedBlock, encode_batches, encode_records
from tidemill.receivers.block_generator import BlockGenerator, OnSafe, PendingBlock
from tidemill.receivers.blocks import BlockInfo
from tidemill.receivers.messages import BlockAdded
from tidemill.receivers.rate_limiter import RateLimiter
from tidemill.receivers.receiver import Receiver

RETRY_FIRST_MS = 500
RETRY_LAST_MS = 30_000
FOREVER_MS = 1 << 52

logger = logging.getLogger(__name__)


class ReceiverPhase(enum.Enum):
    STOPPED = "stopped"  # onStart() has not been called, or onStop() has
    STARTED = "started"  # onStart() has been called
    ENDED = "ended"  # will not start again


class Tracker(Protocol):
    """The driver, as a supervisor sees it."""

    def add_block(self, info: BlockInfo) -> BlockAdded: ...

    def report_error(self, message: str, error: str) -> None: ...


class Handler(Protocol):
    """Where blocks are stored."""

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo: ...


@dataclass(frozen=True)
class SupervisorSettings:
    block_interval_ms: int = 200
    queue_size: int = 10
    restart_delay_ms: int = 2000
    max_failures: int = 3
    max_held_bytes: int = 4 << 30


class ReceiverSupervisor:
    """Starts, restarts and stops a receiver, and takes care of what it stores.

    Blocks become safe in the order of these steps, each of which may be repeated:

    1. the block is stored (:class:`tidemill.receivers.block_handler.BlockHandler`);
    2. the driver has taken it over (``AddBlock``);
    3. the receiver is told (``on_safe``, or :meth:`store` returns).
    """

    def __init__(
        self,
        receiver: Receiver,
        stream_id: int,
        run_id: str,
        tracker: Tracker,
        handler: Handler,
        limiter: RateLimiter,
        clock: Clock,
        settings: SupervisorSettings,
    ) -> None:
        self.stream_id = stream_id
        self._receiver = receiver
        self._run_id = run_id
        self._tracker = tracker
        self._handler = handler
        self._limiter = limiter
        self._clock = clock
        self._settings = settings
        self._phase = ReceiverPhase.STOPPED
        self._phase_changed = threading.Condition(threading.RLock())
        # onStart and onStop are never called at the same time, nor twice in a row.
        self._transition = threading.RLock()
        self._storing = threading.Lock()
        self._blocks = 0
        self._held_bytes = 0
        self._gives_up = False
        self.end_message = ""
        self.end_error: str = ""
        self._generator = BlockGenerator(
            clock,
            limiter,
            self._push,
            interval_ms=settings.block_interval_ms,
            queue_size=settings.queue_size,
        )
        receiver._supervisor = self

    # -- the receiver's life -------------------------------------------------------------------

    @property
    def is_receiver_started(self) -> bool:
        return self._phase is ReceiverPhase.STARTED

    def start(self) -> None:
        self._generator.start()
        self._start_receiver()

    def _start_receiver(self) -> None:
        with self._transition:
            with self._phase_changed:
                if self._phase is not ReceiverPhase.STOPPED:
                    return
                self._phase = ReceiverPhase.STARTED
            try:
                self._receiver.onStart()
            except BaseException as error:
                self.restart("the receiver could not start", error)

    def _stop_receiver(self) -> None:
        with self._transition:
            with self._phase_changed:
                if self._phase is not ReceiverPhase.STARTED:
                    return
                self._phase = ReceiverPhase.STOPPED
            self._clock.interrupt_waiters()
            try:
                self._receiver.onStop()
            except BaseException as error:
                self.report_error("the receiver failed while it was being stopped", error)

    def restart(
        self, message: str, error: BaseException | None, delay_s: float | None = None
    ) -> None:
        """Stop the receiver, wait, and start it, on another thread."""
        delay_ms = self._settings.restart_delay_ms if delay_s is None else int(delay_s * 1000)
        self.report_error(f"{message}; it is restarted in {delay_ms} ms", error)
        threading.Thread(
            target=self._restart, args=(delay_ms,), name="tidemill-receiver-restart", daemon=True
        ).start()

    def _restart(self, delay_ms: int) -> None:
        self._stop_receiver()
        if self._clock.wait_till(self._clock.now_ms() + delay_ms, self._has_ended):
            self._start_receiver()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """End the receiver for good. What it has stored goes out; :meth:`wait` returns after that."""
        with self._phase_changed:
            if self._has_ended():
                return
            self.end_message, self.end_error = message, describe(error)
        # On another thread: a receiver may stop itself, and must not wait for its own records.
        threading.Thread(target=self._stop, name="tidemill-receiver-stop", daemon=True).start()

    def _stop(self) -> None:
        self._stop_receiver()
        lost = self._generator.stop()
        if lost:
            self.report_error(f"{lost} records that were received last could not be stored")
        with self._phase_changed:
            self._phase = ReceiverPhase.ENDED
            self._phase_changed.notify_all()
        self._clock.interrupt_waiters()

    def wait(self) -> None:
        """Until the receiver has ended and what it has stored is safe."""
        with self._phase_changed:
            self._phase_changed.wait_for(self._has_ended)

    def give_up(self) -> None:
        """Do not try on with what cannot be stored: the driver is gone."""
        self._gives_up = True
        self._clock.interrupt_waiters()

    def _has_ended(self) -> bool:
        return self._phase is ReceiverPhase.ENDED

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        logger.warning("receiver of stream %d: %s", self.stream_id, message, exc_info=error)
        try:
            self._tracker.report_error(message, describe(error))
        except Exception as unreachable:
            logger.warning("the driver could not be told: %s", unreachable)

    # -- what the driver says ------------------------------------------------------------------

    def update_rate(self, rate: float | None) -> None:
        self._limiter.update(rate)

    def update_held(self, held_bytes: int) -> None:
        """How much of this stream waits to be processed. Too much makes the receiver wait."""
        self._held_bytes = held_bytes
        self._clock.interrupt_waiters()

    # -- what the receiver stores --------------------------------------------------------------

    def store(self, data: Any) -> None:
        if isinstance(data, (bytes, bytearray, memoryview)):
            self._store_block(lambda: encode_records([bytes(data)]))
        elif isinstance(data, pa.RecordBatch):
            self._store_block(lambda: encode_batches([data]))
        elif isinstance(data, pa.Table):
            self._store_block(lambda: encode_batches(data.to_batches()))
        elif isinstance(data, (list, Iterator)):
            records = list(data)
            if records:
                self._store_block(lambda: encode_records(records))
        else:
            self.store_record(data, None)

    def store_record(self, record: Any, on_safe: OnSafe | None) -> None:
        self._generator.add(record, on_safe)

    def store_lines(self, piece: bytes) -> None:
        """A piece of text of whole lines: for receivers that read text, without touching each line."""
        self._generator.add_lines(piece)

    def _store_block(self, encode: Callable[[], EncodedBlock]) -> None:
        block = encode()
        if not block.records:
            return
        if not self._limiter.acquire(block.records, lambda: not self.is_receiver_started):
            raise IllegalStateError("nothing can be stored now: the receiver is being stopped")
        self._make_safe(
            block, (), self._settings.max_failures, lambda: not self.is_receiver_started
        )

    def _push(self, pending: PendingBlock) -> None:
        """A block of the generator's. It waits in memory, so it is tried until it is safe."""
        self._make_safe(pending.encode(), pending.on_safe, None, lambda: self._gives_up)

    def _make_safe(
        self,
        block: EncodedBlock,
        on_safe: Iterable[OnSafe],
        max_failures: int | None,
        interrupted: Callable[[], bool],
    ) -> None:
        with self._storing:
            self._wait_for_room(interrupted)
            block_id = f"input-{self.stream_id}-{self._run_id}-{self._blocks}"
            self._blocks += 1
            info: BlockInfo | None = None
            failures = 0
            while True:
                try:
                    info = info or self._handler.store(block_id, block)  # 1
                    answer = self._tracker.add_block(info)  # 2
                    if not answer.accepted:
                        raise ReceiverError(f"the driver did not take it over: {answer.reason}")
                    self._held_bytes = answer.held_bytes
                    break
                except Exception as error:
                    failures += 1
                    if self._gives_up or failures == max_failures:
                        raise
                    self.report_error(f"a block of {block.records} records is not safe yet", error)
                    pause_ms = min(RETRY_FIRST_MS << (failures - 1), RETRY_LAST_MS)
                    self._clock.wait_till(self._clock.now_ms() + pause_ms, lambda: self._gives_up)
        for tell in on_safe:  # 3
            try:
                tell()
            except BaseException as error:
                self.report_error("on_safe of the receiver failed", error)

    def _wait_for_room(self, interrupted: Callable[[], bool]) -> None:
        """Backpressure of the last resort: batches stand still, and so does who would wait for them."""
        limit = self._settings.max_held_bytes
        if self._held_bytes < limit:
            return
        logger.warning(
            "receiver of stream %d waits: %d bytes have not been processed yet",
            self.stream_id,
            self._held_bytes,
        )
        self._clock.wait_till(FOREVER_MS, lambda: self._held_bytes < limit or interrupted())
        if self._held_bytes >= limit:
            raise IllegalStateError("nothing can be stored now: the receiver is being stopped")


def describe(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))
