"""The receivers of a stream or a query, from its start to its stop."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.batches.rate_controller import RateController
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import (
    BLOCK_INTERVAL_MS,
    BLOCK_QUEUE_SIZE,
    BLOCK_STORE_TIMEOUT_MS,
    RECEIVER_MAX_FAILED_STARTS,
    RECEIVER_MAX_HELD,
    RECEIVER_MAX_RATE,
    RECEIVER_MEMORY,
    RECEIVER_RESTART_DELAY_MS,
    RECEIVER_STOP_TIMEOUT_MS,
    RECEIVER_WAL_ENABLE,
    RECEIVER_WAL_MAX_FAILURES,
    RECEIVER_WAL_ROLLING_INTERVAL_S,
    REGISTRATION_WAIT_MS,
    Conf,
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
from tidemill.receivers.blocks.reader import BlockReader
from tidemill.receivers.driver.block_cleaner import BlockCleaner
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.driver.receiver_jobs import ReceiverJobs
from tidemill.receivers.driver.receiver_pickle import pickle_receiver
from tidemill.receivers.driver.tracker import ReceiverInput, ReceiverTracker
from tidemill.receivers.executor.receiver_task import LOOPBACK, ExecutorSetup
from tidemill.receivers.executor.supervision import SupervisorSettings
from tidemill.receivers.messages import FROM_EXECUTORS
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.spark.session.executors import SparkExecutors, task_slots

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.checkpoint.storage import Storage
    from tidemill.common.rpc.server import RpcServer

CLOSE_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReceiverOfStream:
    """A source of received blocks, its name in the checkpoint, and the line of the program that made it.

    ``title`` is what people call it, as ``source 0 of the query 'clicks'``; by default its name and line.
    """

    name: str
    source: TrackedBlocksSource
    where: str
    title: str = ""


class RunningReceivers:
    """Starts and stops all receivers of a stream or query, and gives their blocks to its sources.

    1. Once it is made, the blocks of an earlier run are known: the planner may ask the sources for ranges.
    2. :meth:`start` starts the receivers, after the stream has been written down and just before its batches.
    3. :meth:`stop_receiving` ends the receivers; what they have stored can still be planned.
    4. :meth:`close` ends everything.

    ``storage`` is the checkpoint, if there is one, and ``directory`` the URI by which executors open it
    (default: that of the storage). ``conf`` has the settings (default: those of the Spark context). With
    ``keeps_files``, executors keep the blocks of batches that are over until the stream stops.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        clock: Clock,
        bus: ListenerBus,
        storage: Storage | None,
        receivers: Mapping[int, ReceiverOfStream],
        directory: str | None = None,
        *,
        conf: Conf | None = None,
        keeps_files: bool = False,
    ) -> None:
        spark_conf = spark_context.getConf()
        conf = spark_conf if conf is None else conf
        if directory is None and storage is not None:
            directory = storage.uri
        self.sources = {stream_id: each.source for stream_id, each in receivers.items()}
        executors = SparkExecutors(spark_context)
        # Everything that may be refused comes before everything that would have to be removed again.
        require_cores(spark_context, len(receivers), conf)
        inputs = [_receiver_input(stream_id, each) for stream_id, each in receivers.items()]
        setup = _executor_setup(conf, directory, executors.is_local())
        # True if what the receivers have stored survives the stream.
        self.keeps_log = setup.log_directory is not None
        self._folders = setup.folders
        listen_host, driver_host = _driver_hosts(spark_conf, executors.is_local())
        self._server = _start_server(listen_host, setup.secret, self._answer)
        try:
            endpoint = replace(self._server.endpoint, host=driver_host)
            setup = replace(setup, tracker=str(endpoint))
            calls = ExecutorCalls(setup.secret)
            self._blocks = BlockTracker(
                storage,
                clock,
                [each.name for each in inputs],
                {each.name: each.receiver._key_settings for each in inputs},
            )
            self._cleaner = BlockCleaner(calls, _driver_files(setup.folders), storage, keeps_files)
            self.tracker = ReceiverTracker(
                inputs,
                self._blocks,
                executors,
                ReceiverJobs(spark_context, setup),
                self._cleaner,
                calls,
                bus.post,
                SystemClock(),  # receivers follow the clock of their machines, also under a manual clock
            )
            self._bind_sources(inputs, BlockReader(directory, setup.secret), setup)
        except BaseException:
            self._remove()
            raise

    def _answer(self, name: str, body: bytes) -> bytes:
        # The tracker's jobs carry the address of the server, so the server is there before the tracker.
        return self.tracker.answer(name, body)

    def _bind_sources(
        self, inputs: Sequence[ReceiverInput], reader: BlockReader, setup: ExecutorSetup
    ) -> None:
        has_log = setup.log_directory is not None
        for each in inputs:
            source = self.sources[each.stream_id]
            source.bind(
                each.name,
                self._blocks,
                reader,
                self.tracker.forget,
                has_log,
                partial(self.tracker.processed, each.stream_id),
            )

    def start(self, controllers: Mapping[int, RateController]) -> None:
        """Start the receivers, with the limits of ``controllers``. Nothing is written before this."""
        self._blocks.start()
        self._cleaner.restore(self._blocks.all_blocks())
        for stream_id in self.sources.keys() & controllers.keys():
            controller = controllers[stream_id]
            controller.publish = partial(self.tracker.update_rate, stream_id)
            if controller.bound_per_s is not None:
                self.tracker.update_rate(stream_id, float(controller.bound_per_s))
        self.tracker.start()

    def stop_receiving(self, timeout_s: float) -> bool:
        """End all receivers. Return False if some still run after ``timeout_s``."""
        return self.tracker.stop_receivers("the stream is being stopped", timeout_s)

    @property
    def records_received(self) -> int:
        """The number of records that the receivers have stored since the stream started."""
        return self._blocks.records_received

    def wait_received(self, records: int, timeout_s: float) -> bool:
        """Wait until ``records`` records have been stored since the start. Return False after a timeout."""
        return self._blocks.wait_received(records, timeout_s)

    def last_errors(self) -> str:
        """Return the last error of each receiver that had one, each after a line break."""
        infos = [self.tracker.receiver_info(stream_id) for stream_id in self.sources]
        return "".join(
            f"\n{info.receiver_name}: {info.last_error_message}\n{info.last_error}".rstrip()
            for info in infos
            if info.last_error_message
        )

    @property
    def has_unplanned(self) -> bool:
        """True while some stored blocks belong to no batch yet."""
        return any(source.has_unplanned for source in self.sources.values())

    def close(self) -> None:
        """End everything; cancel receivers that do not end within ``CLOSE_TIMEOUT_S``."""
        self.stop_receiving(CLOSE_TIMEOUT_S)
        self.tracker.stop()
        self._remove()

    def _remove(self) -> None:
        self._server.stop()
        if self._folders is not None:
            self._folders.remove()


