"""Which ranges of which sources the next batch reads."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tidemill.batches.batch import (
    EVERYTHING,
    UNLIMITED,
    AdmissionLimit,
    Batch,
    BatchShape,
    Offset,
    OffsetRange,
    RangeSize,
)
from tidemill.batches.rate_controller import RateController
from tidemill.batches.source import Source, SourceRuntime
from tidemill.checkpoint.batch_log import LoggedBatches, OffsetRecord
from tidemill.checkpoint.source_log import INITIAL, SourceLog
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock


@dataclass(frozen=True)
class PlannedSource:
    """A source, its name in the log, and how much of it a batch may take.

    ``limit`` always holds; with a controller a batch takes no more than the present rate allows.
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


@dataclass(frozen=True)
class Plan:
    """The next batch, before it exists."""

    batch: Batch
    # Where the batch ends, by the names of its sources, and the rates that bounded it.
    ends: Mapping[str, Offset]
    rates_per_s: Mapping[str, float]

    def in_shape(self, shape: BatchShape) -> Plan:
        return replace(self, batch=replace(self.batch, shape=shape))

    @property
    def record(self) -> OffsetRecord:
        """What ``offsets/N`` says of the batch."""
        batch = self.batch
        return OffsetRecord(
            batch.time_ms,
            self.ends,
            batch.watermark_ms,
            batch.shape.tasks,
            batch.shape.partitions,
            self.rates_per_s,
            seed=batch.shape.seed,
        )


