"""The state of a query's operators: which steps tasks run, and what comes of them on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidemill.batches.running_state import RunningState
from tidemill.checkpoint.storage import Storage
from tidemill.common.output_modes import COMPLETE
from tidemill.progress.query_progress import StateOperatorReport
from tidemill.spark.compiler.plan_rewriting import OperatorSpec, StateSteps
from tidemill.spark.compiler.stateful.aggregation import AggregateSpec
from tidemill.spark.compiler.stateful.deduplication import DeduplicateSpec
from tidemill.sql.execution.checkpoint.layout_changes import change_of_layout
from tidemill.sql.execution.checkpoint.query_plan import OperatorOutline, QueryPlan
from tidemill.state.operators import Versions
from tidemill.state.partition_state import OperatorState
from tidemill.state.reports import ReportsParam, StateReport, has_reports, take_state_reports
from tidemill.tasks.aggregate_steps import AggregateRestoreStep, AggregateSaveStep
from tidemill.tasks.deduplicate_step import DeduplicateStep

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_NAMES = {
    "aggregation": "stateStoreSave",
    "dropDuplicates": "dedupe",
    "dropDuplicatesWithinWatermark": "dedupeWithinWatermark",
}
"""What Spark's progress calls them."""


def outline_of(spec: OperatorSpec, output_mode: str) -> OperatorOutline:
    if isinstance(spec, DeduplicateSpec):
        return OperatorOutline(spec.kind, spec.keys, forgets=spec.forgets)
    return OperatorOutline(
        spec.kind, spec.keys, spec.functions, forgets(spec, output_mode), spec.layout
    )


def forgets(spec: OperatorSpec, output_mode: str) -> bool:
    """True if the watermark takes keys out of the state."""
    if isinstance(spec, DeduplicateSpec):
        return spec.forgets
    return spec.event_time is not None and output_mode != COMPLETE


def follows_watermark(spec: OperatorSpec, output_mode: str) -> bool:
    """True if the operator has work to do when the watermark moves on: what is late, or what is over."""
    if isinstance(spec, DeduplicateSpec):
        return spec.event_time is not None
    return forgets(spec, output_mode)


class StepFactory:
    """Makes the state steps that a compiler puts into a plan.

    ``known_plan`` is the one in the checkpoint, None for a new query: state keeps the order that it says.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        run_id: str,
        stream_id: str,
        storage: Storage,
        output_mode: str,
        known_plan: QueryPlan | None,
    ) -> None:
        self._run_id = run_id
        self._stream_id = stream_id
        self._storage = storage
        self._mode = output_mode
        self._known = () if known_plan is None else known_plan.operators
        self.reports: Accumulator[Any] = spark_context.accumulator({}, ReportsParam())

    def steps(self) -> StateSteps:
        return StateSteps(self._aggregate, self._deduplicate)

    def state_of(self, spec: OperatorSpec) -> OperatorState:
        return OperatorState(
            self._storage, self._stream_id, spec.operator, forgets(spec, self._mode)
        )

    def _aggregate(self, spec: AggregateSpec) -> tuple[Callable[..., Any], Callable[..., Any]]:
        state, schema = self.state_of(spec), _arrow(spec)
        place = (spec.key_count, spec.partitions)
        order = self._order_of(spec)
        # In complete mode nothing is late, and nothing is forgotten.
        event_time = None if self._mode == COMPLETE else spec.event_time
        restore = AggregateRestoreStep(
            self._run_id, state, schema, *place, event_time, self.reports, order
        )
        save = AggregateSaveStep(
            self._run_id, state, schema, *place, self._mode, event_time, self.reports, order
        )
        return restore, save

    def _order_of(self, spec: AggregateSpec) -> Sequence[int] | None:
        """Return the order of the buffers in the state, None if it is that of the plan."""
        number = int(spec.operator)
        kept = self._known[number].layout if number < len(self._known) else None
        # Other functions are another query, which is refused as soon as it has been compiled.
        if kept is None or change_of_layout(kept, spec.layout) is not None:
            return None
        return kept.order_of(spec.layout)

    def _deduplicate(self, spec: DeduplicateSpec) -> Callable[..., Any]:
        within_us = None if spec.within_ms is None else spec.within_ms * 1000
        return DeduplicateStep(
            self._run_id,
            self.state_of(spec),
            _arrow(spec),
            spec.key_indexes,
            spec.partitions,
            spec.event_time,
            within_us,
            self.reports,
        )


def _arrow(spec: OperatorSpec) -> pa.Schema:
    return to_arrow_schema(spec.schema, timezone="UTC")


class OperatorStates:
    """The driver's side of a query's state, for one run."""

    def __init__(
        self,
        running: RunningState | None,
        specs: Sequence[OperatorSpec],
        output_mode: str,
        reports: Accumulator[Any],
    ) -> None:
        self.running = running
        self._specs = specs
        self._reports = reports
        self.follow_watermark = any(follows_watermark(spec, output_mode) for spec in specs)
        # How many keys the last operator has, as of the last batch.
        self.keys_total = 0

    def base(self, batch_id: int) -> dict[str, Versions]:
        """Return the versions that a batch starts from."""
        if self.running is None:
            return {}
        operators = self.running.operators
        return {
            spec.operator: operators.base(spec.operator, batch_id, spec.partitions)
            for spec in self._specs
        }

    def has_reports(self, batch_id: int) -> bool:
        """Return True if the whole state of a batch has been computed."""
        return all(
            has_reports(self._reports.value, spec.operator, batch_id, spec.partitions)
            for spec in self._specs
        )

    def take_reports(self, batch_id: int) -> list[StateOperatorReport]:
        """Collect what the tasks of a batch have written: its versions are known from now on."""
        return [self._take(spec, batch_id) for spec in self._specs]

    def _take(self, spec: OperatorSpec, batch_id: int) -> StateOperatorReport:
        assert self.running is not None
        reports = take_state_reports(self._reports.value, spec.operator, batch_id, spec.partitions)
        self.running.operators.written(spec.operator, batch_id, reports)
        self.keys_total = sum(report.keys_total for report in reports)
        return _progress(spec, reports, self.keys_total)


def _progress(
    spec: OperatorSpec, reports: Sequence[StateReport], keys_total: int
) -> StateOperatorReport:
    state_bytes = sum(report.work.state_bytes for report in reports)
    local = sum(report.work.was_local for report in reports)
    custom_metrics = {
        "loadedMapCacheHitCount": local,
        "loadedMapCacheMissCount": len(reports) - local,
        "stateOnCurrentVersionSizeBytes": state_bytes,
    }
    if isinstance(spec, DeduplicateSpec):
        duplicates = sum(report.rows_duplicate for report in reports)
        custom_metrics["numDroppedDuplicateRows"] = duplicates
    return StateOperatorReport(
        _NAMES[spec.kind],
        late_rows=sum(report.late_rows for report in reports),
        num_rows_total=keys_total,
        num_rows_updated=sum(report.rows_updated for report in reports),
        num_rows_removed=sum(report.rows_removed for report in reports),
        num_rows_dropped_by_watermark=sum(report.rows_dropped_late for report in reports),
        all_updates_time_ms=sum(report.work.update_ms for report in reports),
        all_removals_time_ms=sum(report.work.removal_ms for report in reports),
        commit_time_ms=sum(report.work.commit_ms for report in reports),
        # The local copy does not have this batch's changes yet: they are in a file of their own.
        memory_used_bytes=state_bytes + sum(report.bytes_written for report in reports),
        num_shuffle_partitions=spec.partitions,
        num_state_store_instances=spec.partitions,
        custom_metrics=custom_metrics,
    )
