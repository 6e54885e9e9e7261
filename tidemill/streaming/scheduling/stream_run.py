"""A DStream program that has been started: its batches are planned, run and announced until it stops.

::

    RecurringTimer ─▶ JobGenerator ─▶ BatchRunner.plan ─▶ JobScheduler ─▶ BatchRunner.run ─▶ listeners
                      one thread      1. plan, 2. log     batch threads    3. run … 7. announce
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch
from tidemill.batches.durable import DurableBatches
from tidemill.batches.pipeline import BatchResult
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import rate_controllers
from tidemill.batches.rate_feed import RateFeed
from tidemill.batches.recovery import NOTHING_LOGGED, recover
from tidemill.batches.runner import BatchRunner, RunningStream
from tidemill.common.clock import Clock, never
from tidemill.common.config import CONCURRENT_JOBS
from tidemill.common.times import to_datetime
from tidemill.errors import BatchError, CheckpointError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.session.job_properties import is_stopped
from tidemill.streaming.program.upgrade import unfinished_of_another_interval
from tidemill.streaming.scheduling.dstream_pipeline import DStreamPipeline
from tidemill.streaming.scheduling.job_generator import JobGenerator
from tidemill.streaming.scheduling.job_scheduler import JobScheduler
from tidemill.streaming.scheduling.missed_batches import MissedBatches
from tidemill.streaming.scheduling.stream_errors import (
    GOES_ON,
    RUNS_AGAIN,
    STATE_ENDS,
    BatchNames,
    StreamErrors,
)

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph
    from tidemill.streaming.program.resume_point import ResumePoint

logger = logging.getLogger(__name__)


class StreamRun:
    """Prepared by :meth:`begin` or :meth:`resume`, runs from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        graph: DStreamGraph,
        clock: Clock,
        bus: ListenerBus,
        on_error: Callable[[BatchError], None],
        on_halt: Callable[[], None],
        durable: DurableBatches | None = None,
        is_awaited: Callable[[], bool] = never,
    ) -> None:
        self._graph = graph
        self._clock = clock
        self._bus = bus
        self._durable = durable
        self._errors = StreamErrors(on_error, is_awaited, self._after_a_failure())
        self._names = BatchNames(graph.batch_ms)
        conf = graph.spark_context.getConf()
        # By source id; empty unless backpressure is on.
        self.rate_controllers = rate_controllers(
            conf, graph.batch_ms, [node.source_id for node in graph.inputs]
        )
        self.pipeline = DStreamPipeline(
            graph, clock, bus, self._errors, self._names, durable is not None
        )
        self._planner = self._make_planner()
        self._runner: BatchRunner[BatchResult] = BatchRunner(
            RunningStream(
                self.pipeline, self.pipeline, lambda: not is_stopped(graph.spark_context)
            ),
            self._planner,
            RateFeed(self.rate_controllers),
            clock,
            durable,
        )
        self._generator = JobGenerator(clock, graph.batch_ms, self._plan, self._on_loop_error)
        # Batches of a durable stream never overlap: each starts from the state of the one before.
        batch_threads = 1 if durable is not None else CONCURRENT_JOBS.read(conf)
        self._scheduler = JobScheduler(
            self._runner, batch_threads, self._on_scheduler_error, lambda: _on_own_thread(on_halt)
        )
        self._missed = MissedBatches(graph, self._wait_until_run)
        self._first_ms = 0
        self._unfinished: list[Batch] = []

    def _after_a_failure(self) -> str:
        """Say what becomes of the stream, and of the batch, when a batch fails."""
        if self._durable is None:
            return GOES_ON
        return STATE_ENDS if self._graph.checkpoint_directory is None else RUNS_AGAIN

    def _make_planner(self) -> BatchPlanner:
        sources = {
            node.source_id: PlannedSource(
                node.operator_id,
                node.source,
                node.limit,
                self.rate_controllers.get(node.source_id),
            )
            for node in self._graph.inputs
        }
        storage = None if self._durable is None else self._durable.storage
        return BatchPlanner(sources, self._clock, storage, self._graph.batch_ms)

    # -- starting ------------------------------------------------------------------------------

    def begin(self) -> int:
        """Make a new stream ready. Return the time of its first batch: the next one of the clock."""
        self._first_ms = self._generator.next_time_ms()
        zero_ms = self._first_ms - self._graph.batch_ms
        self._graph.start(zero_ms)
        self._missed.begin(zero_ms)
        recover(self._planner, self.pipeline, NOTHING_LOGGED, self._clock, zero_ms)
        return self._first_ms

    def resume(self, point: ResumePoint) -> int:
        """Make a stream ready to go on where an earlier run of it ended.

        First come the batches that were planned and not committed, as :func:`recover` finds them, also those
        that were planned with another batch interval, THEN the batches whose times have passed since, but for
        long stretches of empty ones (:mod:`~tidemill.streaming.scheduling.missed_batches`), then those of the
        clock. IF nothing was ever planned, the first batch is the one after the zero time.

        Returns the time of the first batch that is planned anew.
        """
        assert self._durable is not None
        logged = self._durable.logged
        last = logged.last_planned
        last_ms = point.zero_ms if last is None else logged.offsets[last].batch_time_ms
        self._first_ms = (last_ms // self._graph.batch_ms + 1) * self._graph.batch_ms
        self._clock.start_after(last_ms)
        self._missed.begin(last_ms)
        self._graph.start(
            point.zero_ms if point.same_times else self._first_ms - self._graph.batch_ms
        )
        position = recover(self._planner, self.pipeline, logged, self._clock, last_ms)
        self._unfinished = list(position.unfinished)
        self._graph.earlier_times = unfinished_of_another_interval(self._graph, self._unfinished)
        if point.same_times:
            for batch in position.readable:
                self._graph.restore(batch)
            for before, after in pairwise((*position.readable, *position.unfinished)):
                self._graph.leave_out(before, after.time_ms)  # nothing, if one follows the other
        self._runner.resume(position.readable, position.unfinished)
        return self._first_ms

    def start_threads(self) -> None:
        """Start all threads but the generator's, which begins the batches."""
        self._bus.start()
        self.pipeline.threads.start()
        self._scheduler.start()

    def start(self) -> None:
        """Let the batches begin. After :meth:`begin`, or :meth:`resume`."""
        for batch in self._unfinished:
            self._submit(batch)
        self._scheduler.planned_until(self._first_ms - self._graph.batch_ms)
        self._generator.start(self._first_ms)

    # -- batch after batch ---------------------------------------------------------------------

    def _plan(self, time_ms: int, reached_ms: int) -> int:
        """Plan the batch of ``time_ms`` and return the time of the next one. On the generator's thread."""
        following_ms = next_ms = time_ms + self._graph.batch_ms
        if self._scheduler.is_halted:
            following_ms = next_ms = reached_ms + self._graph.batch_ms
        else:
            try:
                batch = self._runner.plan(time_ms)
                self._submit(batch)
                next_ms = self._missed.next_time_ms(batch, reached_ms)
            except BaseException as error:
                name = self._names.batch(time_ms)
                self._errors.report(f"The {name} could not be planned.", error, time_ms)
                if self._durable is not None:
                    self._scheduler.halt()
        if next_ms > following_ms:
            logger.warning(
                "the clock is %.1f s ahead of the batches: nothing came in, so the %d batch times from %s to "
                "%s are left out (the clock was set forward, the machine slept, or the stream was down)",
                (reached_ms - time_ms) / 1000,
                (next_ms - following_ms) // self._graph.batch_ms,
                to_datetime(following_ms),
                to_datetime(next_ms - self._graph.batch_ms),
            )
        self._scheduler.planned_until(next_ms - self._graph.batch_ms)
        return next_ms

    def _wait_until_run(self) -> bool:
        """Wait until the batches that were planned have run. Return False if the stream stops first."""
        while not self._scheduler.wait_until_idle(0.1):
            if self._generator.is_stopped:
                return False
        return not self._scheduler.is_halted

    def _submit(self, batch: Batch) -> None:
        self._scheduler.submit(batch, self.pipeline.submitted(batch))

    def _on_loop_error(self, error: BaseException) -> None:
        self._errors.report("The job generator failed.", error)

    def _on_scheduler_error(self, error: BaseException) -> None:
        self._errors.report("Cleaning up after a batch failed.", error)

    def lose_ownership(self, error: CheckpointError) -> None:
        self._errors.report("The stream has lost its checkpoint directory.", error)
        self._runner.abandon()
        self._scheduler.halt()

    # -- waiting -------------------------------------------------------------------------------

    def finish_batches(self, timeout_s: float) -> bool:
        """Plan no new batch and wait for those that were begun. Return False if that took too long."""
        self._generator.stop_timer()
        return self._generator.drain(timeout_s) and self._scheduler.wait_until_idle(timeout_s)

    def finish_running_batches(self, timeout_s: float) -> bool:
        """Begin no other batch, and wait for those that run. Return False if that took too long."""
        self._generator.stop_timer()
        for thread in self._scheduler.stop():
            thread.join(timeout_s)
            if thread.is_alive():
                return False
        return True

    def running_batches(self) -> list[str]:
        """Return the names of the batches that run now, such as ``the batch of 12:00:03``."""
        return [f"the {self._names.batch(time_ms)}" for time_ms in self.pipeline.running_times()]

    def wait_until_processed(self, time_ms: int, timeout_s: float) -> bool:
        """Wait until all batches up to ``time_ms`` are over and listeners know. False if too slow."""
        return self._scheduler.wait_until_processed(
            time_ms, timeout_s
        ) and self._bus.wait_until_empty(timeout_s)

    def wait_until_planned(self, is_left: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for as many batch times as it takes until nothing ``is_left``. False if too slow."""
        return self._scheduler.wait_until_planned(is_left, timeout_s)

    def runs_current_thread(self) -> bool:
        """True inside an output operation or a function given to ``transform``."""
        return (
            self._scheduler.is_current_thread()
            or self.pipeline.threads.is_current_thread()
            or self._generator.is_current_thread()
        )

    # -- stopping ------------------------------------------------------------------------------

    def stop_after_running_batch(self, then: Callable[[], None]) -> None:
        """Begin no other batch, and call ``then`` on a thread of its own when the running one has ended.

        For a stop that the program's own output operation asks for: its batch is finished, and committed.
        """
        self._generator.stop_timer()
        threads = self._scheduler.stop()

        def wait_and_stop() -> None:
            for thread in threads:
                thread.join()
            then()

        _on_own_thread(wait_and_stop)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Begin no other job, end the running ones, and stop all threads. Idempotent."""
        self._errors.mute()
        # First: whatever the user's code makes of a cancelled job, its batch is not committed.
        self._runner.abandon()
        self._generator.stop()
        threads = [*self._scheduler.stop(), *self.pipeline.threads.stop()]
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                self.pipeline.end(thread, timeout_s)
                if thread.is_alive():
                    logger.warning(
                        "an output operation is still running %s s after its batch was cancelled; "
                        "it will not be waited for",
                        timeout_s,
                    )
        self._planner.stop()
        self._bus.stop()


def _on_own_thread(stop: Callable[[], None]) -> None:
    """Run a stop that waits for the thread it is asked for on."""
    threading.Thread(target=stop, name="tidemill-stop", daemon=True).start()
