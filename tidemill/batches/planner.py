"""Which ranges of which sources the next batch reads."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.batches.batch import UNLIMITED, AdmissionLimit, Batch, Offset, OffsetRange
from tidemill.batches.source import Source


class BatchPlanner:
    """Cuts the sources of one stream into batches: each batch begins where the one before ended.

    Not safe for threads: the job generator is its only caller.
    """

    def __init__(
        self,
        sources: Mapping[int, Source],
        limits: Mapping[int, AdmissionLimit] | None = None,
    ) -> None:
        self._sources = dict(sources)
        self._limits = dict(limits or {})
        self._ends: dict[int, Offset] = {}
        self._next_id = 0

    def start(self, time_ms: int) -> None:
        for source_id, source in self._sources.items():
            source.start(time_ms)
            self._ends[source_id] = source.initial_offset()

    def plan(self, time_ms: int) -> Batch:
        """The next batch. All its ends are found before any of them is taken as the new beginning,
        so that a source that fails leaves the plan where it was and the next batch catches up."""
        ranges = {
            source_id: OffsetRange(
                self._ends[source_id],
                source.latest_offset(
                    self._ends[source_id], self._limits.get(source_id, UNLIMITED), time_ms
                ),
            )
            for source_id, source in self._sources.items()
        }
        sizes = {
            source_id: self._sources[source_id].size(range_) for source_id, range_ in ranges.items()
        }
        batch = Batch(self._next_id, time_ms, ranges, sizes)
        self._ends = {source_id: range_.end for source_id, range_ in ranges.items()}
        self._next_id += 1
        return batch

    def commit(self, batch: Batch) -> None:
        """The batch, and everything that could read its ranges again, is done with."""
        for source_id, range_ in batch.ranges.items():
            self._sources[source_id].commit(range_.end)

    def stop(self) -> None:
        for source in self._sources.values():
            source.stop()
