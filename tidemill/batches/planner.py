"""Which ranges of which sources the next batch reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.batches.batch import EVERYTHING, UNLIMITED, AdmissionLimit, Batch, Offset, OffsetRange
from tidemill.batches.rate_controller import RateController
from tidemill.batches.source import Source, SourceRuntime
from tidemill.checkpoint.batch_log import BatchLog, LoggedBatches, OffsetRecord
from tidemill.checkpoint.source_log import INITIAL, SourceLog
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock


@dataclass(frozen=True)
class PlannedSource:
    """A source, the name that it has in the log, and how much of it a batch may take.

    ``limit`` holds always; with a controller a batch takes no more than the rate of that time allows.
    """

    name: str
    source: Source
    limit: AdmissionLimit = UNLIMITED
    controller: RateController | None = None


@dataclass(frozen=True)
class Outlook:
    """How far a batch could reach at a time, at the rates that hold."""

    time_ms: int
    ends: Mapping[int, Offset]
    rates_per_s: Mapping[str, float]
    has_news: bool


class BatchPlanner:
    """Cuts the sources of one stream into batches: each batch begins where the one before ended.

    With a storage every plan is written to ``offsets/N`` before anybody learns of it, so that a stream
    that recovers has the same batches. Not safe for threads: the job generator is its only caller.

    ``batch_interval_ms`` turns the rates of controllers into limits; without controllers it is not needed.
    """

    def __init__(
        self,
        sources: Mapping[int, PlannedSource],
        clock: Clock,
        storage: Storage | None = None,
        batch_interval_ms: int = 0,
    ) -> None:
        if batch_interval_ms < 1 and any(planned.controller for planned in sources.values()):
            raise ValueError("a source with a rate controller needs batch_interval_ms")
        self._sources = dict(sources)
        self._batch_interval_ms = batch_interval_ms
        self._clock = clock
        self._storage = storage
        self._log = None if storage is None else BatchLog(storage)
        self._initial: dict[int, Offset] = {}
        self._ends: dict[int, Offset] = {}
        # Where sources end, of which nothing more is to be read.
        self._held: dict[int, Offset] = {}
        self._next_id = 0

    def start(self, time_ms: int) -> None:
        for source_id, planned in self._sources.items():
            log = None if self._storage is None else SourceLog(self._storage, planned.name)
            planned.source.start(SourceRuntime(time_ms, self._clock, log))
            self._initial[source_id] = self._initial_offset(planned.source, log)
        self._ends = dict(self._initial)

    def _initial_offset(self, source: Source, log: SourceLog | None) -> Offset:
        """Where the stream began, once and for all: asked a second time, a source may say something else."""
        if log is None:
            return source.initial_offset()
        known = log.get(INITIAL)
        if known is None:
            known = [source.initial_offset()]
            log.put(INITIAL, known)
        return known[0]

    def restore(self, logged: LoggedBatches) -> list[Batch]:
        """Go on after the last batch of a log, at the rates that held for it. All its batches that can be
        read again, oldest first: the unfinished ones, and before them those that a window may look back at.
        """
        unfinished = set(logged.unfinished)
        ids = {planned.name: source_id for source_id, planned in self._sources.items()}
        batches = []
        for batch_id, record in logged.offsets.items():
            ends = dict(self._ends)
            for name, end in record.offsets.items():
                if name in ids and end is not None:
                    ends[ids[name]] = end
            # Where the oldest batch begins was written in a file that is gone, unless it is the first.
            if batch_id == 0 or batch_id - 1 in logged.offsets:
                try:
                    batches.append(
                        self._batch(batch_id, record.batch_time_ms, ends, record.watermark_ms)
                    )
                except LookupError:
                    if batch_id in unfinished:
                        raise
                    batches.clear()  # a source has forgotten it: nothing needs it any more
            self._ends = ends
            self._next_id = batch_id + 1
        for source_id, planned in self._sources.items():
            planned.source.resumed(self._ends[source_id])
        if logged.last_planned is not None:
            self._restore_rates(logged.offsets[logged.last_planned])
        return batches

    def _restore_rates(self, record: OffsetRecord) -> None:
        for planned in self._sources.values():
            rate_per_s = record.rates_per_s.get(planned.name)
            if planned.controller is not None and rate_per_s is not None:
                planned.controller.restore(rate_per_s)

    def look(self, time_ms: int, everything: bool = False) -> Outlook:
        """How far the next batch could reach. Nothing is planned by that."""
        rates_per_s = self._rates()
        ends = {
            source_id: self._held[source_id]
            if source_id in self._held
            else planned.source.latest_offset(
                self._ends[source_id], self._limit(planned, everything), time_ms
            )
            for source_id, planned in self._sources.items()
        }
        return Outlook(time_ms, ends, rates_per_s, ends != self._ends)

    def hold(self, source_id: int, time_ms: int) -> None:
        """All that a source has now is the next batch, and its last one."""
        if source_id not in self._held:
            source = self._sources[source_id].source
            self._held[source_id] = source.latest_offset(self._ends[source_id], EVERYTHING, time_ms)

    def plan(
        self,
        time_ms: int,
        outlook: Outlook | None = None,
        watermark_ms: int = 0,
        conf: Mapping[str, str] | None = None,
    ) -> Batch:
        """The next batch.

        1. All its ends are found, within the limits of now, unless somebody has looked already: a source
           that fails leaves the plan where it was, and the next batch catches up.
        2. ``offsets/N`` is written. From now on the batch exists.
        3. Its ends are the beginning of the next.
        """
        if outlook is None:
            outlook = self.look(time_ms)
        ends = outlook.ends
        batch = self._batch(self._next_id, time_ms, ends, watermark_ms)  # 1
        if self._log is not None:  # 2
            named = {planned.name: ends[source_id] for source_id, planned in self._sources.items()}
            record = OffsetRecord(time_ms, named, watermark_ms, conf or {}, outlook.rates_per_s)
            self._log.write_offsets(batch.batch_id, record)
        self._ends = dict(ends)  # 3
        self._next_id += 1
        return batch

    @property
    def next_id(self) -> int:
        return self._next_id

    @property
    def ends(self) -> Mapping[int, Offset]:
        """Where the next batch begins, in each source."""
        return dict(self._ends)

    @property
    def initial(self) -> Mapping[int, Offset]:
        """Where the stream began."""
        return dict(self._initial)

    def _limit(self, planned: PlannedSource, everything: bool) -> AdmissionLimit:
        if everything:
            return EVERYTHING
        if planned.controller is None:
            return planned.limit
        return planned.controller.limit(self._batch_interval_ms, planned.limit)

    def _rates(self) -> dict[str, float]:
        """The rates that have been estimated, by the names of their sources."""
        return {
            planned.name: rate_per_s
            for planned in self._sources.values()
            if planned.controller is not None
            and (rate_per_s := planned.controller.rate_per_s) is not None
        }

    def _batch(
        self, batch_id: int, time_ms: int, ends: Mapping[int, Offset], watermark_ms: int
    ) -> Batch:
        ranges = {
            source_id: OffsetRange(self._ends[source_id], ends[source_id]) for source_id in ends
        }
        sizes = {
            source_id: self._sources[source_id].source.size(range_)
            for source_id, range_ in ranges.items()
        }
        return Batch(batch_id, time_ms, ranges, sizes, watermark_ms)

    def commit(self, batch: Batch) -> None:
        """The batch, and everything that could read its ranges again, is done with."""
        for source_id, range_ in batch.ranges.items():
            self._sources[source_id].source.commit(range_.end)

    def stop(self) -> None:
        for planned in self._sources.values():
            planned.source.stop()
