"""The threads that run the jobs of batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemill.common.clock import Clock
from tidemill.errors import BatchError
from tidemill.streaming.scheduling.job import Job


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
        self, concurrent_jobs: int, run_job: Callable[[Job], BatchError | None], clock: Clock
    ) -> None:
        self._run_job = run_job
        self._clock = clock
        self._stopping = threading.Event()
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
        for job in jobs:
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

    def _take_jobs(self) -> None:
        while (taken := self._waiting.get()) is not None:
            job, tell = taken
            for event in self._events(job):
                tell(event)

    def is_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> list[threading.Thread]:
        """Begin no other job. Return the threads, which end with the jobs they run."""
        self._stopping.set()
        for _ in self._threads:
            self._waiting.put(None)
        return self._threads
