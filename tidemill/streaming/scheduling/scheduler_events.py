"""What happens to a batch on its way through the job scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import BatchError
from tidemill.streaming.scheduling.job import Job, JobSet


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
class BatchBegun:
    """The turn of a planned batch has come: its jobs are being made."""

    job_set: JobSet
    at_ms: int


@dataclass(frozen=True)
class JobsMade:
    """A planned batch has its jobs, or an error instead."""

    job_set: JobSet
    jobs: Sequence[Job]
    at_ms: int
    error: BatchError | None


SchedulerEvent = JobStarted | JobCompleted | BatchBegun | JobsMade
