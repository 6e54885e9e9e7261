"""The sources of a query: made, limited, planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import UNLIMITED, OffsetRange
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import RateController
from tidemill.batches.rate_estimator import rate_estimator
from tidemill.batches.table_source import SparkFilesSource, SplitSource, TableSource
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.common.config import (
    BACKPRESSURE_ENABLED,
    BACKPRESSURE_INITIAL_RATE,
    RECEIVER_MAX_RATE,
    Conf,
)
from tidemill.errors import SourceError
from tidemill.spark.compiler.placeholder import SourceDefinition, definition_of

if TYPE_CHECKING:
    from tidemill.common.options import Options

FASTEST_INTERVAL_MS = 1_000
"""What a query without a trigger interval aims at with backpressure."""

FIRST_RATE_PER_S = 10_000.0
"""With backpressure, how much the first batch takes of a source that nobody knows the speed of."""


@dataclass(frozen=True)
class QuerySource:
    """A source of a running query. ``number`` is its place in the logs, as Spark has it."""

    number: int
    source_id: str
    definition: SourceDefinition
    source: TableSource
    controller: RateController | None
    max_rate_per_s: float | None = None

    @property
    def name(self) -> str:
        """What the logs call it: the name that ``readStream.name()`` gave it, or its number."""
        return self.definition.name or str(self.number)

    @property
    def description(self) -> str:
        return self.source.description()


class QuerySources:
    """All sources of one run of a query."""

    def __init__(
        self, source_ids: Sequence[str], conf: Conf, options: Options, interval_ms: int
    ) -> None:
        self._interval_ms = interval_ms or FASTEST_INTERVAL_MS
        # Earlier than this, a batch would take more than the maximum rates allow. Of interest to queries
        # without an interval: with one, it is what limits are made of.
        self.not_before_ms = 0
        self.sources = [
            self._make(number, source_id, conf, options)
            for number, source_id in enumerate(source_ids)
        ]
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise SourceError(
                    f"two sources of the query have the name {name!r}: give each of them its own, with "
                    "readStream.name(...)"
                )

    def _make(self, number: int, source_id: str, conf: Conf, options: Options) -> QuerySource:
        definition = definition_of(source_id)
        source: TableSource = definition.make()
        if not isinstance(source, (SplitSource, SparkFilesSource)):
            raise SourceError(
                f"the format {definition.format} gave a {type(source).__name__}, which is no SplitSource: "
                "see tidemill.batches.table_source"
            )
        max_rate_per_s = self._max_rate(definition, conf, options)
        controller = self._controller(definition, conf, options, max_rate_per_s)
        return QuerySource(number, source_id, definition, source, controller, max_rate_per_s)

    def _max_rate(self, definition: SourceDefinition, conf: Conf, options: Options) -> float | None:
        from tidemill.sql.rate_options import read_max_rate

        if definition.max_rate_per_s is not None:
            return definition.max_rate_per_s
        of_query = read_max_rate(options, "the query")
        return RECEIVER_MAX_RATE.read(conf) if of_query is None else of_query

    def _controller(
        self,
        definition: SourceDefinition,
        conf: Conf,
        options: Options,
        max_rate_per_s: float | None,
    ) -> RateController | None:
        from tidemill.sql.rate_options import read_backpressure

        of_query = read_backpressure(options, "the query")
        is_on = next(
            (choice for choice in (definition.backpressure, of_query) if choice is not None),
            BACKPRESSURE_ENABLED.read(conf),
        )
        if not is_on and max_rate_per_s is None:
            return None
        estimator = rate_estimator(conf, self._interval_ms)
        if not is_on:
            return FixedRate(estimator, max_rate_per_s)
        initial = BACKPRESSURE_INITIAL_RATE.read(conf) or FIRST_RATE_PER_S
        # So that the first batch already says how large the second may be.
        estimator.start_from(initial)
        return RateController(estimator, max_rate_per_s, initial)

    def planner(self, clock: Clock, storage: Storage | None) -> BatchPlanner:
        planned = {
            source.number: PlannedSource(source.name, source.source, UNLIMITED, source.controller)
            for source in self.sources
        }
        return BatchPlanner(planned, clock, storage, self._interval_ms)

    def descriptions(self) -> dict[str, str]:
        """What each source reads, by its name in the logs."""
        return {source.name: source.description for source in self.sources}

    def hold(self, planner: BatchPlanner, time_ms: int) -> None:
        """What is there now is all that will be read: in several batches, if limits ask for that, of a source
        that can tell, and of any other one in the next batch.
        """
        for source in self.sources:
            if can_hold(source.source):
                source.source.prepare_available_now()
            else:
                planner.hold(source.number, time_ms)

    def learn(self, rows: Mapping[int, int], began_ms: int, ended_ms: int, late_ms: int) -> None:
        """So many rows a batch had of each source, which began ``late_ms`` after it should have."""
        for source in self.sources:
            found = rows[source.number]
            if source.controller is not None:
                source.controller.on_batch(ended_ms, found, ended_ms - began_ms, late_ms)
            if source.max_rate_per_s is not None:
                # records / (records/s) * ms/s = ms
                paid_ms = began_ms + int(found / source.max_rate_per_s * 1000)
                self.not_before_ms = max(self.not_before_ms, paid_ms)

    def of_files(self) -> list[str]:
        return [each.name for each in self.sources if isinstance(each.source, SparkFilesSource)]

    def files(self, ranges: Mapping[int, OffsetRange]) -> dict[str, list[str]]:
        """The files that a batch reads, by source id."""
        return {
            source.source_id: list(source.source.files(ranges[source.number]))
            for source in self.sources
            if isinstance(source.source, SparkFilesSource)
        }

    def splits(
        self, ranges: Mapping[int, OffsetRange], tasks: int, parallelism: int
    ) -> dict[str, list[list[Any]]]:
        """What each task reads, by source id."""
        dealt = {}
        for source in self.sources:
            if isinstance(source.source, SplitSource):
                splits = source.source.splits(ranges[source.number], parallelism)
                if not isinstance(splits, Sequence):
                    raise SourceError(
                        f"the source {source.description} gave {splits!r:.100} as the splits of a batch: a "
                        "list is expected"
                    )
                dealt[source.source_id] = [list(splits[task::tasks]) for task in range(tasks)]
        return dealt


def can_hold(source: TableSource) -> bool:
    """True if the source itself knows how to stop at what is there."""
    return type(source).prepare_available_now is not TableSource.prepare_available_now


class FixedRate(RateController):
    """A limit without backpressure: it never learns."""

    def on_batch(
        self, processing_end_ms: int, records: int, processing_ms: int, scheduling_ms: int
    ) -> None:
        pass
