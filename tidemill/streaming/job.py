"""The jobs of a batch and how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo, StreamInputInfo
from tidemill.streaming.creation_site import CreationSite


@dataclass(frozen=True)
class Job:
    """One output operation on one batch."""

    time_ms: int
    output_op_id: int
    site: CreationSite
    run: Callable[[], Any] = field(compare=False)


@dataclass
class JobSet:
    """All jobs of one batch. Changed only by the job scheduler's event loop."""

    time_ms: int
    jobs: Sequence[Job]
    inputs: Mapping[int, StreamInputInfo]
    submission_ms: int
    start_ms: int | None = None
    end_ms: int | None = None
    operations: dict[int, OutputOperationInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operations = {
            job.output_op_id: OutputOperationInfo(
                self.time_ms, job.output_op_id, job.site.operation, str(job.site)
            )
            for job in self.jobs
        }

    def started(self, job: Job, now_ms: int) -> bool:
        """Note that a job has begun. True if it is the first one of the batch."""
        first = self.start_ms is None
        if first:
            self.start_ms = now_ms
        self._update(job, start_ms=now_ms)
        return first

    def completed(self, job: Job, now_ms: int, failure: str | None) -> bool:
        """Note that a job has ended. True if the whole batch has."""
        self._update(job, end_ms=now_ms, failure=failure)
        if any(operation.end_ms is None for operation in self.operations.values()):
            return False
        self.end_ms = now_ms
        return True

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
