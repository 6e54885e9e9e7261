"""On the driver: starts receivers, watches them, and takes their blocks over."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.common.rpc import RpcServer
from tidemill.errors import SetupError, TidemillError
from tidemill.progress.batch_info import NOT_YET, ReceiverInfo
from tidemill.progress.events import ReceiverError, ReceiverStarted, ReceiverStopped, StreamEvent
from tidemill.receivers.block_cleaner import BlockCleaner
from tidemill.receivers.block_tracker import BlockTracker
from tidemill.receivers.blocks import BlockInfo
from tidemill.receivers.executor_calls import ExecutorCalls
from tidemill.receivers.messages import (
    AddBlock,
    AddBlockServer,
    AllReceiverIds,
    BlockAdded,
    CleanupReceivedBlocks,
    DeregisterReceiver,
    Done,
    GetAllReceiverInfo,
    ReceiverJobEnded,
    Registered,
    RegisterReceiver,
    ReportError,
    RestartReceiver,
    StartAllReceivers,
    StopAllReceivers,
    StopReceiver,
    UpdateRateLimit,
    UpdateReceiverRateLimit,
    decode,
)
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.receiver_jobs import ReceiverJobs
from tidemill.receivers.scheduling_policy import (
    reschedule_receiver,
    schedule_receivers,
    still_alive,
)
from tidemill.receivers.tracking_info import ReceiverState, ReceiverTrackingInfo
from tidemill.spark.executor_info import ExecutorInfo, Location

if TYPE_CHECKING:
    from tidemill.spark.executors import SparkExecutors

logger = logging.getLogger(__name__)

TrackerEvent = (
    StartAllReceivers
    | RestartReceiver
    | UpdateReceiverRateLimit
    | CleanupReceivedBlocks
    | ReceiverJobEnded
)


@dataclass(frozen=True)
class ReceiverInput:
    """An input stream that has a receiver. ``name`` is what the checkpoint calls it."""

    stream_id: int
    name: str
    receiver: Receiver


@dataclass
class _Tracked:
    """What changes about a receiver. ``attempt`` counts its starts: an older one has nothing to say."""

    info: ReceiverTrackingInfo
    attempt: int = 0
    endpoint: str = ""
    rate: float | None = None
    is_over: bool = False
    quick_failures: int = 0


class ReceiverTracker:
    """All receivers of a stream.

    Every receiver runs in a Spark job of its own, one job after the other: how often it is restarted is
    not limited by what Spark allows a task. What has to do with starting is handled by one thread, in
    order; what executors say is answered at once, on the thread that hears it.

    The life of a receiver::

        INACTIVE --scheduled--> SCHEDULED --registered--> ACTIVE --deregistered, or its job ended--> INACTIVE
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
        self._changed = threading.Condition(threading.RLock())
        self._tracked = {
            stream_id: _Tracked(
                ReceiverTrackingInfo(
                    stream_id, ReceiverState.INACTIVE, name=type(each.receiver).__name__
                )
            )
            for stream_id, each in self._inputs.items()
        }
        self._block_servers: dict[str, AddBlockServer] = {}
        self._is_stopping = False
        self._events: EventLoop[TrackerEvent] = EventLoop(
            "receiver-tracker", self._on_event, self._on_error
        )

    def handlers(self) -> dict[str, Callable[[bytes], bytes]]:
        """What executors can call."""
        return {
            "RegisterReceiver": lambda body: self._register(decode(RegisterReceiver, body)).encode(),
            "AddBlock": lambda body: self._add_block(decode(AddBlock, body)).encode(),
            "ReportError": lambda body: self._report_error(decode(ReportError, body)).encode(),
            "DeregisterReceiver": lambda body: self._deregister(
                decode(DeregisterReceiver, body)
            ).encode(),
            "AddBlockServer": lambda body: self._add_block_server(
                decode(AddBlockServer, body)
            ).encode(),
        }

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self) -> None:
        self._events.start()
        self._events.post(StartAllReceivers())

    def stop_receivers(self, message: str, timeout_s: float) -> bool:
        """Ask all receivers to end, and wait until they have. False if some have not.

        What they have stored is known to the block tracker by then.
        """
        self.ask(StopAllReceivers(message))
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs.running, timeout_s)

    def stop(self) -> None:
        """End everything. Idempotent."""
        with self._changed:
            self._is_stopping = True
        self._jobs.cancel()
        self._blocks.close()
        self._events.stop()
        self._calls.stop_block_servers([each.endpoint for each in self._block_servers.values()])
        self._calls.close()

    def ask(
        self, question: AllReceiverIds | GetAllReceiverInfo | StopAllReceivers
    ) -> list[int] | dict[int, ReceiverTrackingInfo] | bool:
        match question:
            case AllReceiverIds():
                with self._changed:
                    return [
                        stream_id
                        for stream_id, each in self._tracked.items()
                        if each.info.state is not ReceiverState.INACTIVE
                    ]
            case GetAllReceiverInfo():
                with self._changed:
                    return {stream_id: each.info for stream_id, each in self._tracked.items()}
            case StopAllReceivers(message):
                with self._changed:
                    self._is_stopping = True
                    endpoints = [each.endpoint for each in self._tracked.values() if each.endpoint]
                self._clock.interrupt_waiters()
                for endpoint in endpoints:
                    self._calls.tell(endpoint, StopReceiver(message))
                return True

    def executors_with_receivers(self) -> set[str]:
        with self._changed:
            return {
                each.info.running.executor_id
                for each in self._tracked.values()
                if each.info.running is not None
            }

    # -- what the driver tells itself ----------------------------------------------------------

    def update_rate(self, stream_id: int, rate: float) -> None:
        self._events.post(UpdateReceiverRateLimit(stream_id, rate))

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
                self._update_rate(stream_id, rate)
            case CleanupReceivedBlocks(blocks):
                self._cleanup(blocks)

    def _on_error(self, error: BaseException) -> None:
        logger.error("the receiver tracker failed: %s", error, exc_info=error)

    def _start_all(self) -> None:
        self._jobs.start_block_servers(self._executors.executors())
        candidates = schedule_receivers(
            [(id_, each.receiver.preferredLocation()) for id_, each in self._inputs.items()],
            self._executors.executors(),
        )
        for stream_id, locations in candidates.items():
            self._launch(stream_id, locations)

    def _restart(self, stream_id: int) -> None:
        """Start a receiver again: on its old candidates if some are alive, else on the least loaded."""
        executors = self._executors.executors()
        self._jobs.start_block_servers(
            [each for each in executors if each.executor_id not in self._block_servers]
        )
        with self._changed:
            info = self._tracked[stream_id].info
            tracking = {id_: each.info for id_, each in self._tracked.items()}
        preferred = self._inputs[stream_id].receiver.preferredLocation()
        candidates = still_alive(info.scheduled or (), executors) or reschedule_receiver(
            stream_id, preferred, tracking, executors
        )
        self._launch(stream_id, candidates)

    def _launch(self, stream_id: int, candidates: tuple[Location, ...]) -> None:
        each = self._inputs[stream_id]
        with self._changed:
            if self._is_stopping:
                return
            tracked = self._tracked[stream_id]
            tracked.attempt += 1
            tracked.info = replace(
                tracked.info, state=ReceiverState.SCHEDULED, scheduled=candidates, running=None
            )
            attempt = tracked.attempt
        self._jobs.launch(
            each,
            attempt,
            candidates,
            lambda error: self._on_job_thread_end(stream_id, attempt, error),
        )

    def _on_job_thread_end(self, stream_id: int, attempt: int, error: str) -> None:
        with self._changed:
            self._changed.notify_all()
        self._events.post(ReceiverJobEnded(stream_id, attempt, error))

    def _on_job_ended(self, stream_id: int, attempt: int, error: str) -> None:
        """IF the receiver ended for good, or all do, it stays so. ELSE it is started again: at once the
        first time, and later and later if it does not even get as far as to register."""
        with self._changed:
            tracked = self._tracked[stream_id]
            if attempt != tracked.attempt:
                return
            was_active = tracked.info.state is ReceiverState.ACTIVE
            tracked.endpoint = ""
            tracked.info = replace(tracked.info, state=ReceiverState.INACTIVE, running=None)
            self._changed.notify_all()
            if self._is_stopping or tracked.is_over:
                return
            tracked.quick_failures = 0 if was_active else tracked.quick_failures + 1
            delay_ms = min(30_000, 250 << min(tracked.quick_failures, 7)) if error else 0
        if error:
            self._note_error(stream_id, "the receiver's task has ended; it is started again", error)
        if was_active:
            self._post(ReceiverStopped(self._receiver_info(stream_id)))
        if not delay_ms:
            self._restart(stream_id)
            return
        threading.Thread(
            target=self._restart_later,
            args=(stream_id, delay_ms),
            name="tidemill-receiver-restart",
            daemon=True,
        ).start()

    def _restart_later(self, stream_id: int, delay_ms: int) -> None:
        if self._clock.wait_till(self._clock.now_ms() + delay_ms, lambda: self._is_stopping):
            self._events.post(RestartReceiver(stream_id))

    def _update_rate(self, stream_id: int, rate: float) -> None:
        with self._changed:
            tracked = self._tracked[stream_id]
            tracked.rate = rate
            endpoint = tracked.endpoint
        if endpoint:
            self._calls.tell(endpoint, UpdateRateLimit(rate))

    def _cleanup(self, blocks: Sequence[BlockInfo]) -> None:
        self._cleaner.clean(blocks)
        for stream_id in {block.stream_id for block in blocks}:
            if stream_id in self._tracked and (endpoint := self._tracked[stream_id].endpoint):
                ids = tuple(b.block_id for b in blocks if b.stream_id == stream_id)
                held = self._blocks.held_bytes(self._inputs[stream_id].name)
                self._calls.cleanup(endpoint, ids, held)

    # -- what executors say --------------------------------------------------------------------

    def _register(self, message: RegisterReceiver) -> Registered:
        """A receiver may run where it was sent to, in its latest attempt, unless all are to end."""
        with self._changed:
            tracked = self._tracked.get(message.stream_id)
            here = ExecutorInfo(message.executor_id, message.host, 0)
            if (
                tracked is None
                or self._is_stopping
                or message.attempt != tracked.attempt
                or not self._is_candidate(here, tracked.info.scheduled or ())
            ):
                logger.info("a receiver is turned away: %s", message)
                return Registered(False, None, 0)
            tracked.endpoint = message.endpoint
            tracked.info = replace(
                tracked.info, state=ReceiverState.ACTIVE, running=here, name=message.name
            )
            rate = tracked.rate
            servers = tuple(
                f"{each.executor_id} {each.host} {each.endpoint}"
                for each in self._block_servers.values()
            )
            self._changed.notify_all()
        self._post(ReceiverStarted(self._receiver_info(message.stream_id)))
        held = self._blocks.held_bytes(self._inputs[message.stream_id].name)
        return Registered(True, rate, held, servers)

    def _is_candidate(self, here: ExecutorInfo, candidates: tuple[Location, ...]) -> bool:
        return not candidates or bool(still_alive(candidates, [here]))

    def _add_block(self, message: AddBlock) -> BlockAdded:
        info = message.info
        with self._changed:
            tracked = self._tracked.get(info.stream_id)
            if tracked is None or message.attempt != tracked.attempt:
                return BlockAdded(False, 0, "this receiver has been replaced by another")
        name = self._inputs[info.stream_id].name
        try:
            accepted = self._blocks.add(name, info)
        except (TidemillError, OSError) as error:
            return BlockAdded(False, self._blocks.held_bytes(name), str(error))
        if accepted:
            self._cleaner.note(info)
        reason = "" if accepted else "the stream has been stopped"
        return BlockAdded(accepted, self._blocks.held_bytes(name), reason)

    def _report_error(self, message: ReportError) -> Done:
        if message.stream_id in self._tracked:
            self._note_error(message.stream_id, message.message, message.error)
        return Done()

    def _note_error(self, stream_id: int, message: str, error: str) -> None:
        with self._changed:
            tracked = self._tracked[stream_id]
            tracked.info = replace(
                tracked.info,
                last_error_message=message,
                last_error=error,
                last_error_ms=self._clock.now_ms(),
            )
        logger.warning(
            "receiver of %s: %s%s",
            self._inputs[stream_id].name,
            message,
            f"\n{error.rstrip()}" if error else "",
        )
        self._post(ReceiverError(self._receiver_info(stream_id)))

    def _deregister(self, message: DeregisterReceiver) -> Done:
        with self._changed:
            tracked = self._tracked.get(message.stream_id)
            if tracked is None or message.attempt != tracked.attempt:
                return Done()
            tracked.is_over = not self._is_stopping
            tracked.endpoint = ""
            tracked.info = replace(tracked.info, state=ReceiverState.INACTIVE, running=None)
            self._changed.notify_all()
        if message.error:
            self._note_error(message.stream_id, message.message, message.error)
        else:
            logger.info("receiver of stream %d has ended: %s", message.stream_id, message.message)
        self._post(ReceiverStopped(self._receiver_info(message.stream_id)))
        return Done()

    def _add_block_server(self, message: AddBlockServer) -> Done:
        with self._changed:
            self._block_servers[message.executor_id] = message
        return Done()

    def _receiver_info(self, stream_id: int) -> ReceiverInfo:
        info = self._tracked[stream_id].info
        running = info.running
        return ReceiverInfo(
            stream_id,
            info.name,
            info.state is ReceiverState.ACTIVE,
            "" if running is None else running.host,
            "" if running is None else running.executor_id,
            info.last_error_message,
            info.last_error,
            NOT_YET if info.last_error_ms is None else info.last_error_ms,
        )


def require_cores(receivers: int, slots: int, master: str) -> None:
    """Receivers hold a core each: without one more, no batch would ever run."""
    if slots > receivers:
        return
    remedy = (
        f"give Spark the master local[{receivers + 1}] or more"
        if master.startswith("local")
        else f"give the application at least {receivers + 1} cores (spark.cores.max, spark.executor.instances)"
    )
    raise SetupError(
        f"this stream has {receivers} receivers, which take a core each for as long as it runs, and needs "
        f"one more for its batches: {receivers + 1} cores, and Spark has {slots} here ({master}): {remedy}"
    )


def new_secret() -> bytes:
    return secrets.token_bytes(32)


__all__ = ["ReceiverInput", "ReceiverTracker", "RpcServer", "new_secret", "require_cores"]
