"""The receivers of a stream or a query, from its start to its stop."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.batches.rate_controller import RateController
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import (
    BLOCK_INTERVAL_MS,
    BLOCK_QUEUE_SIZE,
    BLOCK_STORE_TIMEOUT_MS,
    RECEIVER_MAX_HELD,
    RECEIVER_MAX_RATE,
    RECEIVER_MEMORY,
    RECEIVER_RESTART_DELAY_MS,
    RECEIVER_WAL_ENABLE,
    RECEIVER_WAL_MAX_FAILURES,
    RECEIVER_WAL_ROLLING_INTERVAL_S,
    REGISTRATION_WAIT_MS,
)
from tidemill.errors import SetupError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers.blocks.files import (
    BlockFiles,
    BlockFolders,
    block_folders,
    claim,
    sweep,
)
from tidemill.receivers.driver.receiver_pickle import pickle_receiver
from tidemill.receivers.executor.receiver_task import LOOPBACK, ExecutorSetup
from tidemill.receivers.executor.supervisor import SupervisorSettings
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.session.executors import SparkExecutors, task_slots

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.checkpoint.storage import Storage

CLOSE_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReceiverOfStream:
    """A source of received blocks, the name that it has in the logs, and the user's line that made it."""

    name: str
    source: TrackedBlocksSource
    where: str