class BatchPlanner:
    """Cuts the sources of one stream into batches: each batch begins where the one before ended.

    ``storage`` keeps where the sources began. ``batch_interval_ms`` turns the rates of controllers into
    limits; without controllers it is not needed. One thread at a time may call.
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
        self._initial: dict[int, Offset] = {}
        self._ends: dict[int, Offset] = {}
        # The ends of sources of which nothing later is to be read.
        self._final_ends: dict[int, Offset] = {}
        # Where sources ended that the stream had once, by name. They may come back.
        self._absent_ends: dict[str, Offset] = {}
        self._next_id = 0

    def start(self, time_ms: int) -> None:
        """Start all sources at the same time: each may have to wait for its server."""
        with ThreadPoolExecutor(max(1, len(self._sources)), "tidemill-source-start") as threads:
            starting = {
                source_id: threads.submit(self._start_source, planned, time_ms)
                for source_id, planned in self._sources.items()
            }
        self._initial = {source_id: started.result() for source_id, started in starting.items()}
        self._ends = dict(self._initial)

    def _start_source(self, planned: PlannedSource, time_ms: int) -> Offset:
        log = None if self._storage is None else SourceLog(self._storage, planned.name)
        planned.source.start(SourceRuntime(time_ms, self._clock, log))
        return self._initial_offset(planned.source, log)

    def _initial_offset(self, source: Source, log: SourceLog | None) -> Offset:
        """Return where the stream began, once and for all: asked again, a source may say something else."""
        if log is None:
            return source.initial_offset()
        known = log.get(INITIAL)
        if known is None:
            known = [source.initial_offset()]
            log.put(INITIAL, known)
        return known[0]

    def restore(self, logged: LoggedBatches) -> list[Batch]:
        """Go on after the last batch of a log, at the rates that held for it.

        Returns all its batches that can be read again, oldest first: the unfinished ones, and before them
        those that a window may look back at. A batch whose log does not say how it runs has 0 tasks.

        The ends of sources that the stream no longer has stay in the log: a source that comes back goes on
        there. Not those of a source that is known by its number: another one may have that now.
        """
        unfinished = set(logged.unfinished)
        ids = {planned.name: source_id for source_id, planned in self._sources.items()}
        batches = []
        done_ends: Mapping[int, Offset] = {}
        for batch_id, record in logged.offsets.items():
            ends = dict(self._ends)
            for name, end in record.offsets.items():
                if end is None:
                    continue
                if name in ids:
                    ends[ids[name]] = end
                elif not name.isdigit():
                    self._absent_ends[name] = end
            # A purge took the file that says where the oldest batch begins, unless it is the first batch.
            if batch_id == 0 or batch_id - 1 in logged.offsets:
                try:
                    batches.append(self._restored(batch_id, record, ends))
                except LookupError:
                    if batch_id in unfinished:
                        raise
                    batches.clear()  # a source has forgotten it: nothing needs it any more
            self._ends = ends
            self._next_id = batch_id + 1
            if batch_id == logged.last_committed:
                done_ends = ends
        for source_id, planned in self._sources.items():
            planned.source.resumed(self._ends[source_id])
            if source_id in done_ends:
                planned.source.processed(done_ends[source_id])
        if logged.last_planned is not None:
            self._restore_rates(logged.offsets[logged.last_planned])
        return batches

    def _restored(self, batch_id: int, record: OffsetRecord, ends: Mapping[int, Offset]) -> Batch:
        ranges, sizes = self._ranges(ends)
        shape = BatchShape(record.tasks, record.partitions, record.seed)
        return Batch(batch_id, record.batch_time_ms, ranges, sizes, shape, record.watermark_ms)

    def _restore_rates(self, record: OffsetRecord) -> None:
        for planned in self._sources.values():
            rate_per_s = record.rates_per_s.get(planned.name)
            if planned.controller is not None and rate_per_s is not None:
                planned.controller.restore(rate_per_s)

    def look(self, time_ms: int, everything: bool = False) -> Outlook:
        """Find out how far the next batch could reach. Nothing is planned by that."""
        rates_per_s = self._rates()
        ends = {
            source_id: self._final_ends[source_id]
            if source_id in self._final_ends
            else planned.source.latest_offset(
                self._ends[source_id], self._limit(planned, everything), time_ms
            )
            for source_id, planned in self._sources.items()
        }
        return Outlook(time_ms, ends, rates_per_s, ends != self._ends)

    def end_source(self, source_id: int, time_ms: int) -> None:
        """Make all that a source has now the next batch, and its last one."""
        if source_id not in self._final_ends:
            source = self._sources[source_id].source
            self._final_ends[source_id] = source.latest_offset(
                self._ends[source_id], EVERYTHING, time_ms
            )

    def plan(self, time_ms: int, outlook: Outlook | None = None, watermark_ms: int = 0) -> Plan:
        """Return the next batch, which counts from :meth:`advance` on.

        Its ends are found within the present limits, unless somebody has looked already. A source that fails
        leaves the plan where it was.
        """
        if outlook is None:
            outlook = self.look(time_ms)
        ranges, sizes = self._ranges(outlook.ends)
        return Plan(
            Batch(self._next_id, time_ms, ranges, sizes, watermark_ms=watermark_ms),
            {planned.name: outlook.ends[number] for number, planned in self._sources.items()}
            | self._absent_ends,
            outlook.rates_per_s,
        )

    def advance(self, plan: Plan) -> None:
        """The batch exists: the next one begins where it ends."""
        batch = plan.batch
        self._ends = {source_id: range_.end for source_id, range_ in batch.ranges.items()}
        self._next_id = batch.batch_id + 1

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
        """Return the rates that have been estimated, by the names of their sources."""
        return {
            planned.name: rate_per_s
            for planned in self._sources.values()
            if planned.controller is not None
            and (rate_per_s := planned.controller.rate_per_s) is not None
        }

    def _ranges(
        self, ends: Mapping[int, Offset]
    ) -> tuple[dict[int, OffsetRange], dict[int, RangeSize]]:
        ranges = {
            source_id: OffsetRange(self._ends[source_id], end) for source_id, end in ends.items()
        }
        sizes = {
            source_id: self._sources[source_id].source.size(range_)
            for source_id, range_ in ranges.items()
        }
        return ranges, sizes

    def processed(self, batch: Batch) -> None:
        """Tell sources that the batch is done. A window may still read its ranges."""
        for source_id, range_ in batch.ranges.items():
            self._sources[source_id].source.processed(range_.end)

    def commit(self, batch: Batch) -> None:
        """Let sources forget the batch: nothing will read its ranges again."""
        for source_id, range_ in batch.ranges.items():
            self._sources[source_id].source.commit(range_.end)

    def stop(self) -> None:
        """Stop all sources, also those after one that raises."""
        with ExitStack() as stopping:
            for planned in reversed(self._sources.values()):
                stopping.callback(planned.source.stop)
