"""The life of a context: it is started once, runs batches, and is stopped for good."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pyspark import RDD, SparkContext

from tidemill.checkpoint.storage import usable
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import (
    GRACEFUL_STOP_TIMEOUT_MS,
    LISTENER_QUEUE_CAPACITY,
    STOP_GRACEFULLY_ON_SHUTDOWN,
)
from tidemill.common.paths import checkpoint_location
from tidemill.common.shutdown import Grace, ShutdownHook, tell_terminal, tell_waiting
from tidemill.common.times import duration_ms, require_seconds
from tidemill.errors import IllegalStateError, ProgramError
from tidemill.progress.events import StreamingStarted
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.session.job_properties import is_stopped, require_pinned_threads
from tidemill.spark.session.session import prepare_terminal, warn_if_slow
from tidemill.spark.session.shipping import ship_package
from tidemill.streaming.graph.dstream_graph import DStreamGraph
from tidemill.streaming.graph.state import StatefulNode, state_rdd
from tidemill.streaming.listener import StreamingListener, require_listener
from tidemill.streaming.program.stream_start import StreamStart
from tidemill.streaming.scheduling.stream_run import StreamRun
from tidemill.streaming.waiter import ContextWaiter

SHORTEST_GRACE_MS = 60_000
"""The shortest deadline of a graceful stop: the first batch of a program compiles most of Spark."""

CALLED = "checkpoint directory"

logger = logging.getLogger(__name__)


class StreamingContextState(enum.Enum):
    """The states of a context, in their order; none comes back."""

    INITIALIZED = "initialized"  # streams are being defined
    ACTIVE = "active"  # started and not stopped: batches run
    STOPPED = "stopped"  # for good, by stop() or by a batch after which none can follow


class StreamLifecycle:
    """The part of a ``StreamingContext`` that does not make streams: it starts, runs and stops them.

    At most one is active in a process.
    """

    _activeContext: ClassVar[StreamLifecycle | None] = None
    _activation_lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, spark_context: SparkContext, batch_s: float, clock: Clock | None) -> None:
        if is_stopped(spark_context):
            raise IllegalStateError("this SparkContext has been stopped: make a new one first")
        prepare_terminal()
        require_pinned_threads(spark_context)
        self._sc = spark_context
        self._clock = clock or SystemClock(logs_jumps=True)
        self._graph = DStreamGraph(spark_context, duration_ms(batch_s, "batchDuration"))
        self._bus = ListenerBus(
            "streaming-listeners", LISTENER_QUEUE_CAPACITY.read(spark_context.getConf())
        )
        self._waiter = ContextWaiter()
        self._run: StreamRun | None = None
        self._start = StreamStart(self._graph, self._clock)
        self._hook = ShutdownHook(self._stop_on_shutdown, self._consequence)
        self._state = StreamingContextState.INITIALIZED
        # Held during start() and stop(): a second call waits for the first one to finish.
        self._transition = threading.RLock()
        self._is_stopping = False
        warn_if_slow(spark_context)

    @property
    def sparkContext(self) -> SparkContext:
        """The Spark context that the batches run on."""
        return self._sc

    def getState(self) -> StreamingContextState:
        """Return INITIALIZED, ACTIVE or STOPPED."""
        return self._state

    def start(self) -> None:
        """Start the streams. A second call does nothing; a stopped context cannot start again."""
        with self._transition:
            if self._state is StreamingContextState.STOPPED:
                raise IllegalStateError(
                    "this StreamingContext has been stopped and cannot start again: make a new one"
                )
            if self._state is StreamingContextState.ACTIVE:
                logger.warning("this StreamingContext has already been started")
                return
            with StreamLifecycle._activation_lock:
                other = StreamLifecycle._activeContext
                if other is not None:
                    raise IllegalStateError(
                        "only one StreamingContext can be active in a process, and another one is: "
                        "stop it first, or add your streams to it before it starts"
                    )
                self._start_threads()
                self._state = StreamingContextState.ACTIVE
                StreamLifecycle._activeContext = self
            self._bus.post(StreamingStarted(self._clock.now_ms()))
            self._hook.install()

    def _start_threads(self) -> None:
        try:
            self._graph.validate()
            self._graph.freeze("has been started")
            ship_package(self._sc)
            # Known before any batch begins: a function of the first one may call stop().
            with usable(self._graph.checkpoint_directory or "", CALLED):
                self._run = self._start.prepare(
                    self._bus,
                    self._waiter.notify_error,
                    self._stop_after_halt,
                    lambda: self._waiter.is_awaited,
                )
            self._run.start()
        except BaseException:
            # As in Spark, a context that failed to start, or its checks, cannot be started again.
            self._graph.freeze("failed to start")
            self._state = StreamingContextState.STOPPED
            raise

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until the context is stopped, or for ``timeout`` seconds; raise the first batch error.

        None, or less than 0, waits as long as it takes.
        """
        self._waiter.wait(None if timeout is None else require_seconds(timeout, "timeout"))

    def awaitTerminationOrTimeout(self, timeout: float) -> bool:
        """Wait as :meth:`awaitTermination`. Return True if the context was stopped, False if time was up."""
        return self._waiter.wait(require_seconds(timeout, "timeout"))

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:
        """Stop the streams, and with ``stopSparkContext`` Spark too.

        With ``stopGraceFully`` wait for the batches that have begun, for at most
        ``spark.streaming.gracefulStopTimeout``. Without it they are cancelled.

        A call from inside an output operation returns at once; the stream stops when the batch of that
        operation has ended.
        """
        self._stop(stopSparkContext, Grace.ALL if stopGraceFully else Grace.NONE)

    def _stop(self, stop_spark_context: bool, grace: Grace) -> None:
        if self._bus.is_current_thread():
            raise IllegalStateError(
                "a StreamingListener cannot stop the context it listens to: "
                "call stop() from another thread"
            )
        run = self._run
        inside_a_job = run is not None and run.runs_current_thread()
        if inside_a_job and grace is not Grace.NONE:
            raise IllegalStateError(
                "a function of the stream cannot wait for its own batch to finish: call "
                "stop(stopGraceFully=True) from another thread, or stop() without it"
            )
        if run is not None and inside_a_job:
            # The batch of this very job is finished, and committed, before anything stops. If another
            # thread is stopping the context already, that one has the say.
            if not self._is_stopping:
                run.stop_after_running_batch(lambda: self.stop(stop_spark_context))
            return
        with self._transition, self._stopping():
            if self._state is StreamingContextState.ACTIVE:
                self._stop_threads(grace)
            elif self._state is StreamingContextState.INITIALIZED:
                logger.warning("this StreamingContext is stopped before it was started")
            # Last, so that a stop() that was interrupted can be called again.
            self._state = StreamingContextState.STOPPED
            self._graph.freeze("has been stopped")
            self._waiter.notify_stop()
        # Even if the streams were stopped before: stop(True) may follow stop(False).
        if stop_spark_context:
            self._sc.stop()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        self._is_stopping = True
        try:
            yield
        finally:
            self._is_stopping = False

    def _stop_threads(self, grace: Grace) -> None:
        assert self._run is not None
        if grace is not Grace.NONE:
            timeout_ms = GRACEFUL_STOP_TIMEOUT_MS.read(self._sc.getConf())
            if timeout_ms is None:
                timeout_ms = max(10 * self._graph.batch_ms, SHORTEST_GRACE_MS)
            timeout_s = timeout_ms / 1000
            if grace is Grace.ALL:
                self._finish_receiving(timeout_s)
                is_finished = self._run.finish_batches(timeout_s)
            else:
                is_finished = self._run.finish_running_batches(timeout_s)
            if not is_finished:
                logger.warning(
                    "batches are still unfinished after %s s of graceful stop: they are cancelled "
                    "(spark.streaming.gracefulStopTimeout allows more)",
                    timeout_s,
                )
        self._run.stop()
        self._start.close()
        self._hook.remove()
        with StreamLifecycle._activation_lock:
            if StreamLifecycle._activeContext is self:
                StreamLifecycle._activeContext = None

    def _stop_after_halt(self) -> None:
        """Stop a stream that cannot go on: whoever polls its state would wait for ever.

        Spark stays, and ``awaitTermination`` raises the error that has halted the stream.
        """
        try:
            self.stop(stopSparkContext=False)
        except Exception as error:
            # Such as a JVM that is gone: it may be what has halted the stream.
            logger.warning("the stream has halted, and could not be stopped in order: %s", error)

    def _finish_receiving(self, timeout_s: float) -> None:
        """End the receivers, and let batches begin until all records that they stored are planned."""
        receivers = self._start.receivers
        if receivers is None:
            return
        assert self._run is not None
        if not receivers.stop_receiving(timeout_s):
            logger.warning("receivers are still running after %s s of graceful stop", timeout_s)
        if not self._run.wait_until_planned(lambda: receivers.has_unplanned, timeout_s):
            logger.warning("the last received records are not planned after %s s", timeout_s)

    def _stop_on_shutdown(self, number: int | None) -> None:
        grace = self._grace_at_the_end(number)
        logger.info("the program ends: its stream stops, and %s", grace.value)
        run = self._run
        if run is not None and grace is Grace.NONE:
            if cancelled := self._consequence():
                tell_terminal(f"stopping: {cancelled}")
        elif run is not None:
            tell_waiting(run.running_batches(), number)
        try:
            # PySpark has its own exit handler for the SparkContext.
            self._stop(stop_spark_context=False, grace=grace)
        except Exception as error:
            # A signal to the whole process group may end Spark's JVM before the streams.
            logger.warning("the stream could not be stopped in order: %s", error)

    def _grace_at_the_end(self, number: int | None) -> Grace:
        """Decide what the end of the program waits for; ``number`` is the signal that ends it, or None.

        IF ``stopGracefullyOnShutdown`` is set, everything or nothing, as in Spark. ELSE IF the stream has no
        checkpoint directory, nothing, as in Spark. ELSE IF a signal ends the program, the running batch:
        somebody waits, and the rest is in the directory, if receivers keep their log there. ELSE everything.
        """
        wanted = STOP_GRACEFULLY_ON_SHUTDOWN.read(self._sc.getConf())
        if wanted is not None:
            return Grace.ALL if wanted else Grace.NONE
        if self._graph.checkpoint_directory is None:
            return Grace.NONE
        receivers = self._start.receivers
        loses_nothing = receivers is None or receivers.keeps_log
        return Grace.RUNNING_BATCH if number is not None and loses_nothing else Grace.ALL

    def _consequence(self) -> str:
        """Say what becomes of the batches that run now if the process ends at once."""
        batches = [] if self._run is None else self._run.running_batches()
        if not batches:
            return ""
        what = ", ".join(batches)
        if self._graph.checkpoint_directory is None:
            return f"{what} is given up, and the stream has no checkpoint directory to go on from"
        return f"{what} runs again when the stream is started from its checkpoint directory"

    # -- settings ------------------------------------------------------------------------------

    def remember(self, duration: float) -> None:
        """Keep the RDDs of every DStream for at least ``duration`` seconds, for ``DStream.slice``."""
        if self._graph.remember_ms:
            raise ProgramError(
                f"remember() has been called before, with {self._graph.remember_ms} ms, and cannot be "
                "called again: call it once, with the longest duration"
            )
        self._graph.remember_ms = duration_ms(duration, "duration")

    def checkpoint(self, directory: str | None) -> None:
        """Make the stream durable: ``directory`` keeps all that it needs to survive its driver.

        ``directory`` is a path, or a URI of a file system that all executors reach. A stream that was
        stopped, or died, goes on with ``StreamingContext.getOrCreate``. With None the stream is not durable,
        whatever an earlier call has said.
        """
        location = None if directory is None else checkpoint_location(directory, "directory")
        self._graph.refuse_change_after_start("the checkpoint directory cannot change")
        self._graph.checkpoint_directory = location

    def readState(self, name: str) -> RDD[tuple[Any, Any]]:
        """Read the keys and values of a stream with state, as of the last committed batch.

        ``name`` is the one that ``DStream.setName`` gave it, or its operation and number, such as
        ``updateStateByKey-1``. The stream goes on meanwhile.
        """
        operators = self._graph.operators()
        node = operators.get(name)
        state = self._graph.state
        if not isinstance(node, StatefulNode) or state is None:
            known = [n for n, other in operators.items() if isinstance(other, StatefulNode)]
            raise ProgramError(
                f"there is no stream with state called {name!r} that has been started; "
                f"there is {', '.join(known) or 'none'}",
                name,
            )
        operator_state = state.state_of(node.operator_id)
        versions = state.latest(node.operator_id)
        return state_rdd(self._sc, operator_state, versions, self._graph.program_classes)

    def addStreamingListener(self, streamingListener: StreamingListener) -> None:
        """Tell ``streamingListener`` of all events of batches, output operations and receivers."""
        require_listener(streamingListener)
        self._bus.add_listener(streamingListener)