class RunningReceivers:
    """Puts the tracker of a stream's receivers together, and takes it apart: one object for all of them.

    The blocks of an earlier run are known, and sources can be planned, when it has been made. Receivers run
    from :meth:`start` to :meth:`stop_receiving` or :meth:`close`. ``storage`` is the checkpoint, if there is
    one, and ``directory`` what executors open it by, which is its URI if nothing else is said.

    The order of the start: the blocks of an earlier run are known before the planner asks for them; receivers
    start when the stream has been written down, just before its batches begin.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage | None,
        receivers: Mapping[int, ReceiverOfStream],
        directory: str | None = None,
    ) -> None:
        # gRPC is imported by those who need it: a program without receivers does not.
        from tidemill.common.rpc.server import RpcServer
        from tidemill.receivers.blocks.reader import BlockReader
        from tidemill.receivers.driver.block_cleaner import BlockCleaner
        from tidemill.receivers.driver.block_tracker import BlockTracker
        from tidemill.receivers.driver.executor_calls import ExecutorCalls
        from tidemill.receivers.driver.receiver_jobs import ReceiverJobs
        from tidemill.receivers.driver.tracker import (
            FROM_EXECUTORS,
            ReceiverInput,
            ReceiverTracker,
        )

        sc = spark_context
        conf = sc.getConf()
        if directory is None and storage is not None:
            directory = storage.uri
        self.sources = {stream_id: each.source for stream_id, each in receivers.items()}
        require_cores(sc, len(self.sources))
        names = {stream_id: each.name for stream_id, each in receivers.items()}
        pickled = {
            stream_id: pickle_receiver(each.source.receiver, each.where)
            for stream_id, each in receivers.items()
        }
        is_local = SparkExecutors(sc).is_local()
        secret = secrets.token_bytes(32)
        # All settings are read before anything is there that would have to be taken down again.
        setup = _executor_setup(conf, secret, directory, is_local)
        self._folders = setup.folders
        bound_to, reached_at = (LOOPBACK, LOOPBACK) if is_local else _driver_hosts(conf)
        # The address of the server is part of what the tracker's jobs carry, and the tracker answers.
        self._server = RpcServer(
            bound_to, secret, {name: partial(self._answer, name) for name in FROM_EXECUTORS}
        )
        self._server.start()
        try:
            setup = replace(setup, tracker=str(replace(self._server.endpoint, host=reached_at)))
            self._blocks = BlockTracker(storage, clock, names.values())
            calls = ExecutorCalls(secret)
            files = None
            if self._folders is not None:
                files = BlockFiles(self._folders)
                claim(self._folders)
            self._cleaner = BlockCleaner(calls, files, storage)
            self.tracker = ReceiverTracker(
                [
                    ReceiverInput(stream_id, names[stream_id], source.receiver, pickled[stream_id])
                    for stream_id, source in self.sources.items()
                ],
                self._blocks,
                SparkExecutors(sc),
                ReceiverJobs(sc, setup),
                self._cleaner,
                calls,
                bus.post,
                SystemClock(),  # receivers live in the time of their machines, whatever the batches do
            )
            reader = BlockReader(directory, secret)
            for stream_id, source in self.sources.items():
                source.bind(
                    names[stream_id],
                    self._blocks,
                    reader,
                    self.tracker.forget,
                    has_log=setup.log_directory is not None,
                )
        except BaseException:
            self._remove()
            raise

    def _answer(self, name: str, body: bytes) -> bytes:
        return self.tracker.answer(name, body)

    def start(self, controllers: Mapping[int, RateController]) -> None:
        self._blocks.start()
        self._cleaner.restore(self._blocks.all_blocks())
        for stream_id in self.sources.keys() & controllers.keys():
            controller = controllers[stream_id]
            controller.publish = partial(self.tracker.update_rate, stream_id)
            if controller.bound_per_s is not None:
                self.tracker.update_rate(stream_id, float(controller.bound_per_s))
        self.tracker.start()

    def stop_receiving(self, timeout_s: float) -> bool:
        """End all receivers; what they have stored stays, and can be planned."""
        return self.tracker.stop_receivers("the stream is being stopped", timeout_s)

    @property
    def records_received(self) -> int:
        """How many records the receivers have stored since the stream started."""
        return self._blocks.records_received

    def wait_received(self, records: int, timeout_s: float) -> bool:
        return self._blocks.wait_received(records, timeout_s)

    def last_errors(self) -> str:
        """What the receivers have reported last, each on a line of its own."""
        infos = [self.tracker.receiver_info(stream_id) for stream_id in self.sources]
        return "".join(
            f"\n{info.receiver_name}: {info.last_error_message}\n{info.last_error}".rstrip()
            for info in infos
            if info.last_error_message
        )

    @property
    def has_unplanned(self) -> bool:
        return any(source.has_unplanned for source in self.sources.values())

    def close(self) -> None:
        """End everything; receivers that do not end soon when asked are ended."""
        self.stop_receiving(CLOSE_TIMEOUT_S)
        self.tracker.stop()
        self._remove()

    def _remove(self) -> None:
        self._server.stop()
        if self._folders is not None:
            self._folders.remove()


def _driver_folders(memory_bytes: int) -> BlockFolders:
    sweep(tempfile.gettempdir())
    name = f"tidemill-blocks-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return block_folders(name, tempfile.gettempdir(), memory_bytes)


def _driver_hosts(conf: Any) -> tuple[str, str]:
    """The address that the driver listens on, and the one that executors reach it at."""
    host = str(conf.get("spark.driver.host"))
    return str(conf.get("spark.driver.bindAddress") or host), host


def _executor_setup(
    conf: Any, secret: bytes, directory: str | None, is_local: bool
) -> ExecutorSetup:
    """What receivers have to know, but for the address of their tracker."""
    memory_bytes = RECEIVER_MEMORY.read(conf)
    return ExecutorSetup(
        uuid.uuid4().hex[:8],
        "",
        secret,
        memory_bytes=memory_bytes,
        log_directory=directory if keeps_log(conf, directory) else None,
        log_roll_ms=RECEIVER_WAL_ROLLING_INTERVAL_S.read(conf) * 1000,
        max_rate=RECEIVER_MAX_RATE.read(conf),
        store_timeout_s=BLOCK_STORE_TIMEOUT_MS.read(conf) / 1000,
        supervisor=SupervisorSettings(
            BLOCK_INTERVAL_MS.read(conf),
            BLOCK_QUEUE_SIZE.read(conf),
            RECEIVER_RESTART_DELAY_MS.read(conf),
            RECEIVER_WAL_MAX_FAILURES.read(conf),
            RECEIVER_MAX_HELD.read(conf),
        ),
        folders=_driver_folders(memory_bytes) if is_local else None,
    )


def keeps_log(conf: Any, directory: str | None) -> bool:
    """Whether blocks go to a write-ahead log. That they do not is said once, where it matters."""
    wanted = RECEIVER_WAL_ENABLE.read(conf)
    if directory is None:
        if wanted:
            logger.warning(
                "%s is on, but there is no checkpoint directory to keep the log in: what receivers have "
                "stored is lost with the executors that have it",
                RECEIVER_WAL_ENABLE.key,
            )
        return False
    if wanted is False:
        logger.warning(
            "%s is off: what receivers have stored and no batch has processed is lost when the driver "
            "or the executors that have it die",
            RECEIVER_WAL_ENABLE.key,
        )
    return wanted is not False


def require_cores(spark_context: SparkContext, receivers: int) -> None:
    """Receivers hold a core each: without one more, no batch would ever run.

    The executors of a cluster may still be on their way: they are waited for as long as Spark would.
    """
    master = str(spark_context.master)
    slots = task_slots(spark_context)
    if not SparkExecutors(spark_context).is_local():
        clock = SystemClock()
        until_ms = clock.now_ms() + REGISTRATION_WAIT_MS.read(spark_context.getConf())
        while slots <= receivers and clock.now_ms() < until_ms:
            clock.wait_till(clock.now_ms() + 100)
            slots = task_slots(spark_context)
    if slots > receivers:
        return
    remedy = (
        f"give Spark the master local[{receivers + 1}] or more"
        if master.startswith("local")
        else f"give the application at least {receivers + 1} cores (spark.cores.max, "
        "spark.executor.instances)"
    )
    raise SetupError(
        f"this stream has {receivers} {'receiver' if receivers == 1 else 'receivers'}, each of which takes "
        f"a core for as long as it runs, and needs one more for its batches: {receivers + 1} cores, and "
        f"Spark has {slots} here ({master}): {remedy}"
    )
