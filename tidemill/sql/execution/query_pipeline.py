"""What runs on a batch: the plans of a query, and which of them a batch is worth."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import Batch
from tidemill.batches.parallelism import tasks_for_bytes, tasks_for_records
from tidemill.batches.table_source import SplitSource
from tidemill.spark.compiler.compiled_plan import CompiledPlan, ExecutablePlan
from tidemill.spark.compiler.plan_rewriting import OperatorSpec, StateSteps
from tidemill.spark.compiler.query_compiler import QueryCompiler, QueryOutline
from tidemill.spark.compiler.stream_leaves import (
    FileLeaf,
    Leaf,
    PartitioningChangedError,
    SplitLeaf,
)
from tidemill.sql.execution.query_sources import QuerySources
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.fetch_step import FetchStep

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.operators import Versions

logger = logging.getLogger(__name__)

MOST_PARTITIONS_IN_ONE_TASK = 8
KEYS_PER_TASK = 50_000


@dataclass(frozen=True)
class BatchInput:
    """What the rows of a batch are read from: the files of its file sources, the splits of the others."""

    files: Mapping[str, Sequence[str]]
    splits: Mapping[str, Sequence[Sequence[Any]]]


class QueryPipeline:
    """Compiles when it must, and gives each batch its plan."""

    def __init__(
        self,
        compiler: QueryCompiler,
        outline: QueryOutline,
        sources: QuerySources,
        steps: StateSteps,
        run_id: str,
        partitions: int,
        parallelism: int,
        rows_read: Accumulator[Any],
    ) -> None:
        self._compiler = compiler
        self._outline = outline
        self._sources = sources
        self._steps = steps
        self._run_id = run_id
        self._partitions = partitions
        self._parallelism = parallelism
        self._plans: dict[bool, CompiledPlan] = {}
        self._leaves: dict[str, Leaf] = {
            source.source_id: SplitLeaf(
                FetchStep(run_id, source.source_id, source.source, rows_read)
            )
            if isinstance(source.source, SplitSource)
            else FileLeaf()
            for source in sources.sources
        }
        self._last_rows = 0
        self._restores_state = False

    def first_plan(self, time_ms: int, restores_state: bool = False) -> CompiledPlan:
        """Compile the plan of the first batch: it tells what operators the query has.

        A batch that brings the state of an earlier run to its executors is large whatever its rows are:
        several tasks share that.
        """
        self._restores_state = restores_state and self._parallelism > 1 and self._partitions > 1
        return self._plan(not self._restores_state, time_ms)

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        return next(iter(self._plans.values())).operators

    def is_small(self, batch: Batch, keys_in_output: int) -> bool:
        """True if one task is faster than several."""
        if self._parallelism == 1:
            return True
        if self._restores_state:
            return False
        if self.operators and self._partitions > MOST_PARTITIONS_IN_ONE_TASK:
            return False
        tasks = 1
        for size in batch.sizes.values():
            if size.records is not None:
                tasks = max(tasks, tasks_for_records(size.records, self._parallelism))
            elif size.bytes is not None:
                tasks = max(tasks, tasks_for_bytes(size.bytes, self._parallelism))
            else:
                tasks = max(tasks, tasks_for_records(self._last_rows, self._parallelism))
        return tasks == 1 and keys_in_output <= KEYS_PER_TASK

    def input_of(self, batch: Batch, single: bool) -> BatchInput:
        """Ask the sources what the rows of a batch are read from."""
        tasks = 1 if single else self._parallelism
        return BatchInput(
            self._sources.files(batch.ranges),
            self._sources.splits(batch.ranges, tasks, self._parallelism),
        )

    def for_batch(
        self,
        batch: Batch,
        given: BatchInput,
        single: bool,
        base: dict[str, Versions],
        late_ms: int | None,
        evict_ms: int | None,
    ) -> tuple[ExecutablePlan, BatchContext]:
        """The plan of a batch, and what its tasks have to know, for the thread that runs it to set."""
        context = BatchContext(
            batch_id=batch.batch_id,
            time_ms=batch.time_ms,
            late_ms=late_ms,
            evict_ms=evict_ms,
            base=base,
            splits=given.splits,
            single=single,
        )
        while True:
            plan = self._plan(single, batch.time_ms)
            try:
                return plan.for_batch(given.files), context
            except PartitioningChangedError as changed:
                logger.info(
                    "the files of this batch are partitioned by %s: the query is planned anew",
                    ", ".join(changed.partition_columns) or "nothing",
                )
                self._leaves[changed.source_id] = FileLeaf(changed.partition_columns)
                self._plans.clear()

    def read(self, rows: int) -> None:
        """So many rows the last batch has read: a guess for sources that cannot tell before."""
        self._last_rows = rows
        self._restores_state = False

    def _plan(self, single: bool, time_ms: int) -> CompiledPlan:
        if single not in self._plans or self._outline.reads_the_clock:
            self._plans[single] = self._compiler.compile(
                self._leaves, self._steps, self._partitions, single, self._parallelism, time_ms
            )
        return self._plans[single]

    def explain(self, extended: bool) -> str:
        plan = next(reversed(self._plans.values()), None)
        if plan is None:
            return "The query has not been planned yet."
        physical = f"== Physical Plan ==\n{plan.explain()}"
        if not extended:
            return physical
        return f"== Analyzed Logical Plan ==\n{self._compiler.explain()}\n{physical}"
