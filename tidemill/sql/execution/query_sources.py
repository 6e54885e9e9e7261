"""The sources of a query: how they are made, how they are limited, what a batch reads of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.batches.batch import UNLIMITED, Batch
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import RateController, RateSettings
from tidemill.batches.table_source import SparkFilesSource, SplitSource, TableSource
from tidemill.checkpoint.storage import Storage
from tidemill.common.clock import Clock
from tidemill.common.config import Conf
from tidemill.common.options import Options
from tidemill.errors import SourceError
from tidemill.spark.compiler.compiled_plan import ExecutablePlan
from tidemill.spark.compiler.placeholder import SourceDefinition, definition_of
from tidemill.sql.rate_options import read_backpressure, read_max_rate
from tidemill.tasks.fetch_step import take_rows

if TYPE_CHECKING:
    from pyspark import Accumulator

T = TypeVar("T")

FASTEST_INTERVAL_MS = 1_000
"""The batch duration that backpressure aims at in a query without a trigger interval."""

FIRST_RATE_PER_S = 10_000.0
"""The rate of the first batch with backpressure, from a source whose speed nobody knows."""


@dataclass(frozen=True)
class BatchInput:
    """What the rows of a batch are read from, by source id: files, or the splits of each task."""

    files: Mapping[str, Sequence[str]]
    splits: Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class QuerySource:
    """A source of a running query. ``number`` is its place in the logs, as Spark has it."""

    number: int
    source_id: str
    definition: SourceDefinition
    source: TableSource
    controller: RateController | None

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
                ).like_spark(
                    "STREAMING_QUERY_EVOLUTION_ERROR.DUPLICATE_SOURCE_NAMES", names=f"'{name}'"
                )

    def _make(self, number: int, source_id: str, conf: Conf, options: Options) -> QuerySource:
        definition = definition_of(source_id)
        source: TableSource = definition.make()
        if not isinstance(source, (SplitSource, SparkFilesSource)):
            raise SourceError(
                f"the format {definition.format} gave a {type(source).__name__}, which is no SplitSource: "
                "see tidemill.batches.table_source"
            )
        rates = self._rates(definition, RateSettings.from_conf(conf), options)
        controller = rates.controller(conf, self._interval_ms)
        if controller is not None and rates.backpressure and rates.initial_rate_per_s:
            # So that the first batch already says how large the second may be.
            controller.expect(rates.initial_rate_per_s)
        return QuerySource(number, source_id, definition, source, controller)

    def _rates(
        self, definition: SourceDefinition, settings: RateSettings, options: Options
    ) -> RateSettings:
        """Options of the source come before those of the query, and both before the settings."""
        max_rate_per_s = _first_said(
            definition.max_rate_per_s, read_max_rate(options, "the query"), settings.max_rate_per_s
        )
        backpressure = _first_said(
            definition.backpressure, read_backpressure(options, "the query"), settings.backpressure
        )
        if not backpressure:
            return RateSettings(False, max_rate_per_s)
        return RateSettings(True, max_rate_per_s, settings.initial_rate_per_s or FIRST_RATE_PER_S)

    def planner(self, clock: Clock, storage: Storage | None) -> BatchPlanner:
        planned = {
            source.number: PlannedSource(source.name, source.source, UNLIMITED, source.controller)
            for source in self.sources
        }
        return BatchPlanner(planned, clock, storage, self._interval_ms)

    def descriptions(self) -> dict[str, str]:
        """What each source reads, by its name in the logs."""
        return {source.name: source.description for source in self.sources}

    def end_at_what_is_there(self, planner: BatchPlanner, time_ms: int) -> None:
        """Let later batches read what is there now, and nothing that comes after it.

        A source that can tell what is there may take several batches, within its limits; any other source
        ends with the next batch.
        """
        for source in self.sources:
            if can_prepare_available_now(source.source):
                source.source.prepare_available_now()
            else:
                planner.end_source(source.number, time_ms)

    @property
    def controllers(self) -> dict[int, RateController]:
        """The rate controllers of the sources that have one, by number."""
        return {
            source.number: source.controller
            for source in self.sources
            if source.controller is not None
        }

    def rows_read(
        self, batch: Batch, executable: ExecutablePlan, counted: Accumulator[Any]
    ) -> dict[int, int]:
        """Return how many rows a batch that has run took from each source. Sources learn from it."""
        rows = {}
        for source in self.sources:
            if isinstance(source.source, SparkFilesSource):
                found = executable.rows_scanned(source.source_id) or 0
                source.source.learn_records(batch.ranges[source.number], found)
            else:
                found = take_rows(counted, source.source_id, batch.batch_id)
            rows[source.number] = found
        return rows

    def of_files(self) -> list[str]:
        return [each.name for each in self.sources if isinstance(each.source, SparkFilesSource)]

    def input_of(self, batch: Batch) -> BatchInput:
        """Ask the sources what the rows of a batch are read from."""
        return BatchInput(self._files(batch), self._splits(batch))

    def _files(self, batch: Batch) -> dict[str, list[str]]:
        return {
            source.source_id: list(source.source.files(batch.ranges[source.number]))
            for source in self.sources
            if isinstance(source.source, SparkFilesSource)
        }

    def _splits(self, batch: Batch) -> dict[str, list[list[Any]]]:
        """Deal the splits of each source out to the tasks of the batch."""
        tasks = batch.shape.tasks
        dealt = {}
        for source in self.sources:
            if isinstance(source.source, SplitSource):
                splits = source.source.splits(batch.ranges[source.number], tasks)
                if not isinstance(splits, Sequence):
                    raise SourceError(
                        f"the source {source.description} gave {splits!r:.100} as the splits of a batch: a "
                        "list is expected",
                        source.description,
                    )
                dealt[source.source_id] = [list(splits[task::tasks]) for task in range(tasks)]
        return dealt


def _first_said(*values: T | None) -> T | None:
    """Return the first value that somebody has set."""
    return next((value for value in values if value is not None), None)


def can_prepare_available_now(source: TableSource) -> bool:
    """Return True if the source itself knows how to stop at what is there."""
    return type(source).prepare_available_now is not TableSource.prepare_available_now
