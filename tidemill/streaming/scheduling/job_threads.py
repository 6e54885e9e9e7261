"""The threads that run the jobs of batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.common.clock import Clock
from tidemill.common.config import CONCURRENT_JOBS
from tidemill.errors import BatchError
from tidemill.spark.errors.context_lines import told_in_short
from tidemill.spark.errors.failures import where_it_failed
from tidemill.spark.session.job_properties import (
    InheritedProperties,
    describe_job,
    writing_to_existing_directories,
)
from tidemill.streaming.scheduling.job import Job
from tidemill.streaming.scheduling.stream_errors import BatchNames, StreamErrors

if TYPE_CHECKING:
    from pyspark import SparkContext


@dataclass(frozen=True)
class JobStarted:
    job: Job
    at_ms: int


@dataclass(frozen=True)
class JobCompleted:
    job: Job
    at_ms: int
    error: BatchError | None


@dataclass(frozen=True)
class JobSkipped:
    """The stream stopped before the job began."""

    job: Job


JobEvent = JobStarted | JobCompleted | JobSkipped


class JobThreads:
    """``spark.streaming.concurrentJobs`` jobs at a time, whichever batch they belong to.

    With one at a time, a job runs on the thread that asks for it.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        clock: Clock,
        errors: StreamErrors,
        names: BatchNames,
        inherited: InheritedProperties,
    ) -> None:
        self._sc = spark_context
        self._clock = clock
        self._errors = errors
        self._names = names
        self._inherited = inherited
        concurrent_jobs = CONCURRENT_JOBS.read(spark_context.getConf())
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Job, Callable[[JobEvent], None]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._take_jobs, name=f"tidemill-job-{number}", daemon=True)
            for number in range(concurrent_jobs if concurrent_jobs > 1 else 0)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Run jobs, and tell the caller's thread what happens to them, until each has ended."""
        if not self._threads:
            for job in jobs:
                yield from self._events(job)
            return
        events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        with self._lock:
            for job in jobs:
                # Behind the marks of stop() nobody would ever take them.
                if self._stopping.is_set():
                    events.put(JobSkipped(job))
                else:
                    self._waiting.put((job, events.put))
        running = len(jobs)
        while running:
            event = events.get()
            running -= not isinstance(event, JobStarted)
            yield event

    def _events(self, job: Job) -> Iterator[JobEvent]:
        if self._stopping.is_set():
            yield JobSkipped(job)
            return
        yield JobStarted(job, self._clock.now_ms())
        error = self._run_job(job)
        yield JobCompleted(job, self._clock.now_ms(), error)

    def _run_job(self, job: Job) -> BatchError | None:
        """Run one output operation on the current thread. Return what made it fail."""
        name = self._names.batch(job.time_ms)
        try:
            # Anew for each job: what one output operation sets must not reach the next.
            self._inherited.apply()
            describe_job(
                self._sc,
                self._names.job_group(job.time_ms),
                f"{name}, output operation {job.output_op_id}: {job.site}",
                job.time_ms,
                job.output_op_id,
            )
            with writing_to_existing_directories(self._sc), told_in_short():
                job.run()
        except BaseException as error:  # also a sys.exit() of the user's
            return self._errors.report(
                f"The {name} failed {where_it_failed(error)}, in output operation "
                f"{job.output_op_id}: {job.site}.",
                error,
                job.time_ms,
                job.output_op_id,
            )
        return None

    def _take_jobs(self) -> None:
        while (taken := self._waiting.get()) is not None:
            job, tell = taken
            for event in self._events(job):
                tell(event)

    def is_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> list[threading.Thread]:
        """Begin no other job. Return the threads, which end with the jobs they run."""
        with self._lock:
            self._stopping.set()
            for _ in self._threads:
                self._waiting.put(None)
        return self._threads
