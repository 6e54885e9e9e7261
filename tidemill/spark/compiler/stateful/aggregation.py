"""Aggregation with state: Spark's own partial and final aggregation, around two steps of ours.

::

    partial aggregation of the batch's rows          Spark
      (exchange by key, and merge)                   Spark, when more than one task works on the batch
        restore: the old buffers before the new      ours, from version N-1 of the state
          merge                                      Spark
            save: version N; rows by output mode     ours
              final aggregation                      Spark

Buffers are rows like any other, so every aggregate function that Spark can merge works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.errors import IllegalArgumentException
from pyspark.sql.types import StructType

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.event_time import event_time_column
from tidemill.spark.compiler.stateful.state_layout import WrittenAggregation, layout_of
from tidemill.spark.compiler.stateful.state_steps import state_function
from tidemill.spark.compiler.stateful.state_types import require_state_types
from tidemill.tasks.event_time import EventTimeColumn
from tidemill.tasks.state_layout import StateLayout
from tidemill.tasks.state_step import PARTITION_COLUMN, ROW_COUNT_COLUMN

AGGREGATES = ("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec")
# Positions of parameters in the constructors of all three.
_IS_STREAMING, _SHUFFLE_PARTITIONS, _RESULTS, _CHILD = 1, 2, 7, 8


@dataclass(frozen=True)
class AggregateSpec:
    """What the state steps of one aggregation have to know."""

    operator: str
    # The columns of the keys, then those of the buffers.
    schema: StructType
    key_count: int
    partitions: int
    event_time: EventTimeColumn | None
    # For people to read, and to tell whether a checkpoint belongs to the same query.
    keys: tuple[str, ...]
    functions: tuple[str, ...]
    layout: StateLayout

    @property
    def kind(self) -> str:
        return "aggregation"

    @property
    def counts_rows(self) -> bool:
        """True if the restore step hears how many rows are behind each of its rows: some may be late."""
        return self.event_time is not None


class AggregateSteps(Protocol):
    """Makes the restore step and the save step of an aggregation."""

    def __call__(self, spec: AggregateSpec) -> tuple[Callable[..., Any], Callable[..., Any]]: ...


def column_descriptions(columns: list[Node]) -> tuple[str, ...]:
    """Return names and types of columns: ``("word string",)``."""
    return tuple(f"{column.name()} {column.dataType().catalogString()}" for column in columns)


def is_final_over_partial(catalyst: Catalyst, node: Node) -> bool:
    """Return True for the upper one of the two nodes that Spark plans for an aggregation."""
    if catalyst.name(node) not in AGGREGATES:
        return False
    child = node.child()
    return catalyst.name(child) in AGGREGATES and _modes(catalyst, child) <= {"Partial"}


def _modes(catalyst: Catalyst, node: Node) -> set[str]:
    return {str(e.mode().toString()) for e in catalyst.items(node.aggregateExpressions())}


class StatefulAggregation:
    """Puts state steps between the two nodes of an aggregation, in a physical plan before preparation."""

    def __init__(
        self, catalyst: Catalyst, steps: AggregateSteps, partitions: int, single: bool
    ) -> None:
        self._c = catalyst
        self._steps = steps
        self._partitions = partitions
        self._single = single

    def rebuild(
        self, operator: str, final: Node, child: Node, written: WrittenAggregation
    ) -> tuple[Node, AggregateSpec]:
        """Return the aggregation with its steps. ``child`` is the rebuilt child of the partial one."""
        c = self._c
        if self._single:
            child = self._in_one_task(child)
        partial = final.child()
        functions = c.items(partial.aggregateExpressions())
        chain = self._chain(final, functions, child)
        merge_all = chain.child().child()
        merge_new = merge_all.child().child()
        key_count = partial.groupingExpressions().size()
        columns = self._columns(merge_all, key_count)
        keys = columns[:key_count]
        layout = layout_of(c, partial, keys, written)
        schema = c.schema_of(columns)
        names = [str(key.name()) for key in c.items(merge_all.output())[:key_count]]
        names += [each.function for each in layout.functions for _ in each.buffers]
        types = [field.dataType for field in schema]
        require_state_types(c, "groupBy", zip(names, types, strict=True))
        spec = AggregateSpec(
            operator,
            schema,
            key_count,
            self._partitions if keys else 1,
            event_time_column(c, keys),
            written.keys,
            written.functions,
            layout,
        )
        restore, save = self._steps(spec)
        counted: list[Node] = []
        if spec.counts_rows:
            merge_new, counted = self._with_row_count(final, functions, child)
        plan = self._batch_aggregate(merge_new.child(), child, [*columns, *counted])
        if not self._single:
            plan = self._exchanged(plan, keys)
            plan = self._batch_aggregate(merge_new, plan, [*columns, *counted])
        plan = self._step(restore, columns, plan, keys, counted, keeps_place=True)
        plan = self._batch_aggregate(merge_all, plan, columns)
        plan = self._step(save, columns, plan, keys)
        return self._batch_aggregate(chain, plan, None), spec

    def _chain(self, final: Node, functions: list[Node], child: Node) -> Node:
        """Return the nodes that Spark's own streams have for these functions, the final one on top."""
        return self._c.execution.aggregate.AggUtils.planStreamingAggregation(
            final.child().groupingExpressions(),
            self._c.seq(functions),
            final.resultExpressions(),
            2,
            child,
        ).head()

    def _with_row_count(
        self, final: Node, functions: list[Node], child: Node
    ) -> tuple[Node, list[Node]]:
        """Return the merge of the batch's rows, over their partial aggregation, with one more function that
        counts the rows; and its column, which the restore step takes away.
        """
        c = self._c
        one = c.module("org.apache.spark.sql.catalyst.expressions.Literal").apply(1)
        count = c.expressions.aggregate.Count(c.seq([one])).toAggregateExpression()
        chain = self._chain(final, [*functions, count], child)
        column = c.items(count.aggregateFunction().inputAggBufferAttributes())[0]
        return chain.child().child().child().child(), [column.withName(ROW_COUNT_COLUMN)]

    def _in_one_task(self, plan: Node) -> Node:
        """Return the plan in one task, even if the user has repartitioned it: the steps expect no others."""
        try:
            if self._c.name(plan.outputPartitioning()) == "SinglePartition$":
                return plan
        except IllegalArgumentException:
            pass  # a join before preparation, whose sides have different numbers of partitions
        return self._c.execution.CoalesceExec(1, plan)

    def _columns(self, aggregate: Node, key_count: int) -> list[Node]:
        """Return keys and buffers, under names of ours: Arrow refuses two columns of one name."""
        attributes = self._c.items(aggregate.output())
        return [
            attribute.withName(f"k{i}" if i < key_count else f"b{i - key_count}")
            for i, attribute in enumerate(attributes)
        ]

    def _batch_aggregate(self, node: Node, child: Node, results: list[Node] | None) -> Node:
        """Return the node as it is in a batch plan, over another child."""
        changes: dict[int, Any] = {
            _IS_STREAMING: False,
            _SHUFFLE_PARTITIONS: self._c.none,
            _CHILD: child,
        }
        if results is not None:
            changes[_RESULTS] = self._c.seq(results)
        return self._c.copy(node, changes)

    def _exchanged(self, plan: Node, keys: list[Node]) -> Node:
        """Exchange by all keys, also where Spark would need fewer: they decide where state lies."""
        if not keys:
            return plan  # Spark brings everything to one task by itself
        return exchange(self._c, plan, keys, self._partitions)

    def _step(
        self,
        function: Callable[..., Any],
        columns: list[Node],
        child: Node,
        keys: list[Node],
        counted: Sequence[Node] = (),
        keeps_place: bool = False,
    ) -> Node:
        """Return ``child`` with a state step on top.

        After the columns its input has the state partition of a row, which stays in a single task, and then
        those of ``counted``, which do not.
        """
        c = self._c
        output = columns
        place = c.alias(partition_of(c, keys, self._partitions), PARTITION_COLUMN)
        child = c.execution.ProjectExec(c.seq([*columns, place, *counted]), child)
        if self._single and keeps_place:
            output = [*columns, place.toAttribute()]
        udf = state_function(c, function, output, c.items(child.output()))
        step = c.execution.python.MapInArrowExec(udf, c.seq(output), child, False, c.none)
        # A merge takes the last columns of its input as the buffers: the partition must go.
        return step if output is columns else c.execution.ProjectExec(c.seq(columns), step)


def partition_of(catalyst: Catalyst, keys: list[Node], partitions: int) -> Node:
    """Return the expression of a row's state partition: the one that an exchange would send it to."""
    if not keys or partitions == 1:
        return catalyst.module("org.apache.spark.sql.catalyst.expressions.Literal").apply(0)
    physical = catalyst.jvm.org.apache.spark.sql.catalyst.plans.physical
    return physical.HashPartitioning(catalyst.seq(keys), partitions).partitionIdExpression()


def exchange(catalyst: Catalyst, plan: Node, keys: list[Node], partitions: int) -> Node:
    """Return the physical plan with an exchange by ``keys`` on top."""
    physical = catalyst.jvm.org.apache.spark.sql.catalyst.plans.physical
    exchanges = catalyst.execution.exchange
    origin = catalyst.module("org.apache.spark.sql.execution.exchange.ENSURE_REQUIREMENTS")
    partitioning = physical.HashPartitioning(catalyst.seq(keys), partitions)
    return exchanges.ShuffleExchangeExec(partitioning, plan, origin, catalyst.none, False)
