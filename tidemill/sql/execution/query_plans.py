"""The physical plans of a query: which one a batch runs, and what its tasks have to know.

A plan is kept as long as it gives what a new one would: it is made anew for every batch of a query that asks
for the time, and whenever the tables have another version than the kept plans have read. So a later batch
never sees an earlier version, whichever of the plans it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import Batch
from tidemill.batches.table_source import SplitSource
from tidemill.spark.compiler.batch_seeds import new_batch_seed, seed_of
from tidemill.spark.compiler.compiled_plan import CompiledPlan, ExecutablePlan
from tidemill.spark.compiler.plan_rewriting import OperatorSpec, StateSteps
from tidemill.spark.compiler.static_tables import Version
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

    ``partitions`` is how many the state has. Fetch steps count the rows they read in ``rows_read``. The id of
    the query gives seeds to batches whose log has none.
    """

    def __init__(
        self,
        query: CheckedQuery,
        sources: QuerySources,
        steps: StateSteps,
        run_id: str,
        partitions: int,
        rows_read: Accumulator[Any],
        query_id: str,
    ) -> None:
        self._compiler = query.compiler
        self._draws_at_random = query.outline.draws_at_random
        self._query_id = query_id
        self._tables = query.compiler.static_tables()
        # The version of the tables that all kept plans have.
        self._version: Version = ()
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
        # Asked for before anything is read: what changes meanwhile is seen by the next batch.
        version = self._tables.version()
        is_current = version == self._version and not self._reads_the_clock
        if tasks not in self._by_tasks or not is_current:
            plan = self._compiler.compile(
                self._leaves, self._steps, self._partitions, tasks == 1, tasks, time_ms
            )
            if not is_current:
                self._by_tasks.clear()
                self._version = version
            self._by_tasks[tasks] = plan
        return self._by_tasks[tasks]

    @property
    def changing_tables(self) -> tuple[str, ...]:
        """What the query reads besides the stream, and may find changed when a batch runs again."""
        return self._tables.changing

    def new_seed(self) -> int:
        """Draw where the random seeds of a new batch come from; 0 for a query without such functions."""
        return new_batch_seed() if self._draws_at_random else 0

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
        seed = batch.shape.seed or seed_of(self._query_id, batch.batch_id)
        while True:
            plan = self.compile(batch.shape.tasks, batch.time_ms)
            try:
                return plan.for_batch(batch_input.files, seed), context
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
