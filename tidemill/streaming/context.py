"""The entry point of a DStream program."""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from pyspark import RDD, SparkContext

from tidemill.batches.durable import holds_program
from tidemill.checkpoint.program_file import read_header
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import Clock, SystemClock
from tidemill.common.config import GRACEFUL_STOP_TIMEOUT_MS, STOP_GRACEFULLY_ON_SHUTDOWN
from tidemill.common.shutdown import ShutdownHook
from tidemill.common.times import duration_ms
from tidemill.errors import IllegalStateError, ProgramError, UnsupportedError
from tidemill.progress.events import StreamingStarted
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.session.job_properties import is_stopped
from tidemill.spark.session.session import warn_if_slow
from tidemill.spark.session.shipping import ship_package
from tidemill.streaming.dstream import DStream
from tidemill.streaming.graph.dstream_graph import DStreamGraph
from tidemill.streaming.graph.stateful_node import StatefulNode, state_rdd
from tidemill.streaming.graph.stateless_nodes import TransformedNode
from tidemill.streaming.inputs import InputStreams
from tidemill.streaming.listener import StreamingListener
from tidemill.streaming.program.graph_pickle import (
    Recovered,
    read_graph,
    refuse_foreign,
    spark_context_for,
)
from tidemill.streaming.program.stream_start import StreamStart
from tidemill.streaming.program.upgrade import Renames
from tidemill.streaming.scheduling.job_scheduler import JobScheduler
from tidemill.streaming.waiter import ContextWaiter

__all__ = ["StreamingContext"]