def _receiver_input(stream_id: int, receiver: ReceiverOfStream) -> ReceiverInput:
    """Return what the tracker needs of a receiver. Raises if it cannot be pickled."""
    pickled = pickle_receiver(receiver.source.receiver, receiver.where)
    source = receiver.source
    title = receiver.title or f"{receiver.name}, {receiver.where}"
    return ReceiverInput(
        stream_id, receiver.name, source.receiver, pickled, source.read_back(), title
    )


def _executor_setup(conf: Conf, directory: str | None, is_local: bool) -> ExecutorSetup:
    """Read the settings of the receivers; the address of the tracker follows when its server listens."""
    memory_bytes = RECEIVER_MEMORY.read(conf)
    return ExecutorSetup(
        uuid.uuid4().hex[:8],
        tracker="",
        secret=secrets.token_bytes(32),
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
            RECEIVER_STOP_TIMEOUT_MS.read(conf),
            RECEIVER_MAX_FAILED_STARTS.read(conf),
        ),
        folders=_driver_folders(memory_bytes) if is_local else None,
    )


def _driver_folders(memory_bytes: int) -> BlockFolders:
    """Choose the folders for blocks in local mode; delete those that killed drivers have left."""
    sweep(tempfile.gettempdir())
    name = f"tidemill-blocks-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return block_folders(name, tempfile.gettempdir(), memory_bytes)


def _driver_files(folders: BlockFolders | None) -> BlockFiles | None:
    """Make the folders of local mode. On a cluster every executor has its own: return None."""
    if folders is None:
        return None
    folders.make()
    claim(folders)
    return BlockFiles(folders)


def _driver_hosts(conf: Any, is_local: bool) -> tuple[str, str]:
    """Return the address that the driver listens on, and the one at which executors reach it."""
    if is_local:
        return LOOPBACK, LOOPBACK
    host = str(conf.get("spark.driver.host"))
    return str(conf.get("spark.driver.bindAddress") or host), host


def _start_server(host: str, secret: bytes, answer: Callable[[str, bytes], bytes]) -> RpcServer:
    """Start the server that executors call."""
    # Here, not above: gRPC does not survive a fork, and programs without receivers import this module too.
    from tidemill.common.rpc.server import RpcServer

    server = RpcServer(host, secret, {name: partial(answer, name) for name in FROM_EXECUTORS})
    server.start()
    return server


def keeps_log(conf: Conf, directory: str | None) -> bool:
    """Return True if blocks go to a write-ahead log; warn where the log is missing although it matters."""
    wanted = RECEIVER_WAL_ENABLE.read(conf)
    if directory is None:
        if wanted:
            logger.warning(
                "%s is on, but there is no checkpoint directory to keep the log in: blocks are lost with "
                "the executors that have them",
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


def require_cores(spark_context: SparkContext, receivers: int, conf: Conf | None = None) -> None:
    """Refuse a session without a core for each receiver and one more: no batch would ever run.

    On a cluster, first wait for executors that are still starting, as long as Spark itself would.
    """
    master = str(spark_context.master)
    slots = task_slots(spark_context)
    if not SparkExecutors(spark_context).is_local():
        clock = SystemClock()
        until_ms = clock.now_ms() + REGISTRATION_WAIT_MS.read(conf or spark_context.getConf())
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
