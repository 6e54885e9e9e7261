"""The supervisor of one receiver: starts and stops it, and makes safe what it stores."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError, ReceiverError, SourceError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, encode_records
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records, require_readable
from tidemill.receivers.executor.block_generator import (
    BlockGenerator,
    GeneratorState,
    OnSafe,
    PendingBlock,
)
from tidemill.receivers.executor.held_bytes import HeldBytes
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.executor.supervision import (
    FailedStarts,
    Handler,
    ReceiverPhase,
    SupervisorSettings,
    Tracker,
    block_of,
    describe,
    retry_pause_ms,
)
from tidemill.receivers.executor.unreported_blocks import UnreportedBlocks
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import RequestKey

logger = logging.getLogger(__name__)


class ReceiverSupervisor:
    """Starts, restarts and stops a receiver, and makes its blocks safe.

    A block that the stream could not read is refused first (:mod:`tidemill.receivers.blocks.read_back`).
    Then it becomes safe in these steps, each of which may be repeated:

    1. store the block (:class:`tidemill.receivers.executor.block_handler.BlockHandler`);
    2. report it to the driver, which adds it (``AddBlock``);
    3. tell the receiver (``on_safe``, or :meth:`store` returns).
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
        read_back: ReadBack = read_back_records,
        title: str = "",
    ) -> None:
        self.stream_id = stream_id
        self._title = title or f"the receiver of stream {stream_id}"
        self._receiver = receiver
        self._run_id = run_id
        self._tracker = tracker
        self._handler = handler
        self._limiter = limiter
        self.slice_size = limiter.slice_size  # how many records a receiver may store at once
        self._clock = clock
        self._settings = settings
        self._read_back = read_back
        self._phase = ReceiverPhase.STOPPED
        self._phase_changed = threading.Condition(threading.RLock())
        # Held during onStart and onStop, which never run at the same time, nor twice in a row.
        self._transition = threading.RLock()
        self._unreported = UnreportedBlocks()
        self._held = HeldBytes(clock, settings.max_held_bytes, tracker.ask_held, self._title)
        self._failed_starts = FailedStarts(settings.max_failed_starts)
        self._is_ending = False
        self._gives_up = False
        self.end_message = ""
        self.end_error: str = ""
        self.is_abandoned = False
        self._generator = self._new_generator()
        receiver._supervisor = self

    def _new_generator(self, first_blocks: Sequence[PendingBlock] = ()) -> BlockGenerator:
        return BlockGenerator(
            self._clock,
            self._limiter,
            self._push,
            interval_ms=self._settings.block_interval_ms,
            queue_size=self._settings.queue_size,
            on_death=self._on_dead_generator,
            first_blocks=first_blocks,
        )

    # -- the receiver's life -------------------------------------------------------------------

    @property
    def is_receiver_started(self) -> bool:
        return self._phase is ReceiverPhase.STARTED

    def start(self) -> None:
        """Call ``onStart``. Do nothing if the receiver has been stopped already."""
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
            self._replace_dead_generator()
            try:
                self._receiver.onStart()
                self._failed_starts.forget()
            except BaseException as error:
                self._not_started(error)

    def _not_started(self, error: BaseException) -> None:
        """Start the receiver again after a while. IF that was its last try, it ends as failed."""
        if reason := self._failed_starts.reason_to_try_again(error):
            self.restart(reason, error)
        else:
            self.stop(str(self._failed_starts), error)

    def _stop_receiver(self) -> bool:
        """Call ``onStop``. Return False if it, or ``onStart`` before it, has not returned in time."""
        if self._phase is not ReceiverPhase.STOPPING:
            return True
        timeout_s = self._settings.stop_timeout_ms / 1000
        has_started = self._transition.acquire(timeout=timeout_s)
        try:
            if self._phase is not ReceiverPhase.STOPPING:
                return True
            stopping = threading.Thread(target=self._call_on_stop, name="on-stop", daemon=True)
            if has_started:
                stopping.start()
                stopping.join(timeout_s)
                if not stopping.is_alive():
                    return True
        finally:
            with self._phase_changed:
                if self._phase is ReceiverPhase.STOPPING:
                    self._phase = ReceiverPhase.STOPPED
            if has_started:
                self._transition.release()
        self.report_error(
            f"{'onStop' if has_started else 'onStart'}() of the receiver has not returned {timeout_s:g} s "
            "after it was asked to stop, and is given up: its threads may still run, and its connections "
            "may still be open"
        )
        return False

    def _call_on_stop(self) -> None:
        try:
            self._receiver.onStop()
        except BaseException as error:
            self.report_error("the receiver failed while it was being stopped", error)

    def _on_dead_generator(self, error: BaseException) -> None:
        if not self._gives_up:
            self.restart("its records cannot be stored any more", error)

    def _replace_dead_generator(self) -> None:
        """Start another block generator if the last one has died. Only the block that it died of is lost."""
        with self._phase_changed:
            if self._is_ending or self._generator.state is not GeneratorState.STOPPED:
                return
            cause, *others = self._generator.unpushed()
            self._generator = self._new_generator(others)
            self._generator.start()
        self.report_error(f"{cause.records} records are lost, because they cannot be stored")

    def restart(
        self, message: str, error: BaseException | None, delay_s: float | None = None
    ) -> None:
        """Stop the receiver, wait, and start it again, on another thread."""
        with self._phase_changed:
            if self._phase is not ReceiverPhase.STARTED:
                # It is stopping or restarting already: its threads fail when their connections close.
                logger.info("%s: %s", self._title, message, exc_info=error)
                return
            self._phase = ReceiverPhase.STOPPING
        self._clock.interrupt_waiters()
        delay_ms = self._settings.restart_delay_ms if delay_s is None else int(delay_s * 1000)
        self.report_error(f"{message}; it is restarted in {delay_ms} ms", error)
        threading.Thread(
            target=self._restart, args=(delay_ms,), name="tidemill-receiver-restart", daemon=True
        ).start()

    def _restart(self, delay_ms: int) -> None:
        """Start the receiver again. IF it does not stop, give it up: the driver starts another copy of it."""
        if not self._stop_receiver():
            self.is_abandoned = True
            self.stop("the receiver did not stop for its restart")
        elif self._clock.wait_till(self._clock.now_ms() + delay_ms, lambda: self._is_ending):
            self._start_receiver()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """End the receiver for good. :meth:`wait` returns when its records are safe."""
        with self._phase_changed:
            if self._is_ending:
                return
            self._is_ending = True
            self.end_message, self.end_error = message, describe(error)
            if self._phase is ReceiverPhase.STARTED:
                self._phase = ReceiverPhase.STOPPING
        self._generator.refuse_to_wait()
        # On another thread: a receiver that stops itself must not wait for its own records.
        threading.Thread(target=self._stop, name="tidemill-receiver-stop", daemon=True).start()

    def _stop(self) -> None:
        """End the receiver.

        1. Call ``onStop``, if ``onStart`` was called; accept records until it returns.
        2. Accept nothing more, and make safe what was accepted.
        3. Wake the threads that wait for the end.
        """
        try:
            self._stop_receiver()  # 1
            if lost := self._generator.stop():  # 2
                self.report_error(f"the last {lost} records could not be stored")
        finally:
            with self._phase_changed:  # 3
                self._phase = ReceiverPhase.ENDED
                self._phase_changed.notify_all()
            self._clock.interrupt_waiters()

    def wait(self) -> None:
        """Wait until the receiver has ended and its records are safe."""
        with self._phase_changed:
            self._phase_changed.wait_for(lambda: self._phase is ReceiverPhase.ENDED)

    @property
    def is_ending(self) -> bool:
        """True from the call of :meth:`stop` on."""
        return self._is_ending

    def give_up(self) -> None:
        """Stop retrying blocks that cannot be stored: the driver does not wait for them any more."""
        self._gives_up = True
        self._clock.interrupt_waiters()

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an error to the driver, or log it here if the driver cannot be reached."""
        try:
            self._tracker.report_error(message, describe(error))
            logger.info("%s: %s", self._title, message, exc_info=error)
        except Exception as unreachable:
            # Not above: the driver logs what it was told, in local mode on the same terminal.
            logger.warning("%s: %s", self._title, message, exc_info=error)
            logger.warning("cannot report it to the driver: %s", unreachable)

    # -- calls of the driver -------------------------------------------------------------------

    def update_rate(self, rate: float | None, version: int = 0) -> None:
        self._limiter.update(rate, version)

    def update_held(self, held_bytes: int, version: int = 0) -> None:
        """Set how many bytes of this stream wait to be processed. Too many make the receiver wait."""
        self._held.update(held_bytes, version)

    # -- storing -------------------------------------------------------------------------------

    def store(self, data: Any) -> None:
        block = block_of(data, self._read_back)
        if block is None:
            self.store_record(data, None)
        else:
            self._store_block(block)

    def store_record(self, record: Any, on_safe: OnSafe | None) -> None:
        self._generator.add(record, on_safe)

    def store_lines(self, piece: bytes) -> None:
        """Store a piece of whole lines, for receivers that read text, without splitting it."""
        self._generator.add_lines(piece)

    def store_requests(
        self, records: list[Any], keys: Sequence[RequestKey]
    ) -> tuple[RequestKey, ...]:
        """Store the records of some requests as one block, unless one of the requests was stored before.

        Return those that were; then nothing is stored, and the others are to be stored again.
        """
        return self._store_block(self.encode(records), keys)

    def encode(self, records: list[Any]) -> EncodedBlock:
        """Return records as a block; raise ``SourceError`` if they cannot be written, or read back."""
        return require_readable(encode_records(records), self._read_back, records)

    def _store_block(
        self, block: EncodedBlock, keys: Sequence[RequestKey] = ()
    ) -> tuple[RequestKey, ...]:
        """Store a block of the receiver, or raise: the receiver waits, and still has the data."""
        if self._generator.state is not GeneratorState.ACTIVE:
            raise self._refusal()
        if not block.records:
            return ()
        if not self._limiter.acquire(block.records, self._is_interrupted):
            raise self._refusal()
        self._held.wait_for_room(self._is_interrupted)
        if not self._held.has_room() and self._is_interrupted():
            raise self._refusal()
        return self._make_safe(
            block,
            lambda failures, _: failures >= self._settings.max_failures or self._is_interrupted(),
            keys,
        )

    def _push(self, pending: PendingBlock) -> None:
        """Store a block of the generator, which has the only copy: try until it is safe, or until the
        receiver is ending and the driver keeps refusing it."""
        blocks = self._encode(pending)
        # Store the last blocks before the end in any case: they are few.
        self._held.wait_for_room(lambda: self._is_ending or self._gives_up)
        for block in blocks:
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

    def _encode(self, pending: PendingBlock) -> list[EncodedBlock]:
        try:
            return [pending.encode(self._read_back)]
        except SourceError as error:
            if dropped := pending.drop_unstorable(self._read_back):
                what = f"{dropped} records are lost, because they cannot be stored"
                self.report_error(what, error)
        return pending.encode_in_parts(self._read_back)

    def _make_safe(
        self,
        block: EncodedBlock,
        is_hopeless: Callable[[int, Exception], bool],
        keys: Sequence[RequestKey] = (),
    ) -> tuple[RequestKey, ...]:
        """Repeat steps 1 and 2 until they succeed. Raise when ``is_hopeless(failures, error)``.

        Return the requests of the block that were stored before: then the block is not stored.
        """
        with self._unreported.next_block() as number:
            block_id = f"input-{self.stream_id}-{self._run_id}-{number}"
            info: BlockInfo | None = None
            for failures in itertools.count(1):
                try:
                    if info is None:
                        info = self._handler.store(block_id, block)  # 1
                        self._unreported.stored(number, info)
                    answer = self._tracker.add_block(  # 2
                        info, keys, *self._unreported.oldest(info)
                    )
                    fault_point("block.reported")
                    self.update_held(answer.held_bytes, answer.held_version)
                    if answer.repeated:
                        self._handler.discard(info)
                        return answer.repeated
                    if answer.accepted:
                        return ()
                    raise ReceiverError(f"the driver refused the block: {answer.reason}")
                except Exception as error:
                    if is_hopeless(failures, error):
                        raise
                    self.report_error(f"a block of {block.records} records is not safe yet", error)
                    self._pause(retry_pause_ms(failures))
        raise AssertionError("the loop ends only by returning or raising")

    def _pause(self, pause_ms: int) -> None:
        """Wait before another try; try at once when the receiver begins to stop."""
        before = (self._phase, self._is_ending, self._gives_up)
        self._clock.wait_till(
            self._clock.now_ms() + pause_ms,
            lambda: (self._phase, self._is_ending, self._gives_up) != before,
        )

    def _is_interrupted(self) -> bool:
        return not self.is_receiver_started

    def _refusal(self) -> IllegalStateError:
        return IllegalStateError("nothing can be stored now: the receiver is being stopped")
