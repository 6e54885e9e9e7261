"""The Spark task that runs a receiver, on an executor."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext

from tidemill.common.clock import SystemClock
from tidemill.common.rpc.signing import Endpoint
from tidemill.errors import ReceiverError, RpcTimeoutError, RpcUnavailableError
from tidemill.failures.terminal_log import log_to_terminal
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import BlockFiles, BlockFolders, block_folders
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records
from tidemill.receivers.executor.block_handler import BlockHandler, Replica, open_log
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.executor.supervision import SupervisorSettings
from tidemill.receivers.executor.supervisor import ReceiverSupervisor
from tidemill.receivers.messages import (
    AddBlock,
    AddBlockServer,
    AskHeldBytes,
    BlockAdded,
    CleanupOldBlocks,
    DeregisterReceiver,
    Done,
    Message,
    Registered,
    RegisterReceiver,
    ReportError,
    StopReceiver,
    UpdateHeldBytes,
    UpdateRateLimit,
    decode,
)
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import RequestKey
from tidemill.spark.session.executors import current_executor

LOOPBACK = "127.0.0.1"
DEREGISTER_TRIES = 3
MAX_ERROR_CHARS = 40_000
"""The longest error that is reported whole. Longer ones are cut: the driver refuses very large calls."""


@dataclass(frozen=True)
class ExecutorSetup:
    """The settings that all receivers of a run share. ``tracker`` is the endpoint of the driver.

    ``folders`` is None on a cluster, where each executor has folders of its own, and a block server.
    """

    run_id: str
    tracker: str
    secret: bytes = field(repr=False)
    folders: BlockFolders | None = None
    memory_bytes: int = 0
    log_directory: str | None = None
    log_roll_ms: int = 60_000
    max_rate: float | None = None
    store_timeout_s: float = 30.0
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)


class TrackerClient:
    """Calls the receiver tracker on the driver."""

    def __init__(self, setup: ExecutorSetup, stream_id: int, attempt: int) -> None:
        # Here, not above: gRPC does not survive a fork, and the driver imports this module to send tasks.
        from tidemill.common.rpc.client import RpcClient

        self._client = RpcClient(Endpoint.parse(setup.tracker), setup.secret, setup.store_timeout_s)
        self._stream_id = stream_id
        self._attempt = attempt

    def _tell(self, message: Message) -> bytes:
        return self._client.call(type(message).__name__, message.encode())

    def register(self, name: str, executor_id: str, host: str, endpoint: str) -> Registered:
        message = RegisterReceiver(
            self._stream_id, self._attempt, name, executor_id, host, endpoint
        )
        return decode(Registered, self._tell(message))

    def add_block(
        self,
        info: BlockInfo,
        keys: Sequence[RequestKey] = (),
        first_unreported: int = 0,
        oldest_segment: str = "",
    ) -> BlockAdded:
        message = AddBlock(self._attempt, info, tuple(keys), first_unreported, oldest_segment)
        return decode(BlockAdded, self._tell(message))

    def ask_held(self) -> UpdateHeldBytes:
        return decode(UpdateHeldBytes, self._tell(AskHeldBytes(self._stream_id)))

    def report_error(self, message: str, error: str) -> None:
        self._tell(ReportError(self._stream_id, _cut(message), _cut(error)))

    def deregister(self, message: str, error: str) -> None:
        """Tell the driver that the receiver has ended: it would start a receiver again that is only gone."""
        ended = DeregisterReceiver(self._stream_id, self._attempt, _cut(message), _cut(error))
        for _ in range(DEREGISTER_TRIES - 1):
            with suppress(RpcTimeoutError, RpcUnavailableError):
                self._tell(ended)
                return
        self._tell(ended)

    def add_block_server(self, executor_id: str, host: str, endpoint: str) -> None:
        self._tell(AddBlockServer(executor_id, host, endpoint))

    def close(self) -> None:
        self._client.close()


def _cut(text: str) -> str:
    """Cut a long text at its beginning: the error itself is at the end."""
    return text if len(text) <= MAX_ERROR_CHARS else f"[...]{text[-MAX_ERROR_CHARS:]}"


def executor_place(setup: ExecutorSetup) -> tuple[BlockPlace, BlockFolders]:
    """Return this executor, on a cluster with its block server, and the folders of its blocks."""
    executor_id, host = current_executor()
    if setup.folders is not None:
        return BlockPlace(executor_id, host, ""), setup.folders
    from tidemill.receivers.blocks.server import (  # imports gRPC
        ServerSetup,
        ensure_block_server,
        executor_pid,
    )

    pid = executor_pid()
    local = os.environ.get("SPARK_EXECUTOR_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or ""
    local = local.split(os.pathsep)[0].split(",")[0] or tempfile.gettempdir()
    name = f"tidemill-blocks-{pid}-{setup.run_id}-{executor_id}"
    folders = block_folders(name, local, setup.memory_bytes)
    server = ensure_block_server(ServerSetup(host, setup.secret.hex(), folders, pid))
    return BlockPlace(executor_id, host, "", server), folders


@dataclass(frozen=True)
class StartBlockServer:
    """A ``mapPartitions`` function that starts a block server on this executor, and tells the driver."""

    setup: ExecutorSetup

    def __call__(self, items: Iterable[Any]) -> Iterator[str]:
        for _ in items:
            place, _ = executor_place(self.setup)
            client = TrackerClient(self.setup, -1, -1)
            client.add_block_server(place.executor_id, place.host, place.server)
            client.close()
            yield place.executor_id


@dataclass(frozen=True)
class ReceiverTask:
    """A ``mapPartitions`` function that runs a pickled receiver until it ends. Its result is the error that
    ended the receiver, or an empty text.

    1. Ask the driver whether the receiver may run here. If not, end at once: the driver sends another task.
    2. Run the receiver; this thread waits.
    3. When it has ended and its blocks are safe, tell the driver. For a receiver that could not be stopped
       for a restart, end with an error instead: the driver then starts the receiver again.

    A task that Spark repeats by itself does nothing: only the driver decides where a receiver runs. That is
    why an error is returned, not raised: Spark would repeat the task.
    """

    setup: ExecutorSetup
    stream_id: int
    stream_name: str
    attempt: int
    read_back: ReadBack = read_back_records
    title: str = ""

    def __call__(self, receivers: Iterable[bytes]) -> Iterator[str]:
        for pickled in receivers:
            context = TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                return
            try:
                self._run(pickle.loads(pickled))  # noqa: S301  # from the driver, through Spark
                yield ""
            except (Exception, SystemExit):
                yield traceback.format_exc()

    def _run(self, receiver: Receiver) -> None:
        from tidemill.common.rpc.server import RpcServer  # imports gRPC

        log_to_terminal()
        place, folders = executor_place(self.setup)
        tracker = TrackerClient(self.setup, self.stream_id, self.attempt)
        clock = SystemClock()
        limiter = RateLimiter(clock, self.setup.max_rate)
        files = BlockFiles(folders)
        log = None
        if self.setup.log_directory is not None:
            log = open_log(
                self.setup.log_directory,
                self.stream_name,
                clock,
                self.setup.log_roll_ms,
                timeout_s=self.setup.store_timeout_s,
            )
        handler = BlockHandler(
            self.stream_id,
            receiver.storageLevel,
            files,
            place,
            self.setup.secret,
            log,
            timeout_s=self.setup.store_timeout_s,
        )
        supervisor = ReceiverSupervisor(
            receiver,
            self.stream_id,
            uuid.uuid4().hex[:8],
            tracker,
            handler,
            limiter,
            clock,
            self.setup.supervisor,
            self.read_back,
            self.title,
        )
        calls = _ReceiverCalls(supervisor, files)
        host = place.host if place.server else LOOPBACK
        server = RpcServer(host, self.setup.secret, calls.handlers())
        server.start()
        try:
            name = type(receiver).__name__
            answer = tracker.register(name, place.executor_id, place.host, str(server.endpoint))
            if not answer.accepted:  # 1
                return
            limiter.update(answer.rate, answer.rate_version)
            supervisor.update_held(answer.held_bytes, answer.held_version)
            handler.replicas = [
                Replica(*text.split(" "))
                for text in answer.replica_servers
                if text.split(" ")[0] != place.executor_id
            ]
            if place.server:
                tracker.add_block_server(place.executor_id, place.host, place.server)
            self._supervise(supervisor)  # 2
            if supervisor.is_abandoned:
                raise ReceiverError(f"{supervisor.end_message}: another copy of it is started")
            tracker.deregister(supervisor.end_message, supervisor.end_error)  # 3
        finally:
            server.stop()
            handler.close()
            tracker.close()

    def _supervise(self, supervisor: ReceiverSupervisor) -> None:
        before = threading.excepthook

        def on_failed_thread(failed: threading.ExceptHookArgs) -> None:
            # A thread of the receiver has died: nothing would arrive any more, and nobody would know.
            name = failed.thread.name if failed.thread is not None else "?"
            supervisor.restart(f"thread {name} of the receiver failed", failed.exc_value)

        threading.excepthook = on_failed_thread
        try:
            # On a thread of its own: an onStart that never returns must not keep this task from ending.
            threading.Thread(
                target=supervisor.start, name="tidemill-receiver-start", daemon=True
            ).start()
            supervisor.wait()
        finally:
            threading.excepthook = before


class _ReceiverCalls:
    """Handles the driver's calls to a running receiver."""

    def __init__(self, supervisor: ReceiverSupervisor, files: BlockFiles) -> None:
        self._supervisor = supervisor
        self._files = files

    def handlers(self) -> dict[str, Any]:
        return {
            "StopReceiver": self._stop,
            "UpdateRateLimit": self._update_rate,
            "UpdateHeldBytes": self._update_held,
            "CleanupOldBlocks": self._cleanup,
        }

    def _stop(self, body: bytes) -> bytes:
        """End the receiver when its records are safe, or at once. The message may come twice."""
        message = decode(StopReceiver, body)
        if message.at_once:
            self._supervisor.give_up()
        self._supervisor.stop(message.message)
        return Done().encode()

    def _update_rate(self, body: bytes) -> bytes:
        message = decode(UpdateRateLimit, body)
        self._supervisor.update_rate(message.rate, message.version)
        return Done().encode()

    def _update_held(self, body: bytes) -> bytes:
        message = decode(UpdateHeldBytes, body)
        self._supervisor.update_held(message.held_bytes, message.version)
        return Done().encode()

    def _cleanup(self, body: bytes) -> bytes:
        self._files.delete(decode(CleanupOldBlocks, body).block_ids)
        return Done().encode()
