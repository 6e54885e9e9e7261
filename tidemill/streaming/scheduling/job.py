"""The jobs of a batch and how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from tidemill.batches.batch import Batch
from tidemill.errors import BatchError
from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo, StreamInputInfo
from tidemill.spark.session.creation_site import CreationSite


@dataclass(frozen=True)
class Job:
    """One output operation on one batch."""

    time_ms: int
    output_op_id: int
    site: CreationSite
    run: Callable[[], Any] = field(compare=False)


@dataclass
class JobSet:
    """All jobs of one batch, and how far they have come. One thread at a time changes it."""

    batch: Batch
    sites: InitVar[Mapping[int, CreationSite]]
    inputs: Mapping[int, StreamInputInfo]
    submission_ms: int
    start_ms: int | None = None
    end_ms: int | None = None
    operations: dict[int, OutputOperationInfo] = field(default_factory=dict)
    jobs: Sequence[Job] = ()
    # The error that kept the jobs from being made.
    early_failure: BatchError | None = None

    def __post_init__(self, sites: Mapping[int, CreationSite]) -> None:
        self.operations = {
            output_op_id: OutputOperationInfo(self.time_ms, output_op_id, site.operation, str(site))
            for output_op_id, site in sites.items()
        }

    @property
    def time_ms(self) -> int:
        return self.batch.time_ms

    def made(self, jobs: Sequence[Job]) -> None:
        """Take the jobs. An output operation without a job has nothing to do in this batch."""
        self.jobs = jobs
        ids = {job.output_op_id for job in jobs}
        self.operations = {n: info for n, info in self.operations.items() if n in ids}

    def begun(self, now_ms: int) -> None:
        """Note that work on the batch has begun."""
        self.start_ms = now_ms

    def started(self, job: Job, now_ms: int) -> None:
        self._update(job, start_ms=now_ms)

    def completed(self, job: Job, now_ms: int, failure: str | None) -> None:
        """Note that a job has ended, and with the last job the batch."""
        self._update(job, end_ms=now_ms, failure=failure)
        if all(operation.end_ms is not None for operation in self.operations.values()):
            self.end_ms = now_ms

    def failed(self, now_ms: int, failure: BatchError) -> None:
        """Note that the batch failed before any of its jobs began."""
        self.end_ms = now_ms
        self.early_failure = failure
        self.operations = {
            n: replace(info, start_ms=now_ms, end_ms=now_ms, failure=str(failure))
            for n, info in self.operations.items()
        }

    def info(self) -> BatchInfo:
        return BatchInfo(
            self.time_ms,
            self.inputs,
            self.submission_ms,
            self.start_ms,
            self.end_ms,
            dict(self.operations),
        )

    def _update(self, job: Job, **changes: Any) -> None:
        self.operations[job.output_op_id] = replace(self.operations[job.output_op_id], **changes)
