"""On the executor: everything around one receiver."""

from __future__ import annotations

import enum
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidemill.common.clock import FOREVER_MS, Clock
from tidemill.errors import IllegalStateError, ReceiverError, SourceError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, encode_batches, encode_records
from tidemill.receivers.executor.block_generator import (
    BlockGenerator,
    GeneratorState,
    OnSafe,
    PendingBlock,
)
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.messages import BlockAdded
from tidemill.receivers.receiver import Receiver
from tidemill.spark.session.failures import user_traceback

RETRY_FIRST_MS = 500
RETRY_LAST_MS = 30_000

logger = logging.getLogger(__name__)


class ReceiverPhase(enum.Enum):
    STOPPED = "stopped"  # onStart() has not been called, or onStop() has
    STARTED = "started"  # onStart() has been called, or is being called
    STOPPING = "stopping"  # it has been asked to stop; onStop() follows when onStart() has returned
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

    1. the block is stored (:class:`tidemill.receivers.executor.block_handler.BlockHandler`);
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
        # Held while onStart or onStop is called: never at the same time, nor twice in a row.
        self._transition = threading.RLock()
        self._storing = threading.Lock()
        self._block_numbers = itertools.count()
        self._held_bytes = 0
        self._is_ending = False
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
        """Call ``onStart``. Does nothing if the receiver has been stopped already."""
        with self._transition:
            if not self._is_ending:
                self._generator.start()
        self._start_receiver()

    def _start_receiver(self) -> None:
        with self._transition:
            with self._phase_changed:
                if self._phase is not ReceiverPhase.STOPPED or self._is_ending:
                    return
                self._phase = ReceiverPhase.STARTED
            try:
                self._receiver.onStart()
            except BaseException as error:
                self.restart("the receiver could not start", error)

    def _stop_receiver(self) -> None:
        with self._transition:
            if self._phase is not ReceiverPhase.STOPPING:
                return
            try:
                self._receiver.onStop()
            except BaseException as error:
                self.report_error("the receiver failed while it was being stopped", error)
            with self._phase_changed:
                self._phase = ReceiverPhase.STOPPED

    def restart(
        self, message: str, error: BaseException | None, delay_s: float | None = None
    ) -> None:
        """Stop the receiver, wait, and start it, on another thread."""
        with self._phase_changed:
            if self._phase is not ReceiverPhase.STARTED:
                # It is being stopped, or restarted: threads fail when what they read from is closed.
                logger.info("receiver of stream %d: %s", self.stream_id, message, exc_info=error)
                return
            self._phase = ReceiverPhase.STOPPING
        self._clock.interrupt_waiters()
        delay_ms = self._settings.restart_delay_ms if delay_s is None else int(delay_s * 1000)
        self.report_error(f"{message}; it is restarted in {delay_ms} ms", error)
        threading.Thread(
            target=self._restart, args=(delay_ms,), name="tidemill-receiver-restart", daemon=True
        ).start()

    def _restart(self, delay_ms: int) -> None:
        self._stop_receiver()
        if self._clock.wait_till(self._clock.now_ms() + delay_ms, lambda: self._is_ending):
            self._start_receiver()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """End the receiver for good. What it has stored goes out; :meth:`wait` returns after that."""
        with self._phase_changed:
            if self._is_ending:
                return
            self._is_ending = True
            self.end_message, self.end_error = message, describe(error)
            if self._phase is ReceiverPhase.STARTED:
                self._phase = ReceiverPhase.STOPPING
        self._generator.refuse_to_wait()
        # On another thread: a receiver may stop itself, and must not wait for its own records.
        threading.Thread(target=self._stop, name="tidemill-receiver-stop", daemon=True).start()

    def _stop(self) -> None:
        """
        1. ``onStop``, if ``onStart`` has been called. What is stored until it returns is accepted.
        2. Nothing is accepted any more, and what has been accepted is made safe.
        3. Whoever waits for the end is told.
        """
        try:
            self._stop_receiver()  # 1
            if lost := self._generator.stop():  # 2
                self.report_error(f"{lost} records that were received last could not be stored")
        finally:
            with self._phase_changed:  # 3
                self._phase = ReceiverPhase.ENDED
                self._phase_changed.notify_all()
            self._clock.interrupt_waiters()

    def wait(self) -> None:
        """Until the receiver has ended and what it has stored is safe."""
        with self._phase_changed:
            self._phase_changed.wait_for(lambda: self._phase is ReceiverPhase.ENDED)

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    def give_up(self) -> None:
        """Do not try on with what cannot be stored: who asked for the end does not wait any more."""
        self._gives_up = True
        self._clock.interrupt_waiters()

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        try:
            self._tracker.report_error(message, describe(error))
            logger.info("receiver of stream %d: %s", self.stream_id, message, exc_info=error)
        except Exception as unreachable:
            # Else the driver says it: both together would be on one terminal, in local mode.
            logger.warning("receiver of stream %d: %s", self.stream_id, message, exc_info=error)
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
            self._store_block(encode_records([bytes(data)]))
        elif isinstance(data, pa.RecordBatch):
            self._store_block(encode_batches([data]))
        elif isinstance(data, pa.Table):
            self._store_block(encode_batches(data.to_batches()))
        elif isinstance(data, (list, Iterator)):
            self._store_block(encode_records(list(data)))
        else:
            self.store_record(data, None)

    def store_record(self, record: Any, on_safe: OnSafe | None) -> None:
        self._generator.add(record, on_safe)

    def store_lines(self, piece: bytes) -> None:
        """A piece of text of whole lines: for receivers that read text, without touching each line."""
        self._generator.add_lines(piece)

    def _store_block(self, block: EncodedBlock) -> None:
        """A block of the receiver's own, which waits for it and has the data still: it may be refused."""
        if self._generator.state is not GeneratorState.ACTIVE:
            raise self._refusal()
        if not block.records:
            return
        if not self._limiter.acquire(block.records, self._is_interrupted):
            raise self._refusal()
        self._wait_for_room(self._is_interrupted)
        if not self._has_room() and self._is_interrupted():
            raise self._refusal()
        self._make_safe(
            block,
            lambda failures, _: failures >= self._settings.max_failures or self._is_interrupted(),
        )

    def _push(self, pending: PendingBlock) -> None:
        """A block of the generator's, which nobody else has: it is tried until it is safe.

        Only when the receiver ends, and the driver goes on refusing it, is it given up.
        """
        block = self._encode(pending)
        # The last blocks before the end are stored in any case: there are not many.
        self._wait_for_room(lambda: self._is_ending or self._gives_up)
        if block.records:
            self._make_safe(block, self._is_given_up)
        for tell in pending.on_safe.values():
            try:
                tell()
            except BaseException as error:
                self.report_error("on_safe of the receiver failed", error)

    def _is_given_up(self, failures: int, error: Exception) -> bool:
        refused_at_the_end = self._is_ending and isinstance(error, ReceiverError)
        return self._gives_up or (refused_at_the_end and failures >= self._settings.max_failures)

    def _encode(self, pending: PendingBlock) -> EncodedBlock:
        try:
            return pending.encode()
        except SourceError as error:
            dropped = pending.drop_what_cannot_be_stored()
            self.report_error(f"{dropped} records are lost, because they cannot be stored", error)
            return pending.encode()

    def _make_safe(
        self, block: EncodedBlock, is_hopeless: Callable[[int, Exception], bool]
    ) -> None:
        """Steps 1 and 2, until they succeed. Raises if that is hopeless after so many failures."""
        block_id = f"input-{self.stream_id}-{self._run_id}-{next(self._block_numbers)}"
        info: BlockInfo | None = None
        for failures in itertools.count(1):
            try:
                with self._storing:
                    info = info or self._handler.store(block_id, block)  # 1
                    answer = self._tracker.add_block(info)  # 2
                if answer.accepted:
                    self._held_bytes = answer.held_bytes
                    return
                raise ReceiverError(f"the driver did not take it over: {answer.reason}")
            except Exception as error:
                if is_hopeless(failures, error):
                    raise
                self.report_error(f"a block of {block.records} records is not safe yet", error)
                pause_ms = min(RETRY_FIRST_MS << min(failures - 1, 10), RETRY_LAST_MS)
                self._pause(pause_ms)

    def _pause(self, pause_ms: int) -> None:
        """Before another try. Who is to stop tries again at once."""
        before = (self._phase, self._is_ending, self._gives_up)
        self._clock.wait_till(
            self._clock.now_ms() + pause_ms,
            lambda: (self._phase, self._is_ending, self._gives_up) != before,
        )

    def _wait_for_room(self, interrupted: Callable[[], bool]) -> None:
        """Backpressure of the last resort: batches stand still, and so does who would wait for them."""
        if self._has_room():
            return
        logger.warning(
            "receiver of stream %d waits: %d bytes have not been processed yet",
            self.stream_id,
            self._held_bytes,
        )
        self._clock.wait_till(FOREVER_MS, lambda: self._has_room() or interrupted())

    def _has_room(self) -> bool:
        return self._held_bytes < self._settings.max_held_bytes

    def _is_interrupted(self) -> bool:
        return not self.is_receiver_started

    def _refusal(self) -> IllegalStateError:
        return IllegalStateError("nothing can be stored now: the receiver is being stopped")


def describe(error: BaseException | None) -> str:
    return "" if error is None else user_traceback(error)
