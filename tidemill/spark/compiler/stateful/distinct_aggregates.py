"""``count(DISTINCT x)`` and the like, with state.

Spark plans them as four aggregations, whose buffers cannot be kept. The same result comes from the set of
values, which Spark can merge: ``size(collect_set(x))``. The state then has every distinct value of a group.
"""

from __future__ import annotations

from typing import Any

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stateful.key_types import require_keys

_SET = "tidemill_distinct_values"
# A value that occurs twice does not change these functions: DISTINCT makes no difference.
_REPEATABLE = {"max", "min", "bool_and", "every", "bool_or", "some", "any", "bit_and", "bit_or"}
_REPEATABLE |= {"collect_set", "approx_count_distinct", "max_by", "min_by"}


def with_sets(catalyst: Catalyst, aggregate: Node) -> Node:
    """Return an ``Aggregate`` node without DISTINCT, and with the same results."""

    def change(expression: Node) -> Node | None:
        if catalyst.name(expression) != "AggregateExpression" or not expression.isDistinct():
            return None
        return _without_distinct(catalyst, expression)

    changed = catalyst.transform_expressions(aggregate, change)
    return changed if changed.resolved() else _resolved(catalyst, changed)


def _resolved(c: Catalyst, aggregate: Node) -> Node:
    """Return the node analyzed by itself: the plan below is analyzed already, and must stay as it is."""
    child = aggregate.child()
    leaf = c.logical.LocalRelation(child.output(), c.seq([]), False, c.none)
    analyzed = c.analyzed(c.with_children(aggregate, [leaf]))
    return c.with_children(analyzed, [child])


def require_distinct(catalyst: Catalyst, expression: Node) -> None:
    """Refuse an aggregate expression whose DISTINCT is not supported."""
    function = expression.aggregateFunction()
    name = str(function.prettyName())
    if name not in _REPEATABLE:
        require_keys(catalyst, f"{name}(DISTINCT ...)", catalyst.items(function.children()))
    if name not in {*_REPEATABLE, "count", "sum", "avg"}:
        raise UnsupportedError(
            f"{name}(DISTINCT ...) over a stream is not supported: count, sum and avg are. Remove the "
            "duplicates first (dropDuplicates of the keys and the value), then aggregate."
        )


def _without_distinct(c: Catalyst, expression: Node) -> Node:
    function = expression.aggregateFunction()
    name = str(function.prettyName())
    if name in _REPEATABLE:
        return _aggregated(c, function, expression.filter())
    inputs = c.items(function.children())
    if name == "count":
        return _count(c, inputs, expression.filter())
    return _sum_or_average(c, name, inputs[0], expression)


def _aggregated(c: Catalyst, function: Node, condition: Any) -> Node:
    expression = function.toAggregateExpression()
    if condition.isEmpty():
        return expression
    return c.copy(expression, {3: condition})


def _normalized(c: Catalyst, value: Node) -> Node:
    """Return the value with -0.0 as 0.0: DISTINCT takes them for equal."""
    if c.name(value.dataType()) not in ("DoubleType$", "FloatType$"):
        return value
    optimizer = c.jvm.org.apache.spark.sql.catalyst.optimizer
    return c.expressions.KnownFloatingPointNormalized(optimizer.NormalizeNaNAndZero(value))


def _count(c: Catalyst, inputs: list[Node], condition: Any) -> Node:
    values = [_normalized(c, value) for value in inputs]
    if len(values) == 1:
        kept = values[0]
    else:
        # A row with a null in any of the columns does not count. A set leaves nulls out.
        struct = c.module("org.apache.spark.sql.catalyst.expressions.CreateStruct").apply(
            c.seq(values)
        )
        complete = c.expressions.IsNotNull(values[0])
        for value in values[1:]:
            complete = c.expressions.And(complete, c.expressions.IsNotNull(value))
        nothing = c.module("org.apache.spark.sql.catalyst.expressions.Literal").create(
            None, struct.dataType()
        )
        kept = c.expressions.If(complete, struct, nothing)
    values_seen = _aggregated(c, c.expressions.aggregate.CollectSet(kept), condition)
    return _parsed(c, f"cast(size({_SET}) as bigint)", values_seen)


def _sum_or_average(c: Catalyst, name: str, value: Node, expression: Node) -> Node:
    values = _aggregated(
        c, c.expressions.aggregate.CollectSet(_normalized(c, value)), expression.filter()
    )
    result = str(expression.dataType().sql())
    total = result
    if name == "avg" and result.startswith("DECIMAL"):
        precision, scale = (int(part) for part in result[8:-1].split(","))
        total = f"DECIMAL({min(38, precision + 6)},{max(0, scale - 4)})"
    summed = (
        f"aggregate({_SET}, cast(0 as {total}), "
        f"(tidemill_a, tidemill_b) -> cast(tidemill_a + tidemill_b as {total}))"
    )
    if name == "avg":
        summed = f"cast({summed} / size({_SET}) as {result})"
    return _parsed(c, f"if(size({_SET}) = 0, null, {summed})", values)


def _parsed(c: Catalyst, text: str, values: Node) -> Node:
    """Return a Spark SQL expression with ``values`` as the set. It is not resolved yet."""
    parsed = c.module("org.apache.spark.sql.catalyst.parser.CatalystSqlParser").parseExpression(
        text
    )

    def change(expression: Node) -> Node | None:
        is_set = c.name(expression) == "UnresolvedAttribute" and expression.name() == _SET
        return values if is_set else None

    return c.transform(parsed, change)
