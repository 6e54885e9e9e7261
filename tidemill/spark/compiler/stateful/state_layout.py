"""Which columns an aggregation keeps as state, and what they mean: read from the plan for the checkpoint.

The optimizer removes functions that the result does not use, rewrites others, and gives columns new names. A
function keeps its result id through all of that: by it, the buffers in the physical plan are known by the
functions that the user wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.tasks.state_layout import KeptFunction, StateLayout

_WINDOW = "spark.timeWindow"


@dataclass(frozen=True)
class WrittenFunction:
    """An aggregate function of the analyzed plan."""

    text: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class WrittenAggregation:
    """An aggregation as the user wrote it. ``by_id`` has the functions that are computed, by result id."""

    keys: tuple[str, ...]
    functions: tuple[str, ...] = ()
    by_id: dict[int, WrittenFunction] = field(default_factory=dict)
    windows: tuple[str, ...] = ()


def written_aggregation(catalyst: Catalyst, aggregate: Node, computed: Node) -> WrittenAggregation:
    """Return what an ``Aggregate`` node of the analyzed plan says.

    ``computed`` is the same node with other functions for those that cannot be kept as state.
    """
    c = catalyst
    keys = c.items(aggregate.groupingExpressions())
    by_id = {
        int(part.resultId().id()): WrittenFunction(
            str(part.sql()), tuple(_type(each) for each in c.children(part.aggregateFunction()))
        )
        for part in _functions(c, computed)
    }
    return WrittenAggregation(
        tuple(f"{key.sql()} {_type(key)}" for key in keys),
        tuple(str(part.sql()) for part in _functions(c, aggregate)),
        by_id,
        _windows(c, aggregate, keys),
    )


def _functions(c: Catalyst, aggregate: Node) -> list[Node]:
    return [
        part
        for expression in c.items(aggregate.aggregateExpressions())
        for part in c.parts(expression)
        if c.name(part) == "AggregateExpression"
    ]


def layout_of(
    catalyst: Catalyst, partial: Node, keys: list[Node], written: WrittenAggregation
) -> StateLayout:
    """Return what the state of an aggregation consists of. ``partial`` is its lower physical node."""
    return StateLayout(
        tuple(_type(key) for key in keys),
        tuple(
            _kept(catalyst, part, written)
            for part in catalyst.items(partial.aggregateExpressions())
        ),
        written.windows,
    )


def _kept(c: Catalyst, expression: Node, written: WrittenAggregation) -> KeptFunction:
    function = expression.aggregateFunction()
    own = written.by_id.get(int(expression.resultId().id()))
    if own is None:
        inputs = tuple(_type(each) for each in c.children(function))
        own = WrittenFunction(str(expression.sql()), inputs)
    buffers = tuple(_type(each) for each in c.items(function.aggBufferAttributes()))
    return KeptFunction(own.text, own.inputs, buffers)


def _type(expression: Node) -> str:
    return str(expression.dataType().catalogString())


def _windows(c: Catalyst, aggregate: Node, keys: list[Node]) -> tuple[str, ...]:
    """Describe the time windows among the keys: windows of all lengths have columns of one type."""
    return tuple(
        f"{key.name()} of {_lengths(c, aggregate, key)}"
        for key in keys
        if c.name(key) == "AttributeReference" and key.metadata().contains(_WINDOW)
    )


def _lengths(c: Catalyst, aggregate: Node, window: Node) -> str:
    """Return the numbers that the analyzer computes a window from, below the aggregation.

    They are its length, its slide and its start; if windows overlap, multiples of the slide too.
    """
    lengths_us = {
        int(part.value())
        for node in c.walk(aggregate.child())
        for expression in _window_expressions(c, node, window)
        for part in c.parts(expression)
        if c.name(part) == "Literal" and c.name(part.dataType()) == "LongType$"
    }
    return ", ".join(f"{length / 1e6:g} s" for length in sorted(lengths_us) if length)


def _window_expressions(c: Catalyst, node: Node, window: Node) -> list[Node]:
    """Return the expressions of a node that compute the window, none for most nodes."""
    match c.name(node):
        case "Project":
            columns = c.items(node.projectList())
            return [
                each
                for each in columns
                if c.name(each) == "Alias" and each.exprId().equals(window.exprId())
            ]
        case "Expand" if any(
            each.exprId().equals(window.exprId()) for each in c.items(node.output())
        ):
            return c.expressions_of(node)
    return []
