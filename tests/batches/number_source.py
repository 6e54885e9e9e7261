"""A source of numbers for planning batches."""

from __future__ import annotations

from typing import Any

from tidemill.batches.batch import AdmissionLimit, OffsetRange, RangeSize
from tidemill.batches.source import Source, SourceRuntime


class Numbers(Source):
    """A source of which a test says how far it reaches."""

    def __init__(self) -> None:
        self.reach = 0
        self.processed_until: int | None = None
        self.committed: list[int] = []
        self.broken = False
        self.events: list[str] = []

    def start(self, runtime: SourceRuntime) -> None:
        self.events.append(f"start {runtime.time_ms}")

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int, limit: AdmissionLimit, time_ms: int) -> int:
        if self.broken:
            raise OSError("source is away")
        return (
            self.reach if limit.max_records is None else min(self.reach, start + limit.max_records)
        )

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(records=range_.end - range_.start)

    def read(self, range_: OffsetRange) -> Any:
        raise AssertionError("a planner does not read")

    def processed(self, end: int) -> None:
        self.processed_until = end

    def commit(self, end: int) -> None:
        self.committed.append(end)

    def stop(self) -> None:
        self.events.append("stop")
