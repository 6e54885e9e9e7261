"""Every batch interval: plan a batch, make its jobs, hand them to the scheduler."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch
from tidemill.batches.durable import DurableBatches
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import rate_controllers
from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.progress.batch_info import StreamInputInfo
from tidemill.spark.session.job_properties import describe_job
from tidemill.streaming.scheduling.job import Job, JobSet

if TYPE_CHECKING:
    from tidemill.streaming.graph.creation_site import CreationSite
    from tidemill.streaming.graph.dstream_graph import DStreamGraph
    from tidemill.streaming.program.resume_point import ResumePoint
    from tidemill.streaming.scheduling.job_scheduler import JobScheduler


@dataclass(frozen=True)
class GenerateJobs:
    """The clock has reached a batch time."""

    time_ms: int


@dataclass(frozen=True)
class ClearMetadata:
    """The batch of that time has been processed."""

    time_ms: int


@dataclass(frozen=True)
class Drain:
    """Everything that was posted before this has been handled."""

    reached: threading.Event


GeneratorEvent = GenerateJobs | ClearMetadata | Drain


class JobGenerator:
    """One timer, one event loop; the only caller of the planner.

    Without a checkpoint directory the jobs of a batch are made when it is planned. With one they are
    made when its turn comes, by the scheduler: what they are made of, the state of the batch before,
    is not known earlier.
    """

    def __init__(
        self,
        graph: DStreamGraph,
        scheduler: JobScheduler,
        clock: Clock,
        durable: DurableBatches | None = None,
    ) -> None:
        self._graph = graph
        self._scheduler = scheduler
        self._clock = clock
        self._durable = durable
        # By source id; empty unless backpressure is on.
        self.rate_controllers = rate_controllers(
            graph.spark_context.getConf(),
            graph.batch_ms,
            [node.source_id for node in graph.inputs],
        )
        self._planner = BatchPlanner(
            {
                node.source_id: PlannedSource(
                    node.operator_id,
                    node.source,
                    node.limit,
                    self.rate_controllers.get(node.source_id),
                )
                for node in graph.inputs
            },
            clock,
            None if durable is None else durable.storage,
            graph.batch_ms,
        )
        # Batches whose ranges may still be read, by a window or a slice: oldest first.
        self._uncommitted: deque[Batch] = deque()
        self._events: EventLoop[GeneratorEvent] = EventLoop(
            "job-generator", self._on_event, self._on_error
        )
        self._timer = RecurringTimer(clock, graph.batch_ms, self._on_batch_time, "batches")
        self._first_ms = 0
        self._unfinished: list[Batch] = []

    # -- lifecycle -----------------------------------------------------------------------------

    def prepare(self) -> int:
        """Make a new stream ready: it begins with the next batch time, which is returned."""
        self._first_ms = self._timer.first_time_ms()
        zero_ms = self._first_ms - self._graph.batch_ms
        self._graph.start(zero_ms)
        self._planner.start(zero_ms)
        return self._first_ms

    def start(self) -> None:
        """Let the batches begin. After :meth:`prepare`, or :meth:`recover`."""
        for batch in self._unfinished:
            self._submit_planned(batch)
        self._scheduler.generated(self._first_ms - self._graph.batch_ms)
        self._events.start()
        self._timer.start(self._first_ms)

    def recover(self, recovered: ResumePoint) -> int:
        """Make a stream ready to go on where an earlier run of it ended.

        IF batches were planned and not committed, they run again, with the times and ranges that the
        log has. THEN come the batches whose times have passed since, then those of the clock. IF the
        clock shows a time before the last batch, it has been set back, and goes on from that batch.
        ELSE IF nothing was ever planned, the first batch is the one after the zero time.

        Returns the time of the first batch that is planned anew.
        """
        assert self._durable is not None
        logged = self._durable.logged
        last = logged.last_planned
        last_ms = recovered.zero_ms if last is None else logged.offsets[last].batch_time_ms
        self._clock.start_after(last_ms)
        self._graph.start(recovered.zero_ms)
        self._planner.start(last_ms)
        unfinished = set(logged.unfinished)
        for batch in self._planner.restore(logged):
            if batch.batch_id in unfinished:
                self._unfinished.append(batch)
            else:
                if recovered.same_times:
                    self._graph.restore(batch)
                self._uncommitted.append(batch)
        self._first_ms = (last_ms // self._graph.batch_ms + 1) * self._graph.batch_ms
        return self._first_ms

    def _on_batch_time(self, time_ms: int) -> None:
        self._events.post(GenerateJobs(time_ms))

    def on_batch_completed(self, time_ms: int) -> None:
        self._events.post(ClearMetadata(time_ms))

    def stop_timer(self) -> None:
        """No batch time is reached after this."""
        self._timer.stop()

    def drain(self, timeout_s: float) -> bool:
        """Wait until every batch time that was reached has its jobs. False if that took too long."""
        reached = threading.Event()
        return not self._events.post(Drain(reached)) or reached.wait(timeout_s)

    def stop(self) -> None:
        self._timer.stop()
        self._events.stop()
        self._planner.stop()

    def is_current_thread(self) -> bool:
        return self._events.is_current_thread()

    # -- batch after batch ---------------------------------------------------------------------

    def _on_event(self, event: GeneratorEvent) -> None:
        match event:
            case GenerateJobs(time_ms):
                if not self._scheduler.is_halted:
                    self._generate_jobs(time_ms)
                self._scheduler.generated(time_ms)
            case ClearMetadata(time_ms):
                self._clear_metadata(time_ms)
            case Drain(reached):
                reached.set()

    def _on_error(self, error: BaseException) -> None:
        self._scheduler.report_error("The job generator failed.", error)

    def _generate_jobs(self, time_ms: int) -> None:
        name = self._scheduler.batch_name(time_ms)
        try:
            batch = self._planner.plan(time_ms)
        except BaseException as error:
            self._scheduler.report_error(
                f"The {name} could not be planned.", error, batch_time_ms=time_ms
            )
            if self._durable is not None:
                self._scheduler.halt()
            return
        if self._durable is not None:
            self._durable.planned(batch.batch_id)
            self._submit_planned(batch)
            return
        self._uncommitted.append(batch)
        try:
            jobs = self.make_jobs(batch)
        except BaseException as error:
            self._scheduler.report_error(
                f"The jobs of the {name} could not be made.", error, batch_time_ms=time_ms
            )
            return
        self._scheduler.submit(
            self._job_set(batch, {job.output_op_id: job.site for job in jobs}), jobs
        )

    def _submit_planned(self, batch: Batch) -> None:
        self._uncommitted.append(batch)
        sites = self._graph.outputs_at(batch.time_ms)
        self._scheduler.submit_planned(self._job_set(batch, sites))

    def _job_set(self, batch: Batch, sites: dict[int, CreationSite]) -> JobSet:
        return JobSet(batch, sites, self.input_infos(batch, finished=False), self._clock.now_ms())

    def make_jobs(self, batch: Batch) -> list[Job]:
        """The jobs of a planned batch, on the thread that calls this."""
        self._scheduler.inherited.apply()
        # Functions given to transform() may run Spark jobs of their own.
        describe_job(
            self._graph.spark_context,
            self._scheduler.job_group(batch.time_ms),
            f"{self._scheduler.batch_name(batch.time_ms)}: making its jobs",
            batch.time_ms,
        )
        return self._graph.generate_jobs(batch)

    def input_infos(self, batch: Batch, finished: bool) -> dict[int, StreamInputInfo]:
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

    def _clear_metadata(self, time_ms: int) -> None:
        """Forget what neither a batch after ``time_ms`` nor the recovery of one can ask for again."""
        self._graph.clear_metadata(time_ms)
        readable_after_ms = time_ms - self._graph.longest_input_memory_ms()
        while self._uncommitted and self._uncommitted[0].time_ms <= readable_after_ms:
            self._planner.commit(self._uncommitted.popleft())
        if self._durable is not None and self._uncommitted:
            oldest = self._durable.purge(self._uncommitted[0].batch_id - 1)
            if self._graph.state is not None:
                self._graph.state.forget_before(oldest)
