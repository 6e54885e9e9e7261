"""Runs the jobs of batches, in order, and tells the world how they went."""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidemill.batches.durable import DurableBatches
from tidemill.checkpoint.batch_log import CommitRecord
from tidemill.common.clock import Clock
from tidemill.common.config import CONCURRENT_JOBS
from tidemill.common.event_loop import EventLoop
from tidemill.common.fault_points import fault_point
from tidemill.common.times import clock_face
from tidemill.errors import BatchError, CheckpointError
from tidemill.progress.events import (
    BatchCompleted,
    BatchStarted,
    BatchSubmitted,
    OutputOperationCompleted,
    OutputOperationStarted,
)
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.session.failures import user_traceback, where_it_failed
from tidemill.spark.session.job_properties import InheritedProperties, cancel_jobs, describe_job
from tidemill.streaming.scheduling.job import Job, JobSet
from tidemill.streaming.scheduling.job_generator import JobGenerator
from tidemill.streaming.scheduling.scheduler_events import (
    BatchBegun,
    JobCompleted,
    JobsMade,
    JobStarted,
    SchedulerEvent,
)

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

logger = logging.getLogger(__name__)


class JobScheduler:
    """``spark.streaming.concurrentJobs`` handler threads and an event loop that keeps the books.

    With one handler, which is the default, batches wait for each other and never overlap.

    With a checkpoint directory they never do: a batch begins when the one before is committed. One that
    fails halts the stream, because nothing after it could be exact; the next start runs it again.
    """

    def __init__(
        self,
        graph: DStreamGraph,
        clock: Clock,
        listener_bus: ListenerBus,
        on_error: Callable[[BatchError], None],
        durable: DurableBatches | None = None,
    ) -> None:
        self._graph = graph
        self._sc = graph.spark_context
        self._clock = clock
        self._bus = listener_bus
        self._on_first_error = on_error
        self._durable = durable
        # Batches that have their ranges and wait for their turn: oldest first.
        self._planned: deque[JobSet] = deque()
        self._turn_taken = False
        self._halted = threading.Event()
        self._run_id = uuid.uuid4().hex[:8]
        self.inherited = InheritedProperties(self._sc)
        self._events: EventLoop[SchedulerEvent] = EventLoop(
            "job-scheduler", self._on_event, self._on_loop_error
        )
        self._job_sets: dict[int, JobSet] = {}
        self._job_sets_changed = threading.Condition()
        self._generated_until_ms = -1
        self._completed: set[int] = set()
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._handlers = [
            threading.Thread(target=self._handle_jobs, name=f"tidemill-job-{i}", daemon=True)
            for i in range(CONCURRENT_JOBS.read(self._sc.getConf()))
        ]
        self.generator = JobGenerator(graph, self, clock, durable)

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start all threads but the generator's, which begins the batches."""
        self._events.start()
        self._bus.start()
        for handler in self._handlers:
            handler.start()

    def finish_batches(self, timeout_s: float) -> bool:
        """Plan no new batch and wait for those that were begun. False if that took too long."""
        self.generator.stop_timer()
        if not self.generator.drain(timeout_s):
            return False
        with self._job_sets_changed:
            return self._job_sets_changed.wait_for(
                lambda: self.is_halted or not self._job_sets, timeout_s
            )

    def wait_until_processed(self, time_ms: int, timeout_s: float) -> bool:
        """Wait until all batches up to ``time_ms`` are over and listeners know. False if too slow."""
        with self._job_sets_changed:
            done = self._job_sets_changed.wait_for(
                lambda: (
                    self.is_halted or (self._generated_until_ms >= time_ms and not self._job_sets)
                ),
                timeout_s,
            )
        return done and self.generator.drain(timeout_s) and self._bus.wait_until_empty(timeout_s)

    def wait_until_planned(self, is_left: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for as many batch times as it takes until nothing ``is_left``. False if too slow."""
        with self._job_sets_changed:
            return self._job_sets_changed.wait_for(
                lambda: self.is_halted or not is_left(), timeout_s
            )

    def stop(self, timeout_s: float = 2.0) -> None:
        """Begin no other job, end the running ones, and stop all threads. Idempotent."""
        self._stopping.set()
        self.generator.stop()
        for _ in self._handlers:
            self._waiting.put(None)
        with self._job_sets_changed:
            running = [
                time_ms
                for time_ms, job_set in self._job_sets.items()
                if job_set.start_ms is not None
            ]
        if not self.runs_current_thread():
            for time_ms in running:
                cancel_jobs(self._sc, self.job_group(time_ms))
        for handler in self._handlers:
            if handler.ident is not None and handler is not threading.current_thread():
                handler.join(timeout_s)
                if handler.is_alive():
                    logger.warning(
                        "an output operation is still running %s s after its batch was cancelled; "
                        "it will not be waited for",
                        timeout_s,
                    )
        self._events.stop()
        self._bus.stop()

    def runs_current_thread(self) -> bool:
        """True inside an output operation or a function given to ``transform``."""
        return threading.current_thread() in self._handlers or self.generator.is_current_thread()

    # -- names ---------------------------------------------------------------------------------

    def job_group(self, time_ms: int) -> str:
        return f"tidemill-{self._run_id}-{time_ms}"

    def batch_name(self, time_ms: int) -> str:
        return f"batch of {clock_face(time_ms, self._graph.batch_ms % 1000 != 0)}"

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, job_set: JobSet, jobs: Sequence[Job]) -> None:
        """Queue the jobs of a batch. A batch without jobs, between two slides, is no event at all."""
        if not jobs:
            return
        with self._job_sets_changed:
            self._job_sets[job_set.time_ms] = job_set
        self._bus.post(BatchSubmitted(job_set.info()))
        self._queue(jobs)

    def submit_planned(self, job_set: JobSet) -> None:
        """Queue a batch whose jobs are made when its turn comes."""
        with self._job_sets_changed:
            self._job_sets[job_set.time_ms] = job_set
            self._planned.append(job_set)
        if job_set.operations:
            self._bus.post(BatchSubmitted(job_set.info()))
        self._next_turn()

    def _next_turn(self) -> None:
        with self._job_sets_changed:
            if self._turn_taken or not self._planned or self.is_halted:
                return
            self._turn_taken = True
            job_set = self._planned.popleft()
        self._waiting.put(partial(self._make_jobs, job_set))

    def _queue(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._waiting.put(partial(self._handle, job))

    @property
    def is_halted(self) -> bool:
        """True once a durable stream cannot go on: a batch failed, or could not be written down."""
        return self._halted.is_set()

    def lose_ownership(self, error: CheckpointError) -> None:
        self.report_error("The stream has lost its checkpoint directory.", error)
        self.halt()

    def halt(self) -> None:
        with self._job_sets_changed:
            self._halted.set()
            self._job_sets_changed.notify_all()

    def generated(self, time_ms: int) -> None:
        """The jobs of a batch, if it has any, have been submitted or given up."""
        with self._job_sets_changed:
            self._generated_until_ms = time_ms
            self._job_sets_changed.notify_all()

    def report_error(
        self,
        what_failed: str,
        error: BaseException,
        batch_time_ms: int | None = None,
        output_op_id: int | None = None,
    ) -> BatchError:
        """Log an error and make it the one that ``awaitTermination`` raises."""
        reported = BatchError(
            user_traceback(error),
            what_failed,
            cause=error,
            batch_time_ms=batch_time_ms,
            output_op_id=output_op_id,
        )
        if not self._stopping.is_set():
            logger.error("%s", reported)
            self._on_first_error(reported)
        return reported

    def _handle_jobs(self) -> None:
        while (work := self._waiting.get()) is not None and not self._stopping.is_set():
            work()

    def _make_jobs(self, job_set: JobSet) -> None:
        self._events.post(BatchBegun(job_set, self._clock.now_ms()))
        jobs: Sequence[Job] = ()
        failure = None
        try:
            jobs = self.generator.make_jobs(job_set.batch)
        except BaseException as error:
            name = self.batch_name(job_set.time_ms)
            failure = self.report_error(
                f"The {name} failed {where_it_failed(error)}, while its jobs were made.",
                error,
                job_set.time_ms,
            )
        self._events.post(JobsMade(job_set, jobs, self._clock.now_ms(), failure))

    def _handle(self, job: Job) -> None:
        self._events.post(JobStarted(job, self._clock.now_ms()))
        error = self._run(job)
        self._events.post(JobCompleted(job, self._clock.now_ms(), error))

    def _run(self, job: Job) -> BatchError | None:
        name = self.batch_name(job.time_ms)
        try:
            # Anew for each job: what one output operation sets must not reach the next.
            self.inherited.apply()
            describe_job(
                self._sc,
                self.job_group(job.time_ms),
                f"{name}, output operation {job.output_op_id}: {job.site}",
                job.time_ms,
                job.output_op_id,
            )
            job.run()
        except BaseException as error:  # also a sys.exit() of the user's
            return self.report_error(
                f"The {name} failed {where_it_failed(error)}, in output operation "
                f"{job.output_op_id}: {job.site}.",
                error,
                job.time_ms,
                job.output_op_id,
            )
        return None

    # -- bookkeeping, on the event loop --------------------------------------------------------

    def _on_event(self, event: SchedulerEvent) -> None:
        match event:
            case BatchBegun(job_set, at_ms):
                self._on_batch_begun(job_set, at_ms)
            case JobsMade(job_set, jobs, at_ms, error):
                self._on_jobs_made(job_set, jobs, at_ms, error)
            case JobStarted(job, at_ms):
                self._on_job_started(job, at_ms)
            case JobCompleted(job, at_ms, error):
                self._on_job_completed(job, at_ms, error)

    def _on_loop_error(self, error: BaseException) -> None:
        self.report_error("The job scheduler failed.", error)

    def _on_batch_begun(self, job_set: JobSet, at_ms: int) -> None:
        if job_set.begun(at_ms) and job_set.operations:
            self._bus.post(BatchStarted(job_set.info()))

    def _on_jobs_made(
        self, job_set: JobSet, jobs: Sequence[Job], at_ms: int, error: BatchError | None
    ) -> None:
        if error is not None:
            job_set.failed(at_ms, str(error))
            self._batch_is_over(job_set)
            return
        job_set.keep_only(jobs)
        if jobs:
            self._queue(jobs)
        else:
            self._batch_is_over(job_set)

    def _on_job_started(self, job: Job, at_ms: int) -> None:
        job_set = self._job_sets[job.time_ms]
        self._on_batch_begun(job_set, at_ms)
        job_set.started(job, at_ms)
        self._bus.post(OutputOperationStarted(job_set.operations[job.output_op_id]))

    def _on_job_completed(self, job: Job, at_ms: int, error: BatchError | None) -> None:
        job_set = self._job_sets[job.time_ms]
        batch_is_done = job_set.completed(job, at_ms, None if error is None else str(error))
        self._bus.post(OutputOperationCompleted(job_set.operations[job.output_op_id]))
        if batch_is_done:
            self._batch_is_over(job_set)

    def _batch_is_over(self, job_set: JobSet) -> None:
        """All jobs of a batch have ended.

        With a checkpoint directory: IF all went well, commit the batch and begin the next; ELSE halt.
        Listeners hear of a batch when it is committed.
        """
        fault_point("batch.after-outputs")
        committed = self._commit(job_set)
        try:
            job_set.inputs = self.generator.input_infos(job_set.batch, finished=True)
        finally:
            if job_set.operations:
                self._bus.post(BatchCompleted(job_set.info()))
            if committed:
                self._forget(job_set.time_ms)
            else:
                self.halt()
        with self._job_sets_changed:
            self._turn_taken = False
        self._next_turn()

    def _commit(self, job_set: JobSet) -> bool:
        """False if a durable batch is not done."""
        if self._durable is None:
            return True
        if job_set.has_failed:
            return False
        batch_id = job_set.batch.batch_id
        try:
            state = self._graph.state
            versions = {} if state is None else state.versions_of(batch_id)
            self._durable.commit(batch_id, CommitRecord(versions))
            if state is not None:
                state.committed(batch_id)
        except BaseException as error:
            self.report_error(
                f"The {self.batch_name(job_set.time_ms)} could not be committed.",
                error,
                job_set.time_ms,
            )
            return False
        return True

    def _forget(self, time_ms: int) -> None:
        """A batch is over; what it used may go once every batch before it is over, too."""
        self._completed.add(time_ms)
        oldest_running = min((at for at in self._job_sets if at != time_ms), default=None)
        over = [at for at in self._completed if oldest_running is None or at < oldest_running]
        if over:
            self._completed.difference_update(over)
            self.generator.on_batch_completed(max(over))
        with self._job_sets_changed:
            del self._job_sets[time_ms]
            self._job_sets_changed.notify_all()
