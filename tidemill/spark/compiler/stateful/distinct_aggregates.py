"""``count(DISTINCT x)`` and the like, with state.

Spark plans them as four aggregations, whose buffers cannot be kept. The same result comes from the set of
values, which Spark can merge: ``size(collect_set(x))``. The state then has every distinct value of a group. A
sum or an average folds the set with the expressions of Spark's own function, which know how many digits a
decimal needs on the way.
"""

from __future__ import annotations

from typing import Any

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stateful.key_types import require_keys
from tidemill.spark.session.settings import EXCLUDED_RULES

_SET = "tidemill_distinct_values"
# A value that occurs twice does not change these functions: DISTINCT makes no difference.
_REPEATABLE = {"max", "min", "bool_and", "every", "bool_or", "some", "any", "bit_and", "bit_or"}
_REPEATABLE |= {"collect_set", "approx_count_distinct", "max_by", "min_by"}
_FOLDED = {"sum", "avg", "try_sum", "try_avg"}
_DECIMAL_RULE = "org.apache.spark.sql.catalyst.optimizer.DecimalAggregates"


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
    if name not in {*_REPEATABLE, *_FOLDED, "count"}:
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
    return _folded(c, inputs[0], expression)


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


def _folded(c: Catalyst, value: Node, expression: Node) -> Node:
    values = _aggregated(
        c, c.expressions.aggregate.CollectSet(_normalized(c, value)), expression.filter()
    )

    def change(part: Node) -> Node | None:
        if c.name(part) != "AggregateExpression":
            return None
        return _fold(c, part.aggregateFunction(), value.dataType(), values)

    return c.transform(_with_decimals_as_spark_plans_them(c, expression), change)


def _with_decimals_as_spark_plans_them(c: Catalyst, expression: Node) -> Node:
    """Return the expression as the optimizer changes it: small decimals are averaged as doubles."""
    if _DECIMAL_RULE in c.jsession.conf().get(EXCLUDED_RULES, "").split(","):
        return expression
    nothing = c.seq([])
    leaf = c.logical.LocalRelation(nothing, nothing, False, c.none)
    holder = c.logical.Aggregate(nothing, c.seq([c.alias(expression, "x")]), leaf, c.none)
    return c.module(_DECIMAL_RULE).apply(holder).aggregateExpressions().apply(0).child()


def _fold(c: Catalyst, function: Node, value_type: Node, values: Node) -> Node:
    """Return ``aggregate(values, start, (buffers, value) -> buffers, buffers -> result)``."""
    value = _variable(c, "value", value_type)
    input_ = function.children().apply(0)
    own = c.expressions.UnscaledValue(value) if c.name(input_) == "UnscaledValue" else value
    function = function.withNewChildren(c.seq([own]))
    attributes = c.items(function.aggBufferAttributes())
    start = _struct(c, attributes, c.items(function.initialValues()))
    buffers = _variable(c, "buffers", start.dataType().asNullable())

    def read(part: Node) -> Node | None:
        if c.name(part) != "AttributeReference":
            return None
        for at, attribute in enumerate(attributes):
            if attribute.exprId().equals(part.exprId()):
                return c.expressions.GetStructField(buffers, at, c.none)
        return None

    updates = [c.transform(each, read) for each in c.items(function.updateExpressions())]
    return c.expressions.ArrayAggregate(
        values,
        start,
        c.expressions.LambdaFunction(
            _struct(c, attributes, updates), c.seq([buffers, value]), False
        ),
        c.expressions.LambdaFunction(
            c.transform(function.evaluateExpression(), read), c.seq([buffers]), False
        ),
    )


def _variable(c: Catalyst, name: str, kind: Node) -> Node:
    place = c.jvm.java.util.concurrent.atomic.AtomicReference()
    return c.expressions.NamedLambdaVariable(name, kind, True, c.new_id(), place)


def _struct(c: Catalyst, attributes: list[Node], values: list[Node]) -> Node:
    literal = c.module("org.apache.spark.sql.catalyst.expressions.Literal")
    fields = []
    for attribute, value in zip(attributes, values, strict=True):
        fields += [literal.apply(attribute.name()), value]
    return c.expressions.CreateNamedStruct(c.seq(fields))


def _parsed(c: Catalyst, text: str, values: Node) -> Node:
    """Return a Spark SQL expression with ``values`` as the set. It is not resolved yet."""
    parsed = c.module("org.apache.spark.sql.catalyst.parser.CatalystSqlParser").parseExpression(
        text
    )

    def change(expression: Node) -> Node | None:
        is_set = c.name(expression) == "UnresolvedAttribute" and expression.name() == _SET
        return values if is_set else None

    return c.transform(parsed, change)
