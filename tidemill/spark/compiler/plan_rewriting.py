"""One compilation: the logical plan of a query is rewritten, planned by Spark, and rewritten once more.

In the logical plan, leaves become readable in batches, watermarks become observed metrics, and deduplications
become state steps. An aggregation gets its state steps in the physical plan, because they go between the two
nodes that Spark plans for it. Operators have numbers in the order of the logical plan: an aggregation takes
its number there, and its place in ``operators`` is filled later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.batch_time import BatchTime
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.event_time import (
    WatermarkSpec,
    delay_ms_below,
    event_time_column,
    observed,
)
from tidemill.spark.compiler.placeholder import STREAMING_RELATION, source_id_of
from tidemill.spark.compiler.stateful.aggregation import (
    AggregateSpec,
    AggregateSteps,
    StatefulAggregation,
    column_descriptions,
    is_final_over_partial,
)
from tidemill.spark.compiler.stateful.deduplication import (
    DeduplicateSpec,
    DeduplicateSteps,
    StatefulDeduplication,
)
from tidemill.spark.compiler.stateful.distinct_aggregates import with_sets
from tidemill.spark.compiler.stateful.state_layout import WrittenAggregation, written_aggregation
from tidemill.spark.compiler.stateful.task_numbers import with_own_tasks
from tidemill.spark.compiler.stream_leaves import LeafBuilder, Leaves, is_fetch, template_source

OperatorSpec = AggregateSpec | DeduplicateSpec


@dataclass(frozen=True)
class StateSteps:
    """Makes the state steps of the query's operators."""

    aggregate: AggregateSteps
    deduplicate: DeduplicateSteps


@dataclass(frozen=True)
class PlanShape:
    """How a plan runs: by how many tasks, on how many state partitions, at which time.

    If ``single``, one task does everything, without an exchange.
    """

    single: bool
    tasks: int
    partitions: int
    time_ms: int


class PlanRewriting:
    """Rewrites the plans of one compilation: first :meth:`logical`, then :meth:`physical`.

    Afterwards ``watermarks`` and ``operators`` have what was found on the way.
    """

    def __init__(
        self,
        catalyst: Catalyst,
        output_mode: str,
        shape: PlanShape,
        leaves: Leaves,
        builder: LeafBuilder,
        steps: StateSteps,
    ) -> None:
        self._c = catalyst
        self._mode = output_mode
        self._shape = shape
        self._leaves = leaves
        self._builder = builder
        self._batch_time = BatchTime(catalyst)
        where = (shape.partitions, shape.single)
        self._deduplication = StatefulDeduplication(catalyst, steps.deduplicate, *where)
        self._aggregation = StatefulAggregation(catalyst, steps.aggregate, *where)
        # Aggregations of the logical plan that have not been found in the physical one yet.
        self._unplanned: deque[tuple[int, WrittenAggregation]] = deque()
        self._operators: list[OperatorSpec | None] = []
        self.watermarks: list[WatermarkSpec] = []

    @property
    def operators(self) -> tuple[OperatorSpec, ...]:
        return tuple(spec for spec in self._operators if spec is not None)

    # -- the logical plan --------------------------------------------------------------------------

    def logical(self, node: Node) -> Node:
        """Return an analyzed plan in a form that Spark plans as a batch query."""
        c = self._c
        name = c.name(node)
        if name == STREAMING_RELATION:
            source_id = source_id_of(node) or ""
            return self._builder.build(node, source_id, self._leaves[source_id])
        if not node.isStreaming():
            return self._batch_time.in_plan(node, self._shape.time_ms)
        children = [self.logical(child) for child in c.children(node)]
        match name:
            case "EventTimeWatermark":
                plan, watermark = observed(c, node, children[0], len(self.watermarks))
                self.watermarks.append(watermark)
                return plan
            case "Deduplicate":
                return self._deduplicated(node, node.keys(), children[0])
            case "DeduplicateWithinWatermark":
                within_ms = delay_ms_below(c, node.child())
                return self._deduplicated(node, node.keys(), children[0], within_ms)
            case "Distinct":
                # Only the analyzed columns say which of them has a watermark.
                columns = node.child().output()
                keys = column_descriptions(c.items(columns))
                self._expect_aggregation(WrittenAggregation(keys))
                node = c.logical.Aggregate(columns, columns, node.child(), c.none)
            case "Aggregate":
                computed = with_sets(c, node)
                self._expect_aggregation(written_aggregation(c, node, computed))
                node = computed
        node = self._batch_time.in_node(node, self._shape.time_ms)
        return with_own_tasks(c, node, children, self._shape.tasks, self._shape.single)

    def _expect_aggregation(self, written: WrittenAggregation) -> None:
        self._unplanned.append((len(self._operators), written))
        self._operators.append(None)

    def _deduplicated(
        self, node: Node, keys: Any, child: Node, within_ms: int | None = None
    ) -> Node:
        # Only the analyzed columns say which of them has a watermark.
        event_time = event_time_column(self._c, self._c.items(node.child().output()))
        operator = str(len(self._operators))
        plan, spec = self._deduplication.rebuild(
            operator, self._c.items(keys), child, event_time, within_ms
        )
        self._operators.append(spec)
        return plan

    # -- the physical plan -------------------------------------------------------------------------

    def physical(self, plan: Node) -> Node:
        """Return the physical plan with the state steps of the stream's aggregations."""
        with_steps = self._with_steps(plan)[0]
        if self._unplanned:
            _, lost = self._unplanned[0]
            raise UnsupportedError(
                f"the aggregation by {', '.join(lost.keys) or 'nothing'} of "
                f"{', '.join(lost.functions) or 'nothing'} cannot keep its state: Spark's optimizer has "
                "taken it out of the plan. Leave it out of the query, or exclude the rule that removes it "
                "(spark.sql.optimizer.excludedRules)."
            )
        return with_steps

    def _with_steps(self, node: Node) -> tuple[Node, bool]:
        """Return the node with state steps, and whether it reads the stream."""
        c = self._c
        if is_fetch(c, node) or template_source(c, node) is not None:
            return node, True
        if is_final_over_partial(c, node):
            child, reads_stream = self._with_steps(node.child().child())
            return (self._with_state(node, child), True) if reads_stream else (node, False)
        rebuilt = [self._with_steps(child) for child in c.children(node)]
        if not any(reads_stream for _, reads_stream in rebuilt):
            return node, False
        return c.with_children(node, [child for child, _ in rebuilt]), True

    def _with_state(self, final: Node, child: Node) -> Node:
        number, written = self._unplanned.popleft()
        plan, self._operators[number] = self._aggregation.rebuild(
            str(number), final, child, written
        )
        return plan
