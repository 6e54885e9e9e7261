"""From the DataFrame that a user has written to a physical plan that runs on every batch.

1. The analyzed plan is taken as it is, with its placeholder leaves; CTEs are put in place.
2. Leaves are swapped for ones that can be read in batches; watermarks, ``dropDuplicates`` and DISTINCT
   aggregates are rewritten (logical plan).
3. Spark optimizes and plans it, as any batch query.
4. Aggregations of the stream get their state steps (physical plan), and Spark prepares the plan.

A query has up to two plans. In the **single** plan everything runs in one task, without an exchange: right
for a small batch. In the other one several tasks share the work. State is placed the same way in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidemill.common.output_modes import COMPLETE
from tidemill.errors import QueryError
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.compiled_plan import CompiledPlan
from tidemill.spark.compiler.event_time import WatermarkSpec, delay_ms_of, observed
from tidemill.spark.compiler.stateful.aggregation import (
    AggregateSpec,
    AggregateSteps,
    StatefulAggregation,
    described,
    event_time_of,
    is_final_over_partial,
)
from tidemill.spark.compiler.stateful.deduplication import (
    DeduplicateSpec,
    DeduplicateSteps,
    StatefulDeduplication,
)
from tidemill.spark.compiler.stateful.distinct_aggregates import with_sets
from tidemill.spark.compiler.stateful.task_numbers import with_own_tasks
from tidemill.spark.compiler.stream_leaves import (
    STREAMING_RELATION,
    LeafBuilder,
    Leaves,
    is_fetch,
    source_id_of,
    template_source,
)
from tidemill.spark.compiler.supported_operations import StreamFacts, SupportedOperations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OperatorSpec = AggregateSpec | DeduplicateSpec


@dataclass(frozen=True)
class QueryOutline:
    """What is known of a query before it is compiled."""

    source_ids: tuple[str, ...]
    facts: StreamFacts
    # True if the query asks for the time: then every batch is planned anew, with its own time.
    reads_the_clock: bool


@dataclass(frozen=True)
class StateSteps:
    """Makes the state steps of the query's operators."""

    aggregate: AggregateSteps
    deduplicate: DeduplicateSteps


@dataclass
class _Rewriting:
    """What one compilation finds on its way."""

    single: bool
    tasks: int
    jsession: Any
    leaves: LeafBuilder
    time_ms: int
    watermarks: list[WatermarkSpec] = field(default_factory=list)
    operators: list[OperatorSpec | None] = field(default_factory=list)
    aggregates: list[int] = field(default_factory=list)
    described: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)


