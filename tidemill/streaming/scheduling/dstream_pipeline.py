"""What runs on a batch of a DStream program: the graph makes jobs, and the jobs run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch, BatchShape
from tidemill.batches.pipeline import BatchResult, Pipeline
from tidemill.batches.runner import BatchAbandonedError, BatchObserver
from tidemill.batches.running_state import RunningState
from tidemill.batches.sink import Sink
from tidemill.common.clock import Clock
from tidemill.errors import BatchError, IllegalStateError
from tidemill.progress.batch_info import ProcessedBatch, StreamInputInfo
from tidemill.progress.events import (
    BatchCompleted,
    BatchStarted,
    BatchSubmitted,
    OutputOperationCompleted,
    OutputOperationStarted,
)
from tidemill.progress.listener_bus import ListenerBus
from tidemill.spark.errors.context_lines import told_in_short
from tidemill.spark.errors.failures import where_it_failed
from tidemill.spark.session.job_properties import (
    InheritedProperties,
    cancel_jobs_for_good,
    describe_job,
    end_jobs,
    is_stopped,
    writing_to_existing_directories,
)
from tidemill.streaming.scheduling.job import JobSet
from tidemill.streaming.scheduling.job_threads import (
    JobCompleted,
    JobSkipped,
    JobStarted,
    JobThreads,
)
from tidemill.streaming.scheduling.stream_errors import BatchNames, StreamErrors

if TYPE_CHECKING:
    from tidemill.streaming.graph.dstream_graph import DStreamGraph


class DStreamPipeline(Pipeline, BatchObserver[BatchResult]):
    """Makes the jobs of a batch, runs them, and tells the listeners how far they have come.

    With a checkpoint directory the jobs of a batch are made when its turn comes: the state that they start
    from is not known earlier. Without one they are made when the batch is planned, as in Spark. A batch fails
    if one of its jobs does; without a checkpoint directory the stream goes on all the same.
    """

    def __init__(
        self,
        graph: DStreamGraph,
        clock: Clock,
        bus: ListenerBus,
        errors: StreamErrors,
        names: BatchNames,
        is_durable: bool,
    ) -> None:
        self._graph = graph
        self._sc = graph.spark_context
        self._clock = clock
        self._bus = bus
        self._errors = errors
        self._names = names
        self._is_durable = is_durable
        self._inherited = InheritedProperties(self._sc)
        self.threads = JobThreads(self._sc, clock, errors, names, self._inherited)
        # By batch id. Each set is changed by the thread that runs its batch.
        self._job_sets: dict[int, JobSet] = {}
        self._lock = threading.Lock()

    @property
    def state(self) -> RunningState | None:
        return self._graph.running_state

    def shape(self, batch: Batch) -> BatchShape:
        if is_stopped(self._sc):
            raise IllegalStateError(
                "the SparkContext of this stream has been stopped: no batch can run"
            )
        return BatchShape(self._sc.defaultParallelism)

    def submitted(self, batch: Batch) -> int:
        """Announce a batch that has been planned and waits for its turn. Return since when it waits.

        On the generator's thread, in the order of batches: windows look back at the batches before.
        """
        job_set = JobSet(
            batch,
            self._graph.outputs_at(batch.time_ms),
            self._input_infos(batch, finished=False),
            self._clock.now_ms(),
        )
        with self._lock:
            self._job_sets[batch.batch_id] = job_set
        if not self._is_durable:
            self._make_jobs(job_set)
            if job_set.early_failure is not None:
                job_set.operations = {}  # as in Spark, listeners do not hear of a batch without jobs
        if job_set.operations:  # a batch between two slides is no event at all
            self._bus.post(BatchSubmitted(job_set.info()))
        return job_set.submission_ms

    # -- running -------------------------------------------------------------------------------

    def run(self, batch: Batch, sinks: Sequence[Sink]) -> BatchResult:
        job_set = self._job_sets[batch.batch_id]
        job_set.begun(self._clock.now_ms())
        if job_set.operations:
            self._bus.post(BatchStarted(job_set.info()))
        if self._is_durable:
            self._make_jobs(job_set)
        failure = self._run_jobs(job_set)
        if failure is None:
            if self._graph.models is not None:
                self._graph.models.save(batch.batch_id)
            job_set.inputs = self._input_infos(batch, finished=True)
        elif self._is_durable:
            raise failure
        else:
            for node in self._graph.inputs:
                node.source.failed(batch.ranges[node.source_id])
        return BatchResult(
            {}
            if failure is not None
            else {source_id: info.num_records for source_id, info in job_set.inputs.items()}
        )

    def _make_jobs(self, job_set: JobSet) -> None:
        """Give the set its jobs, or the error that kept them from being made."""
        batch = job_set.batch
        name = self._names.batch(batch.time_ms)
        try:
            self._inherited.apply()
            # Functions given to transform() may run Spark jobs of their own.
            group = self._names.job_group(batch.time_ms)
            describe_job(self._sc, group, f"{name}: making its jobs", batch.time_ms)
            with writing_to_existing_directories(self._sc), told_in_short():
                job_set.made(self._graph.generate_jobs(batch))
        except BaseException as error:
            failure = self._errors.report(
                f"The {name} failed {where_it_failed(error)}, while its jobs were made.",
                error,
                batch.time_ms,
            )
            job_set.failed(self._clock.now_ms(), failure)

    def _run_jobs(self, job_set: JobSet) -> BatchError | None:
        """Return the first error, if there was one."""
        first = job_set.early_failure
        if not job_set.jobs:
            job_set.end_ms = self._clock.now_ms()
        for event in self.threads.run(job_set.jobs):
            match event:
                case JobStarted(job, at_ms):
                    job_set.started(job, at_ms)
                    self._bus.post(OutputOperationStarted(job_set.operations[job.output_op_id]))
                case JobCompleted(job, at_ms, error):
                    job_set.completed(job, at_ms, None if error is None else str(error))
                    self._bus.post(OutputOperationCompleted(job_set.operations[job.output_op_id]))
                    first = first or error
                case JobSkipped(job):
                    raise BatchAbandonedError(f"the stream stopped before {job.site} ran")
        return first

    def running_times(self) -> list[int]:
        """Return the times of the batches that run now. Takes no lock: a signal handler asks."""
        return [each.time_ms for each in list(self._job_sets.values()) if each.start_ms is not None]

    def end(self, thread: threading.Thread, timeout_s: float) -> None:
        """Cancel the running jobs, and those that the thread still starts, until it has ended."""
        with self._lock:
            groups = [self._names.job_group(time_ms) for time_ms in self.running_times()]
        end_jobs(self._sc, groups, thread, timeout_s)
        if thread.is_alive():
            for group in groups:
                cancel_jobs_for_good(self._sc, group)

    # -- afterwards ----------------------------------------------------------------------------

    def forget(self, batch: Batch) -> int:
        self._graph.clear_metadata(batch.time_ms)
        readable_after_ms = batch.time_ms - self._graph.longest_input_memory_ms()
        return self._graph.first_batch_after(readable_after_ms, batch.batch_id + 1)

    def batch_done(self, batch: Batch, result: BatchResult, processed: ProcessedBatch) -> None:
        self._announce_end(batch)

    def batch_failed(self, batch: Batch, error: BaseException) -> None:
        if not isinstance(error, BatchAbandonedError):
            if not isinstance(error, BatchError):
                self._errors.report(
                    f"The {self._names.batch(batch.time_ms)} could not be committed.",
                    error,
                    batch.time_ms,
                )
            self._announce_end(batch)

    def _announce_end(self, batch: Batch) -> None:
        with self._lock:
            job_set = self._job_sets.pop(batch.batch_id)
        if job_set.operations:
            self._bus.post(BatchCompleted(job_set.info()))

    def _input_infos(self, batch: Batch, finished: bool) -> dict[int, StreamInputInfo]:
        infos = {}
        for node in self._graph.inputs:
            range_, size = batch.ranges[node.source_id], batch.sizes[node.source_id]
            infos[node.source_id] = StreamInputInfo(
                node.source_id,
                node.source.records_read(range_) if finished else size.records,
                size.description,
                {"source": str(node.site), "start": range_.start, "end": range_.end},
            )
        return infos
