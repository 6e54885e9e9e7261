"""The receiver tracker: starts receivers, watches them, and passes their blocks on to the block tracker."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.failures.failed_streams import note_failure
from tidemill.failures.repeated_errors import RepeatedErrors
from tidemill.progress.batch_info import ReceiverInfo
from tidemill.progress.events import (
    ReceiverReportedError,
    ReceiverStarted,
    ReceiverStopped,
    StreamEvent,
)
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records
from tidemill.receivers.driver.block_cleaner import BlockCleaner
from tidemill.receivers.driver.block_reports import BlockReports
from tidemill.receivers.driver.block_server_list import BlockServerList
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.driver.receiver_jobs import ReceiverJobs
from tidemill.receivers.driver.receiver_news import ReceiverNews
from tidemill.receivers.driver.receiver_registry import ReceiverRegistry
from tidemill.receivers.driver.scheduling_policy import (
    reschedule_receiver,
    schedule_receivers,
    still_alive,
)
from tidemill.receivers.driver.tracking_info import ReceiverState
from tidemill.receivers.messages import (
    FROM_EXECUTORS,
    AddBlock,
    AddBlockServer,
    AskHeldBytes,
    CleanupReceivedBlocks,
    DeregisterReceiver,
    Done,
    ReceiverJobEnded,
    Registered,
    RegisterReceiver,
    ReportError,
    RestartReceiver,
    StartAllReceivers,
    UpdateReceiverHeld,
    UpdateReceiverRateLimit,
    decode,
)
from tidemill.receivers.receiver import Receiver
from tidemill.spark.session.executor_info import ExecutorInfo, Location

if TYPE_CHECKING:
    from tidemill.spark.session.executors import SparkExecutors

FIRST_PAUSE_MS = 250
LONGEST_PAUSE_MS = 30_000
FAILED_STARTS_BEFORE_MOVING = 3
"""After this many failed starts, a receiver may run on any executor that has a core for it."""

logger = logging.getLogger(__name__)

TrackerEvent = (
    StartAllReceivers
    | RestartReceiver
    | UpdateReceiverRateLimit
    | UpdateReceiverHeld
    | CleanupReceivedBlocks
    | ReceiverJobEnded
)


@dataclass(frozen=True)
class ReceiverInput:
    """An input stream that has a receiver. ``name`` is its name in the checkpoint.

    ``read_back`` reads a block as the tasks of the stream will. ``stream_title`` is what people call the
    stream.
    """

    stream_id: int
    name: str
    receiver: Receiver
    pickled: bytes
    read_back: ReadBack = read_back_records
    stream_title: str = ""

    @property
    def title(self) -> str:
        """What the log calls the receiver: its class, and its stream."""
        return f"the {type(self.receiver).__name__} of {self.stream_title or self.name}"


class ReceiverTracker:
    """Starts, watches and restarts all receivers of a stream.

    Every start of a receiver is a Spark job of its own, so Spark's limit on the failures of a task does not
    limit restarts. One thread handles all starts, in order; calls of executors are answered at once, on the
    thread of the call.
    """

    def __init__(
        self,
        inputs: Sequence[ReceiverInput],
        blocks: BlockTracker,
        executors: SparkExecutors,
        jobs: ReceiverJobs,
        cleaner: BlockCleaner,
        calls: ExecutorCalls,
        post: Callable[[StreamEvent], None],
        clock: Clock,
    ) -> None:
        self._inputs = {each.stream_id: each for each in inputs}
        self._blocks = blocks
        self._executors = executors
        self._jobs = jobs
        self._cleaner = cleaner
        self._calls = calls
        self._post = post
        self._clock = clock
        self._registry = ReceiverRegistry(
            (stream_id, type(each.receiver).__name__) for stream_id, each in self._inputs.items()
        )
        names = {stream_id: each.name for stream_id, each in self._inputs.items()}
        self._reports = BlockReports(names, blocks, cleaner, self._registry)
        self._news = ReceiverNews(self._registry, calls, clock)
        self._block_servers = BlockServerList()
        self._errors = {stream_id: RepeatedErrors() for stream_id in self._inputs}
        self._events: EventLoop[TrackerEvent] = EventLoop(
            "receiver-tracker", self._on_event, self._on_error
        )

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self) -> None:
        self._events.start()
        self._events.post(StartAllReceivers())

    def stop_receivers(self, message: str, timeout_s: float) -> bool:
        """Ask all receivers to end, and wait for them. Return False if some still run after ``timeout_s``.

        When they have ended, the block tracker knows everything they have stored.
        """
        # Who asks again does not wait any more for what the receivers could not store so far.
        at_once = not self._registry.accepts
        endpoints = self._registry.refuse_all()
        self._clock.interrupt_waiters()
        self._news.stop(endpoints, message, at_once)
        return self._jobs.wait(timeout_s)

    def stop(self) -> None:
        """End everything. Idempotent."""
        self._registry.refuse_all()
        self._clock.interrupt_waiters()
        try:
            self._jobs.cancel()
        except Exception as error:  # Spark may be gone, and its jobs with it
            logger.info("cannot cancel the jobs of receivers: %s", error)
        self._blocks.close()
        self._events.stop()
        self._calls.stop_block_servers(self._block_servers.remove_all())
        self._calls.close()

    def receiver_info(self, stream_id: int) -> ReceiverInfo:
        return self._registry.receiver_info(stream_id)

    def executors_with_receivers(self) -> set[str]:
        """Return the ids of executors that run a receiver, or are candidates of one that is starting."""
        return {
            place.executor_id
            for info in self._registry.infos(
                lambda info: info.state is not ReceiverState.INACTIVE
            ).values()
            for place in ((info.running,) if info.running else info.scheduled or ())
            if isinstance(place, ExecutorInfo)
        }

    # -- events of the driver ------------------------------------------------------------------

    def update_rate(self, stream_id: int, rate: float) -> None:
        self._events.post(UpdateReceiverRateLimit(stream_id, rate))

    def processed(self, stream_id: int) -> None:
        """Batches of a stream are done: let its receiver know how much is left."""
        self._events.post(UpdateReceiverHeld(stream_id))

    def forget(self, blocks: Sequence[BlockInfo]) -> None:
        if blocks:
            self._events.post(CleanupReceivedBlocks(tuple(blocks)))

    def _on_event(self, event: TrackerEvent) -> None:
        match event:
            case StartAllReceivers():
                self._start_all()
            case RestartReceiver(stream_id):
                self._restart(stream_id)
            case ReceiverJobEnded(stream_id, attempt, error):
                self._on_job_ended(stream_id, attempt, error)
            case UpdateReceiverRateLimit(stream_id, rate):
                self._registry.set_rate(stream_id, rate)
                self._news.rate(stream_id)
            case UpdateReceiverHeld(stream_id):
                self._news.held(stream_id, self._reports.held(stream_id))
            case CleanupReceivedBlocks(blocks):
                self._cleaner.clean(blocks)
                if not self._cleaner.keeps_files:
                    self._news.cleanup(blocks)

    def _on_error(self, error: BaseException) -> None:
        logger.error("the receiver tracker failed: %s", error, exc_info=error)

    def _start_all(self) -> None:
        try:
            self._ensure_block_servers(self._executors.executors())
            candidates = schedule_receivers(
                [(stream_id, self._preferred_host(stream_id)) for stream_id in self._inputs],
                self._executors.executors(),
            )
        except Exception as error:
            for stream_id in self._inputs:
                self._not_started(stream_id, error)
            return
        for stream_id, locations in candidates.items():
            self._launch(stream_id, locations)

    def _restart(self, stream_id: int) -> None:
        """Start a receiver again.

        IF several starts have failed, wherever Spark likes: its place may have no core left.
        ELSE IF some of its old candidates are alive, on those. ELSE on the least loaded executors.
        """
        known = self._registry.get(stream_id)
        try:
            executors = self._executors.executors()
            self._ensure_block_servers(executors)
            if known.failed_starts >= FAILED_STARTS_BEFORE_MOVING:
                candidates: tuple[Location, ...] = ()
            else:
                candidates = still_alive(
                    known.info.scheduled or (), executors
                ) or reschedule_receiver(
                    stream_id, self._preferred_host(stream_id), self._registry.infos(), executors
                )
        except Exception as error:
            self._not_started(stream_id, error)
            return
        self._launch(stream_id, candidates)

    def _not_started(self, stream_id: int, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self._on_receiver_error(
            stream_id, "it could not be sent to an executor; trying again", text
        )
        self._restart_after(stream_id, LONGEST_PAUSE_MS)

    def _ensure_block_servers(self, executors: Sequence[ExecutorInfo]) -> None:
        """Start missing block servers. An executor without one only keeps no copies for others."""
        try:
            self._jobs.start_block_servers(self._block_servers.executors_without(executors))
        except Exception as error:
            logger.warning("cannot start block servers: %s", error)

    def _preferred_host(self, stream_id: int) -> str | None:
        try:
            return self._inputs[stream_id].receiver.preferredLocation()
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self._on_receiver_error(
                stream_id, "its preferredLocation() failed; it may run anywhere", text
            )
            return None

    def _launch(self, stream_id: int, candidates: tuple[Location, ...]) -> None:
        attempt = self._registry.schedule(stream_id, candidates)
        if attempt is not None:
            self._jobs.launch(
                self._inputs[stream_id],
                attempt,
                candidates,
                lambda error: self._events.post(ReceiverJobEnded(stream_id, attempt, error)),
            )

    def _on_job_ended(self, stream_id: int, attempt: int, error: str) -> None:
        """Decide what follows the end of a receiver's job.

        IF the receiver has ended for good, or all are stopping, nothing. ELSE IF it ran and no error is
        known, as when its executor was lost, start it again at once. ELSE start it later, and later still
        after each start that fails before it registers.
        """
        before = self._registry.job_ended(stream_id, attempt)
        if before is None:
            return
        self._calls.forget(before.endpoint)
        was_active = before.info.state is ReceiverState.ACTIVE
        may_start = self._registry.may_start(stream_id)
        if error and may_start:
            self._on_receiver_error(stream_id, "its task has ended; it is started again", error)
        if was_active:
            self._post(ReceiverStopped(self._registry.receiver_info(stream_id)))
        if not may_start:
            return
        if was_active and not error:
            self._restart(stream_id)
        else:
            self._restart_after(stream_id, pause_ms(before.failed_starts))

    def _restart_after(self, stream_id: int, delay_ms: int) -> None:
        until_ms = self._clock.now_ms() + delay_ms

        def wait() -> None:
            if self._clock.wait_till(until_ms, lambda: not self._registry.may_start(stream_id)):
                self._events.post(RestartReceiver(stream_id))

        threading.Thread(target=wait, name="tidemill-receiver-restart", daemon=True).start()

    # -- calls of executors --------------------------------------------------------------------

    def answer(self, name: str, body: bytes) -> bytes:
        """Handle the message ``name`` of an executor, and return the answer."""
        message = decode(FROM_EXECUTORS[name], body)
        match message:
            case RegisterReceiver():
                return self._register(message).encode()
            case AddBlock():
                return self._reports.add(message).encode()
            case AskHeldBytes(stream_id):
                return self._reports.held(stream_id).encode()
            case ReportError():
                if message.stream_id in self._registry:
                    self._on_receiver_error(message.stream_id, message.message, message.error)
            case DeregisterReceiver():
                self._deregister(message)
            case AddBlockServer():
                self._block_servers.add(message)
        return Done().encode()

    def _register(self, message: RegisterReceiver) -> Registered:
        if not self._registry.register(message):
            logger.info("refused a receiver: %s", message)
            return Registered(False, None, 0)
        self._post(ReceiverStarted(self._registry.receiver_info(message.stream_id)))
        known = self._registry.get(message.stream_id)
        held = self._reports.held(message.stream_id)
        return Registered(
            True,
            known.rate,
            held.held_bytes,
            self._block_servers.as_replicas(),
            known.rate_version,
            held.version,
        )

    def _deregister(self, message: DeregisterReceiver) -> None:
        if not self._registry.deregister(message.stream_id, message.attempt):
            return
        title = self._inputs[message.stream_id].title
        ended_by_itself = self._registry.accepts
        if message.error:
            self._record_error(message.stream_id, message.message, message.error)
            note_failure(f"{title} has failed: {message.message}")
            logger.error(
                "%s has failed, and receives nothing until the stream is started again: %s\n%s",
                title,
                message.message,
                message.error,
            )
        else:
            level = logging.WARNING if ended_by_itself else logging.INFO
            logger.log(level, "%s has stopped for good: %s", title, message.message)
            if ended_by_itself:
                now_ms = self._clock.now_ms()
                self._registry.record_error(message.stream_id, message.message, "", now_ms)
        self._post(ReceiverStopped(self._registry.receiver_info(message.stream_id)))

    def _on_receiver_error(self, stream_id: int, message: str, error: str) -> None:
        if text := self._errors[stream_id].text(message, error):
            logger.warning("%s: %s", self._inputs[stream_id].title, text)
        self._record_error(stream_id, message, error)

    def _record_error(self, stream_id: int, message: str, error: str) -> None:
        self._registry.record_error(stream_id, message, error, self._clock.now_ms())
        self._post(ReceiverReportedError(self._registry.receiver_info(stream_id)))


def pause_ms(failed_starts: int) -> int:
    """Return how long to wait before the next start of a receiver, after failed ones.

    >>> [pause_ms(starts) for starts in (0, 1, 2, 6, 7, 10**9)]
    [250, 500, 1000, 16000, 30000, 30000]
    """
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(failed_starts, 10))
