"""The physical plans of a query: which one a batch runs, and what its tasks have to know."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import Batch
from tidemill.batches.table_source import SplitSource
from tidemill.spark.compiler.compiled_plan import CompiledPlan, ExecutablePlan
from tidemill.spark.compiler.plan_rewriting import OperatorSpec, StateSteps
from tidemill.spark.compiler.stream_leaves import (
    FileLeaf,
    Leaf,
    PartitioningChangedError,
    SplitLeaf,
)
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.fetch_step import FetchStep

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.sql.execution.checked_query import CheckedQuery
    from tidemill.sql.execution.query_sources import BatchInput, QuerySources
    from tidemill.state.operators import Versions

logger = logging.getLogger(__name__)


class QueryPlans:
    """Compiles a plan when a batch first needs it. With one task it is the plan without exchanges.

    ``partitions`` is how many the state has. Fetch steps count the rows they read in ``rows_read``.
    """

    def __init__(
        self,
        query: CheckedQuery,
        sources: QuerySources,
        steps: StateSteps,
        run_id: str,
        partitions: int,
        rows_read: Accumulator[Any],
    ) -> None:
        self._compiler = query.compiler
        self._reads_the_clock = query.outline.reads_the_clock
        self._steps = steps
        self._partitions = partitions
        self._by_tasks: dict[int, CompiledPlan] = {}
        self._leaves: dict[str, Leaf] = {
            source.source_id: SplitLeaf(
                FetchStep(run_id, source.source_id, source.source, rows_read)
            )
            if isinstance(source.source, SplitSource)
            else FileLeaf()
            for source in sources.sources
        }

    def compile(self, tasks: int, time_ms: int) -> CompiledPlan:
        """Return the plan for batches of so many tasks. ``time_ms`` is what a query that asks gets to see."""
        if tasks not in self._by_tasks or self._reads_the_clock:
            self._by_tasks[tasks] = self._compiler.compile(
                self._leaves, self._steps, self._partitions, tasks == 1, tasks, time_ms
            )
        return self._by_tasks[tasks]

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        """The stateful operators of the query: the same in each of its plans."""
        return next(iter(self._by_tasks.values())).operators

    def for_batch(
        self,
        batch: Batch,
        batch_input: BatchInput,
        base: Mapping[str, Versions],
        late_ms: int | None = None,
        evict_ms: int | None = None,
    ) -> tuple[ExecutablePlan, BatchContext]:
        """Return the plan of a batch and what its tasks have to know: the thread that runs it publishes that.

        ``base`` is the state that the batch starts from.
        """
        context = BatchContext(
            batch_id=batch.batch_id,
            time_ms=batch.time_ms,
            late_ms=late_ms,
            evict_ms=evict_ms,
            base=dict(base),
            splits=batch_input.splits,
            single=batch.shape.tasks == 1,
        )
        while True:
            plan = self.compile(batch.shape.tasks, batch.time_ms)
            try:
                return plan.for_batch(batch_input.files), context
            except PartitioningChangedError as changed:
                logger.info(
                    "the files of this batch are partitioned by %s: the query is planned anew",
                    ", ".join(changed.partition_columns) or "nothing",
                )
                self._leaves[changed.source_id] = FileLeaf(changed.partition_columns)
                self._by_tasks.clear()

    def explain(self, extended: bool) -> str:
        plan = next(reversed(self._by_tasks.values()), None)
        if plan is None:
            return "The query has not been planned yet."
        physical = f"== Physical Plan ==\n{plan.explain()}"
        if not extended:
            return physical
        return f"== Analyzed Logical Plan ==\n{self._compiler.explain()}\n{physical}"
