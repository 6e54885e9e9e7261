"""Which operations a stream may go through, in which output mode.

A query with any other operation is refused when it starts; the error names the operation and another way.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.common.output_modes import APPEND, COMPLETE
from tidemill.errors import QueryError, UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.event_time import event_time_column
from tidemill.spark.compiler.stateful.distinct_aggregates import require_distinct
from tidemill.spark.compiler.stateful.key_types import require_keys

# Operations that look at one row at a time, or only say how rows are spread over tasks.
_STATELESS = {
    "Project", "Filter", "SubqueryAlias", "View", "Generate", "Expand", "MapInPandas", "MapInArrow",
    "MapPartitions", "DeserializeToObject", "SerializeFromObject", "TypedFilter", "Repartition",
    "RepartitionByExpression", "RebalancePartitions", "ResolvedHint", "UnresolvedHint",
    "EventTimeWatermark", "CollectMetrics", "StreamingRelation", "MapElements", "BatchEvalPython",
    "ArrowEvalPython", "AppendColumns", "Unpivot", "LateralJoin", "EmptyRelation", "NoopSortBy",
    "PipeOperator",
}  # fmt: skip

_LATER = "is not supported yet"
_IN_FOREACH_BATCH = "use it in foreachBatch, on the rows of each batch"
_STATE_OF_THE_USER = (
    "this is planned, and not there yet. Use groupBy with an aggregate function, or detach the session to "
    "run the query on Structured Streaming"
)
_NO_BUFFERS = (
    "a pandas aggregate function has no partial results that could be kept as state. "
    "Use one of Spark's aggregate functions, or foreachBatch"
)
# By the node of the plan: the name of the operation, and what to do instead.
_UNSUPPORTED = {
    "Window": (
        "a window function",
        "analytic functions (OVER) need all rows of a stream. Aggregate by a time window instead: "
        'groupBy(window("time", "10 minutes"), ...)',
    ),
    "Offset": (
        "offset()",
        "OFFSET needs an order of all rows. Use it in foreachBatch, or on the sink's table",
    ),
    "Tail": ("tail()", "use it in foreachBatch, or on the sink's table"),
    "Intersect": ("intersect()", "use dropDuplicates and a join with a static DataFrame"),
    "Except": ("subtract()/exceptAll()", "use a left anti join with a static DataFrame"),
    "Sample": (
        "sample()",
        "which rows are taken would depend on how they are spread over tasks. Take them by what is in "
        'them: filter("abs(hash(id)) % 100 < 5")',
    ),
    "FlatMapGroupsInPandas": (
        "applyInPandas",
        "groupBy().applyInPandas sees all rows of a group at once, and a stream never "
        "has them. Use it in foreachBatch, or an aggregate function",
    ),
    "FlatMapGroupsInArrow": (
        "applyInArrow",
        "groupBy().applyInArrow sees all rows of a group at once, and a stream never "
        "has them. Use it in foreachBatch, or an aggregate function",
    ),
    "FlatMapCoGroupsInPandas": (
        "cogroup().applyInPandas",
        "cogroup().applyInPandas sees all rows of a group at once, and a stream "
        "never has them. Use it in foreachBatch, or join the stream with a static DataFrame",
    ),
    "FlatMapCoGroupsInArrow": (
        "cogroup().applyInArrow",
        "cogroup().applyInArrow sees all rows of a group at once, and a stream "
        "never has them. Use it in foreachBatch, or join the stream with a static DataFrame",
    ),
    "FlatMapGroupsInPandasWithState": ("applyInPandasWithState", _STATE_OF_THE_USER),
    "TransformWithState": ("transformWithState", _STATE_OF_THE_USER),
    "TransformWithStateInPySpark": ("transformWithState", _STATE_OF_THE_USER),
    "TransformWithStateInPandas": ("transformWithStateInPandas", _STATE_OF_THE_USER),
    "FlatMapGroupsWithState": ("flatMapGroupsWithState", _STATE_OF_THE_USER),
}


@dataclass
class StreamFacts:
    """The stateful operations of a plan, and whether it reads a stream."""

    streaming: bool = False
    aggregates: int = 0
    deduplicates: int = 0

    @classmethod
    def combined(cls, facts: list[StreamFacts]) -> StreamFacts:
        return cls(
            any(f.streaming for f in facts),
            sum(f.aggregates for f in facts),
            sum(f.deduplicates for f in facts),
        )


class SupportedOperations:
    """Checks an analyzed plan, node by node from the leaves up."""

    def __init__(self, catalyst: Catalyst, output_mode: str) -> None:
        self._c = catalyst
        self._mode = output_mode

    def check(self, plan: Node) -> StreamFacts:
        """Return the facts of the plan. Raises for an operation that is not supported."""
        facts = self._check(plan)
        if self._mode == COMPLETE and facts.streaming and not facts.aggregates:
            raise QueryError(
                "outputMode('complete') writes the whole result after each batch, and this query keeps no "
                "result: it has no aggregation. Use outputMode('append'), or aggregate (groupBy).",
                operation="outputMode('complete')",
            )
        return facts

    def _check(self, node: Node) -> StreamFacts:
        children = [self._check(child) for child in self._c.children(node)]
        facts = StreamFacts.combined(children)
        name = self._c.name(node)
        if name == "StreamingRelation":
            facts.streaming = True
        if not facts.streaming:
            return facts
        self._expressions(node)
        if name in _STATELESS:
            return facts
        match name:
            case "Union":
                self._union(children)
            case "Aggregate":
                self._aggregate(node, facts)
            case "Distinct":
                require_keys(self._c, "DISTINCT", self._c.items(node.child().output()))
                self._after_aggregation("DISTINCT", facts)
                facts.aggregates += 1
            case "Deduplicate":
                require_keys(self._c, "dropDuplicates", self._c.items(node.keys()))
                self._deduplicate("dropDuplicates", facts)
            case "DeduplicateWithinWatermark":
                require_keys(self._c, "dropDuplicatesWithinWatermark", self._c.items(node.keys()))
                self._deduplicate("dropDuplicatesWithinWatermark", facts)
                if event_time_column(self._c, self._c.items(node.child().output())) is None:
                    raise QueryError(
                        "dropDuplicatesWithinWatermark needs a watermark: call withWatermark(column, "
                        "delay) before it.",
                        operation="dropDuplicatesWithinWatermark",
                    )
            case "Join":
                self._join(node, children)
            case "Sort" | "GlobalLimit" | "LocalLimit":
                self._sort_or_limit(name, facts)
            case _:
                operation, instead = _UNSUPPORTED.get(name, (name, _IN_FOREACH_BATCH))
                raise UnsupportedError(f"{operation} over a stream is not supported: {instead}.")
        return facts

    def _expressions(self, node: Node) -> None:
        for expression in self._c.expressions_of(node):
            if not expression.deterministic() and any(
                self._c.name(part) == "MonotonicallyIncreasingID"
                for part in self._c.parts(expression)
            ):
                raise UnsupportedError(
                    "monotonically_increasing_id() over a stream is not supported: it begins anew in every "
                    "batch. Use uuid(), or number the rows in foreachBatch, by the id of the batch."
                )

    def _union(self, children: list[StreamFacts]) -> None:
        if not all(child.streaming for child in children):
            raise UnsupportedError(
                "a union of a stream and a static DataFrame is not supported: every batch would have the "
                "static rows again. Write them to the sink before the query starts, or read them as a "
                "stream too."
            )

    def _aggregate(self, node: Node, facts: StreamFacts) -> None:
        c = self._c
        if facts.aggregates:
            raise UnsupportedError(
                "an aggregation of an aggregation over a stream is not supported: the first one's rows "
                "change later. Write the first result to a sink, and read that as a stream of its own."
            )
        for expression in c.expressions_of(node):
            for part in c.parts(expression):
                self._aggregate_function(part)
        require_keys(c, "groupBy", c.items(node.groupingExpressions()))
        keys = [self._attribute(key) for key in c.items(node.groupingExpressions())]
        for key in keys:
            if key is not None and key.metadata().contains("spark.sessionWindow"):
                raise UnsupportedError(
                    f"session_window {_LATER}: use window() with a fixed length, or detach the session to "
                    "run the query on Structured Streaming."
                )
        if self._mode == APPEND:
            known = [key for key in keys if key is not None]
            if event_time_column(c, known) is None:
                raise QueryError(
                    "outputMode('append') writes a group once, when it cannot change any more, and without "
                    "a watermark groups may always change. Call withWatermark(column, delay) before "
                    'groupBy, and group by that column or window(column, "10 minutes"); or use '
                    "outputMode('update') or outputMode('complete').",
                    operation="groupBy",
                )
        facts.aggregates += 1

    def _aggregate_function(self, part: Node) -> None:
        c = self._c
        name = c.name(part)
        if name == "PythonUDAF":
            raise UnsupportedError(
                f"the aggregate function {part.name()}, of pandas or Arrow, over a stream is not "
                f"supported: {_NO_BUFFERS}."
            )
        if name == "Measure":
            raise UnsupportedError(
                "measure() over a stream is not supported: a metric view is not a stream. Write the "
                "aggregate function that the measure stands for."
            )
        if name == "AggregateExpression" and part.isDistinct():
            require_distinct(c, part)

    def _attribute(self, key: Node) -> Node | None:
        is_named = self._c.is_instance(
            key, "org.apache.spark.sql.catalyst.expressions.NamedExpression"
        )
        return key.toAttribute() if is_named else None

    def _deduplicate(self, what: str, facts: StreamFacts) -> None:
        self._after_aggregation(what, facts)
        facts.deduplicates += 1

    def _after_aggregation(self, what: str, facts: StreamFacts) -> None:
        if facts.aggregates and self._mode != APPEND:
            raise UnsupportedError(
                f"{what} after an aggregation is not supported in outputMode({self._mode!r}): the rows of "
                f"an aggregation change from batch to batch. Call {what} before groupBy."
            )

    def _join(self, node: Node, children: list[StreamFacts]) -> None:
        left, right = (child.streaming for child in children)
        kind = str(node.joinType().sql()).upper()
        if left and right:
            raise UnsupportedError(
                f"a join of two streams {_LATER}. A stream can be joined with a static DataFrame; or "
                "detach the session to run the query on Structured Streaming."
            )
        stream, side = ("left", "right") if left else ("right", "left")
        allowed = {"INNER", "CROSS", f"{stream.upper()} OUTER"}
        if left:
            allowed |= {"LEFT SEMI", "LEFT ANTI", "EXISTENCEJOIN"}
        if kind not in allowed and not kind.startswith("EXISTENCE"):
            raise UnsupportedError(
                f"a {kind.lower()} join with the stream on the {stream} and a static DataFrame on the "
                f"{side} is not supported: rows of the static side that match nothing yet may match later. "
                f"Use an inner join or a {stream} outer join."
            )

    def _sort_or_limit(self, name: str, facts: StreamFacts) -> None:
        what = "orderBy/sort" if name == "Sort" else "limit"
        if self._mode != COMPLETE or not facts.aggregates:
            raise UnsupportedError(
                f"{what} over a stream is only supported after an aggregation, in outputMode('complete'): "
                "a stream has no last row. Sort or limit in foreachBatch, or when you read the result."
            )