SHORTEST_GRACE_MS = 60_000
"""The first batch of a program compiles most of Spark: ten intervals of a second may not be enough."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class StreamingContextState(enum.Enum):
    INITIALIZED = "initialized"  # streams are being defined
    ACTIVE = "active"  # started and not stopped: batches run
    STOPPED = "stopped"  # for good: a new context is needed to go on


class StreamingContext(InputStreams):
    """Cuts streams into batches and runs every batch on Spark.

    ::

        ssc = StreamingContext(spark.sparkContext, 1)
        ssc.textFileStream("incoming").flatMap(str.split).countByValue().pprint()
        ssc.start()
        ssc.awaitTermination()

    Args:
        sparkContext: the Spark context that all batches run on.
        batchDuration: the batch interval in seconds; fractions are allowed.
        jssc: there is no Java context under this one; exists for the signature only.
        clock: whose time the batches follow; a ``ManualClock`` in tests.
    """

    _activeContext: ClassVar[StreamingContext | None] = None
    _activation_lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(
        self,
        sparkContext: SparkContext,
        batchDuration: float | None = None,
        jssc: Any = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        if jssc is not None:
            raise UnsupportedError(
                "Tidemill's StreamingContext has no Java context to wrap: leave out jssc"
            )
        if not isinstance(sparkContext, SparkContext):
            raise TypeError(
                f"sparkContext must be a SparkContext, not {type(sparkContext).__name__}; "
                "a SparkSession has one as its .sparkContext"
            )
        if batchDuration is None:
            raise ProgramError("batchDuration is missing: how many seconds is a batch to be long?")
        if is_stopped(sparkContext):
            raise IllegalStateError("this SparkContext has been stopped: make a new one first")
        self._sc = sparkContext
        self._clock = clock or SystemClock()
        self._graph = DStreamGraph(sparkContext, duration_ms(batchDuration, "batchDuration"))
        self._bus = ListenerBus("streaming-listeners")
        self._waiter = ContextWaiter()
        self._scheduler: JobScheduler | None = None
        self._start = StreamStart(self._graph, self._clock)
        self._hook = ShutdownHook(self._stop_on_shutdown)
        self._state = StreamingContextState.INITIALIZED
        # Held during start() and stop(): a second call waits for the first one to finish.
        self._transition = threading.RLock()
        warn_if_slow(sparkContext)

    # -- lifecycle -----------------------------------------------------------------------------

    @classmethod
    def getOrCreate(
        cls,
        checkpointPath: str,
        setupFunc: Callable[[], StreamingContext],
        *,
        upgrade: bool | Renames = False,
        clock: Clock | None = None,
    ) -> StreamingContext:
        """The stream of a checkpoint directory, or, if it has none yet, what ``setupFunc`` makes.

        A stream that is recovered has its configuration, its operations and its state; it runs the
        batches that were not finished, those of the time in which nobody ran it, and then goes on.
        ``setupFunc`` is not called.

        With ``upgrade`` it is: the new program goes on with the offsets and the state of the old one, by
        the names of its operators (:meth:`DStream.setName`). ``upgrade={"old": "new", "gone": None}``
        renames and drops operators.
        """
        refuse_foreign(checkpointPath)
        if upgrade and (header := read_header(open_storage(checkpointPath))) is not None:
            ssc = setupFunc()
            ssc._start.upgrade(header, upgrade if isinstance(upgrade, Mapping) else {})
        elif holds_program(checkpointPath):
            ssc = cls._recovered(checkpointPath, clock)
        else:
            ssc = setupFunc()
        ssc.checkpoint(checkpointPath)
        return ssc

    @classmethod
    def _recovered(cls, directory: str, clock: Clock | None) -> StreamingContext:
        header, graph = read_graph(directory)
        graph.attach(spark_context_for(header))
        ssc = cls(graph.spark_context, graph.batch_ms / 1000, clock=clock)
        ssc._graph = graph
        ssc._start = StreamStart(graph, ssc._clock, Recovered(header.zero_ms))
        return ssc

    @classmethod
    def getActive(cls) -> StreamingContext | None:
        """The context of this process that is started and not stopped, or None."""
        return StreamingContext._activeContext

    @classmethod
    def getActiveOrCreate(
        cls, checkpointPath: str | None, setupFunc: Callable[[], StreamingContext]
    ) -> StreamingContext:
        """The active context if there is one, else as :meth:`getOrCreate`, else ``setupFunc()``."""
        if not callable(setupFunc):
            raise TypeError("setupFunc should be callable.")
        active = cls.getActive()
        if active is not None:
            return active
        if checkpointPath is not None:
            return cls.getOrCreate(checkpointPath, setupFunc)
        return setupFunc()

    @property
    def sparkContext(self) -> SparkContext:
        """The Spark context that the batches run on."""
        return self._sc

    def getState(self) -> StreamingContextState:
        """INITIALIZED, ACTIVE or STOPPED."""
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
            with StreamingContext._activation_lock:
                other = StreamingContext._activeContext
                if other is not None:
                    raise IllegalStateError(
                        "only one StreamingContext can be active in a process, and another one is: "
                        "stop it first, or add your streams to it before it starts"
                    )
                self._graph.validate()
                self._graph.freeze("has been started")
                self._start_threads()
                self._state = StreamingContextState.ACTIVE
                StreamingContext._activeContext = self
            self._bus.post(StreamingStarted(self._clock.now_ms()))
            self._hook.install()

    def _start_threads(self) -> None:
        try:
            ship_package(self._sc)
            self._scheduler = self._start.run(self._bus, self._waiter.notify_error)
        except BaseException:
            # A context that failed halfway through its start is of no use any more.
            self._graph.freeze("failed to start")
            self._state = StreamingContextState.STOPPED
            raise

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until the context is stopped, or for ``timeout`` seconds; raise what made a batch fail."""
        self._waiter.wait(timeout)

    def awaitTerminationOrTimeout(self, timeout: float) -> bool:
        """As :meth:`awaitTermination`. True if the context was stopped, False if the time was up."""
        return self._waiter.wait(timeout)

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:
        """Stop the streams, and with ``stopSparkContext`` Spark too.

        With ``stopGraceFully`` the batches that have been begun are finished first, for at most
        ``spark.streaming.gracefulStopTimeout``. Without it they are cancelled.
        """
        if self._bus.is_current_thread():
            raise IllegalStateError(
                "a StreamingListener cannot stop the context it listens to: "
                "call stop() from another thread"
            )
        inside_a_job = self._scheduler is not None and self._scheduler.runs_current_thread()
        if inside_a_job and stopGraceFully:
            raise IllegalStateError(
                "a function of the stream cannot wait for its own batch to finish: call "
                "stop(stopGraceFully=True) from another thread, or stop() without it"
            )
        # A job that wants to stop a context that is waiting for this very job must not wait in turn.
        if not self._transition.acquire(blocking=not inside_a_job):
            return
        try:
            if self._state is StreamingContextState.ACTIVE:
                self._stop_threads(stopGraceFully)
            elif self._state is StreamingContextState.INITIALIZED:
                logger.warning("this StreamingContext is stopped before it was started")
            # Only now: a stop() that was interrupted can be called again and goes on.
            self._state = StreamingContextState.STOPPED
            self._graph.freeze("has been stopped")
            self._waiter.notify_stop()
        finally:
            self._transition.release()
        # Also when the streams had been stopped before: stop(False) may be followed by stop(True).
        if stopSparkContext:
            self._sc.stop()

    def _stop_threads(self, gracefully: bool) -> None:
        assert self._scheduler is not None
        if gracefully:
            timeout_ms = GRACEFUL_STOP_TIMEOUT_MS.read(self._sc.getConf())
            if timeout_ms is None:
                timeout_ms = max(10 * self._graph.batch_ms, SHORTEST_GRACE_MS)
            timeout_s = timeout_ms / 1000
            self._finish_receiving(timeout_s)
            if not self._scheduler.finish_batches(timeout_s):
                logger.warning(
                    "batches are still unfinished after %s s of graceful stop: they are cancelled "
                    "(spark.streaming.gracefulStopTimeout allows more)",
                    timeout_s,
                )
        self._scheduler.stop()
        self._start.close()
        self._hook.remove()
        with StreamingContext._activation_lock:
            if StreamingContext._activeContext is self:
                StreamingContext._activeContext = None

    def _finish_receiving(self, timeout_s: float) -> None:
        """End the receivers, and let batches begin until one has had the last of what they stored."""
        receivers = self._start.receivers
        if receivers is None:
            return
        assert self._scheduler is not None
        if not receivers.stop_receiving(timeout_s):
            logger.warning("receivers are still running after %s s of graceful stop", timeout_s)
        if not self._scheduler.wait_until_planned(lambda: receivers.has_unplanned, timeout_s):
            logger.warning("what was received last has not been planned after %s s", timeout_s)

    def _stop_on_shutdown(self) -> None:
        wanted = STOP_GRACEFULLY_ON_SHUTDOWN.read(self._sc.getConf())
        gracefully = self._graph.checkpoint_directory is not None if wanted is None else wanted
        logger.info("the program ends: stopping its streams%s", " gracefully" * gracefully)
        try:
            # PySpark has its own exit handler for the SparkContext.
            self.stop(stopSparkContext=False, stopGraceFully=gracefully)
        except Exception as error:
            # A signal to the whole process group ends Spark's JVM as well, before its streams.
            logger.warning("the stream could not be stopped in order: %s", error)

    def remember(self, duration: float) -> None:
        """Keep the RDDs of every DStream for at least ``duration`` seconds, for :meth:`DStream.slice`."""
        self._graph.remember_ms = duration_ms(duration, "the remember duration")

    def checkpoint(self, directory: str) -> None:
        """Make the stream durable: ``directory`` keeps what it needs to survive its driver.

        A path, or a URI of a file system that all executors reach. A stream that was stopped, or died,
        goes on with :meth:`getOrCreate`.
        """
        if not isinstance(directory, str) or not directory:
            raise ProgramError(
                f"the checkpoint directory must be a path or a URI, not {directory!r}"
            )
        self._graph.refuse_change_after_start()
        self._graph.checkpoint_directory = (
            directory if "://" in directory else os.path.abspath(directory)
        )

    def readState(self, name: str) -> RDD[tuple[Any, Any]]:
        """The keys and values of a stream with state, as of the last committed batch.

        ``name`` is the one it was given with :meth:`DStream.setName`, or its operation and number, such
        as ``updateStateByKey-1``. The stream goes on meanwhile.
        """
        operators = self._graph.operators()
        node = operators.get(name)
        state = self._graph.state
        if not isinstance(node, StatefulNode) or state is None:
            known = [n for n, of in operators.items() if isinstance(of, StatefulNode)]
            raise ProgramError(
                f"there is no stream with state called {name!r} that has been started; "
                f"there is {', '.join(known) or 'none'}"
            )
        operator_state = state.state_of(node.operator_id)
        return state_rdd(self._sc, operator_state, state.latest(node.operator_id))

    def addStreamingListener(self, streamingListener: StreamingListener) -> None:
        """Have ``streamingListener`` told what happens to batches, output operations and receivers."""
        self._bus.add_listener(streamingListener)

    # -- several streams at once ---------------------------------------------------------------

    def transform(
        self, dstreams: list[DStream[Any]], transformFunc: Callable[..., RDD[T]]
    ) -> DStream[T]:
        """A stream whose RDDs ``transformFunc`` makes from a tuple of RDDs, one of each stream."""
        if not dstreams:
            raise ProgramError("transform needs at least one DStream")
        _require_same_slide(dstreams)

        def func(_: int, *rdds: RDD[Any]) -> RDD[T]:
            return transformFunc(rdds)

        return DStream(TransformedNode([stream._node for stream in dstreams], func), self)

    def union(self, *dstreams: DStream[T]) -> DStream[T]:
        """All records of several streams with the same slide."""
        if not dstreams:
            raise ProgramError("should have at least one DStream to union")
        if len(dstreams) == 1:
            return dstreams[0]
        return self.transform(list(dstreams), lambda rdds: rdds[0].ctx.union(list(rdds)))


def _require_same_slide(dstreams: Iterable[DStream[Any]]) -> None:
    slides = {stream._node.slide_ms for stream in dstreams}
    if len(slides) > 1:
        raise ProgramError(
            f"all DStreams must have the same slide duration, and these have {sorted(slides)} ms"
        )