class QueryCompiler:
    """Compiles one query, as often as it is asked to."""

    def __init__(self, df: DataFrame, output_mode: str) -> None:
        self._c = Catalyst(df.sparkSession)
        self._df = df
        self._mode = output_mode
        inline = self._c.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
        self._patterns = self._c.module("org.apache.spark.sql.catalyst.trees.TreePattern")
        self._analyzed = inline.apply(df._jdf.queryExecution().analyzed())

    def outline(self) -> QueryOutline:
        """Check the query, and say what it reads. Raises for what is not supported."""
        facts = SupportedOperations(self._c, self._mode).check(self._analyzed)
        if not facts.streaming:
            raise QueryError("this DataFrame is not a stream: make one with spark.readStream")
        ids: dict[str, None] = {}
        for node in self._c.walk(self._analyzed):
            if self._c.name(node) == STREAMING_RELATION:
                source_id = source_id_of(node)
                if source_id is None:
                    raise QueryError(
                        f"the stream {node.sourceName()!s} was made before tidemill.attach(spark), by "
                        "Spark's own readStream: make it after, with spark.readStream."
                    )
                ids[source_id] = None
        asks = bool(self._analyzed.containsPattern(self._patterns.CURRENT_LIKE()))
        return QueryOutline(tuple(ids), facts, asks)

    def compile(
        self,
        leaves: Leaves,
        steps: StateSteps,
        partitions: int,
        single: bool,
        tasks: int = 1,
        time_ms: int = 0,
    ) -> CompiledPlan:
        """A plan for batches. ``partitions`` is how many the state has; ``tasks`` read a split leaf."""
        tasks = 1 if single else tasks
        jsession = self._session_for(1 if single else partitions)
        work = _Rewriting(single, tasks, jsession, LeafBuilder(self._c, jsession, tasks), time_ms)
        deduplication = StatefulDeduplication(self._c, steps.deduplicate, partitions, single)
        aggregation = StatefulAggregation(self._c, steps.aggregate, partitions, single)
        planner = self._c.module("org.apache.spark.sql.execution.QueryExecution")
        with self._c.active(jsession):
            logical = self._rewrite(self._analyzed, leaves, work, deduplication)
            execution = self._c.dataset(logical, jsession).queryExecution()
            physical, _ = self._rebuild(execution.sparkPlan(), work, aggregation, [0])
            executed = planner.prepareExecutedPlan(jsession, physical)
        return CompiledPlan(
            self._c,
            jsession,
            executed,
            self._df._jdf.schema(),
            tuple(work.watermarks),
            tuple(spec for spec in work.operators if spec is not None),
            work.leaves.files,
        )

    def explain(self) -> str:
        """The query as Spark has understood it, before it was compiled."""
        return str(self._analyzed.treeString())

    def batch_dataframe(self, replace: Callable[[str, Node], Node]) -> DataFrame:
        """The query as a batch query, with other leaves: ``replace(source_id, placeholder)``."""
        return self._c.dataframe(self._as_batch(self._analyzed, replace))

    def _as_batch(self, node: Node, replace: Callable[[str, Node], Node]) -> Node:
        c = self._c
        name = c.name(node)
        if name == STREAMING_RELATION:
            return replace(source_id_of(node) or "", node)
        children = [self._as_batch(child, replace) for child in c.children(node)]
        if name == "EventTimeWatermark":
            return children[0]
        if name == "DeduplicateWithinWatermark":
            return c.logical.Deduplicate(node.keys(), children[0], c.none)
        return c.with_children(node, children)

    # -- sessions ----------------------------------------------------------------------------------

    def _session_for(self, shuffle_partitions: int) -> Any:
        jsession = self._c.jsession.cloneSession()
        for key, value in {
            # A plan that is run again must be the one that was made.
            "spark.sql.adaptive.enabled": "false",
            # A reused exchange would give the rows of the first batch again.
            "spark.sql.exchange.reuse": "false",
            "spark.sql.shuffle.partitions": str(shuffle_partitions),
            "spark.sql.cbo.enabled": "false",
        }.items():
            jsession.conf().set(key, value)
        return jsession

    # -- the logical plan --------------------------------------------------------------------------

    def _rewrite(
        self, node: Node, leaves: Leaves, work: _Rewriting, deduplication: StatefulDeduplication
    ) -> Node:
        c = self._c
        name = c.name(node)
        if name == STREAMING_RELATION:
            source_id = source_id_of(node) or ""
            return work.leaves.build(node, source_id, leaves[source_id])
        if not node.isStreaming():
            return self._static(node, work.time_ms)
        children = [self._rewrite(child, leaves, work, deduplication) for child in c.children(node)]
        match name:
            case "EventTimeWatermark":
                plan, watermark = observed(c, node, children[0], len(work.watermarks))
                work.watermarks.append(watermark)
                return plan
            case "Deduplicate":
                return self._deduplicated(node, node.keys(), None, children[0], work, deduplication)
            case "DeduplicateWithinWatermark":
                delay_ms = self._delay_of(node.child())
                return self._deduplicated(
                    node, node.keys(), delay_ms, children[0], work, deduplication
                )
            case "Distinct" if self._mode != COMPLETE:
                keys = children[0].output()
                return self._deduplicated(node, keys, None, children[0], work, deduplication)
            case "Aggregate" | "Distinct":
                work.aggregates.append(len(work.operators))
                work.described[len(work.operators)] = self._described(node)
                work.operators.append(None)
                if name == "Aggregate":
                    node = with_sets(c, node)
        node = self._with_time(node, work.time_ms)
        return with_own_tasks(c, node, children, work.tasks, work.single)

    def _described(self, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Keys and functions as the user has written them, before the optimizer gives them names."""
        c = self._c
        if c.name(node) == "Distinct":
            return described(c.items(node.child().output())), ()
        keys = [
            f"{key.sql()} {key.dataType().catalogString()}"
            for key in c.items(node.groupingExpressions())
        ]
        functions = [
            str(part.sql())
            for expression in c.items(node.aggregateExpressions())
            for part in c.parts(expression)
            if c.name(part) == "AggregateExpression"
        ]
        return tuple(keys), tuple(functions)

    def _deduplicated(
        self,
        node: Node,
        keys: Any,
        within_ms: int | None,
        child: Node,
        work: _Rewriting,
        deduplication: StatefulDeduplication,
    ) -> Node:
        operator = str(len(work.operators))
        # Only the columns as they were analyzed say which of them has a watermark.
        event_time = event_time_of(self._c, self._c.items(node.child().output()))
        plan, spec = deduplication.rebuild(
            operator, self._c.items(keys), child, event_time, within_ms
        )
        work.operators.append(spec)
        return plan

    def _delay_of(self, node: Node) -> int:
        for below in self._c.walk(node):
            if self._c.name(below) == "EventTimeWatermark":
                return delay_ms_of(self._c, below)
        raise AssertionError("checked before")

    def _static(self, node: Node, time_ms: int) -> Node:
        """A table asks for the time of the batch, too."""
        if not node.containsPattern(self._patterns.CURRENT_LIKE()):
            return node
        children = [self._static(child, time_ms) for child in self._c.children(node)]
        return self._c.with_children(self._with_time(node, time_ms), children)

    def _with_time(self, plan: Node, time_ms: int) -> Node:
        """The time of the batch in place of ``current_timestamp()`` and its like."""
        c = self._c
        if not any(
            expression.containsPattern(self._patterns.CURRENT_LIKE())
            for expression in c.expressions_of(plan)
        ):
            return plan

        def change(expression: Node) -> Node | None:
            if c.name(expression) not in _CURRENT:
                return None
            has_zone = c.is_instance(
                expression, "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"
            )
            zone = expression.timeZoneId() if has_zone else c.some("UTC")
            current = c.expressions.CurrentBatchTimestamp(time_ms, expression.dataType(), zone)
            return current.toLiteral()

        return c.transform_expressions(plan, change)

    # -- the physical plan -------------------------------------------------------------------------

    def _rebuild(
        self, node: Node, work: _Rewriting, aggregation: StatefulAggregation, done: list[int]
    ) -> tuple[Node, bool]:
        """The plan with state steps, and whether the stream is in it."""
        c = self._c
        if is_fetch(c, node) or template_source(c, node) is not None:
            return node, True
        if is_final_over_partial(c, node):
            child, streams = self._rebuild(node.child().child(), work, aggregation, done)
            if not streams:
                return node, False
            position = work.aggregates[done[0]]
            done[0] += 1
            plan, spec = aggregation.rebuild(str(position), node, child)
            keys, functions = work.described[position]
            work.operators[position] = replace(spec, keys=keys, functions=functions)
            return plan, True
        rebuilt = [self._rebuild(child, work, aggregation, done) for child in c.children(node)]
        if not any(streams for _, streams in rebuilt):
            return node, False
        return c.with_children(node, [child for child, _ in rebuilt]), True


_CURRENT = {"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp"}
