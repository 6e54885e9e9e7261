"""Every batch interval: plan a batch, make its jobs, hand them to the scheduler."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.batches.batch import Batch
from tidemill.batches.planner import BatchPlanner
from tidemill.common.clock import Clock
from tidemill.common.event_loop import EventLoop
from tidemill.common.recurring_timer import RecurringTimer
from tidemill.progress.batch_info import StreamInputInfo
from tidemill.spark.job_properties import describe_job
from tidemill.streaming.job import JobSet

if TYPE_CHECKING:
    from tidemill.streaming.graph import DStreamGraph
    from tidemill.streaming.job_scheduler import JobScheduler


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
    """One timer, one event loop; the only caller of the planner and of the graph's batch methods."""

    def __init__(self, graph: DStreamGraph, scheduler: JobScheduler, clock: Clock) -> None:
        self._graph = graph
        self._scheduler = scheduler
        self._clock = clock
        self._planner = BatchPlanner(
            {node.source_id: node.source for node in graph.inputs},
            {node.source_id: node.limit for node in graph.inputs},
        )
        # Batches whose ranges may still be read, by a window or a slice: oldest first.
        self._uncommitted: list[Batch] = []
        self._events: EventLoop[GeneratorEvent] = EventLoop(
            "job-generator", self._on_event, self._on_error
        )
        self._timer = RecurringTimer(clock, graph.batch_ms, self._on_batch_time, "batches")

    def start(self) -> None:
        first_ms = self._timer.first_time_ms()
        self._graph.start(first_ms - self._graph.batch_ms)
        self._planner.start(first_ms - self._graph.batch_ms)
        self._events.start()
        self._timer.start(first_ms)

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

    def _on_event(self, event: GeneratorEvent) -> None:
        match event:
            case GenerateJobs(time_ms):
                self._generate_jobs(time_ms)
                self._scheduler.generated(time_ms)
            case ClearMetadata(time_ms):
                self._clear_metadata(time_ms)
            case Drain(reached):
                reached.set()

    def _on_error(self, error: BaseException) -> None:
        self._scheduler.report_error("The job generator failed.", error)

    def _generate_jobs(self, time_ms: int) -> None:
        try:
            self._scheduler.inherited.apply()
            # Functions given to transform() may run Spark jobs of their own.
            describe_job(
                self._graph.spark_context,
                self._scheduler.job_group(time_ms),
                f"{self._scheduler.batch_name(time_ms)}: making its jobs",
                time_ms,
            )
            batch = self._planner.plan(time_ms)
            self._uncommitted.append(batch)
            jobs = self._graph.generate_jobs(batch)
        except BaseException as error:
            self._scheduler.report_error(
                f"The jobs of the {self._scheduler.batch_name(time_ms)} could not be made.",
                error,
                batch_time_ms=time_ms,
            )
            return
        self._scheduler.submit(
            JobSet(time_ms, jobs, self.input_infos(batch, finished=False), self._clock.now_ms()),
            lambda: self.input_infos(batch, finished=True),
        )

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
        self._graph.clear_metadata(time_ms)
        readable_after_ms = time_ms - self._graph.longest_input_memory_ms()
        while self._uncommitted and self._uncommitted[0].time_ms <= readable_after_ms:
            self._planner.commit(self._uncommitted.pop(0))
