"""Reading only those columns of a stream that its query uses.

Spark's optimizer cannot look into the Python function of a split leaf, so the function would have to make
all columns, and Spark would drop them. But where a query needs few of them, the optimizer puts a projection,
or an aggregation, close above the leaf, which says what is needed. Then the leaf makes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.stream_leaves import FETCH, SplitLeaf, is_fetch

# The result of these nodes has only what their expressions name.
_CHOOSING = {
    "ProjectExec",
    "HashAggregateExec",
    "ObjectHashAggregateExec",
    "SortAggregateExec",
}
# These hand over their input as it is, and look at what their expressions name.
_PASSING = {"FilterExec", "CollectMetricsExec"}
# Below any other node everything is read: it may use columns that it does not name.


class UsedColumns:
    """Narrows the split leaves of a physical plan. ``leaves`` has them by the ids of their columns."""

    def __init__(self, catalyst: Catalyst, leaves: Mapping[tuple[int, ...], SplitLeaf]) -> None:
        self._c = catalyst
        self._leaves = leaves

    def narrowed(self, plan: Node) -> Node:
        """Return the plan with leaves that make only what is used."""
        return self._narrowed(plan, None)

    def _narrowed(self, node: Node, used: frozenset[int] | None) -> Node:
        """Return the node with narrow leaves. ``used`` has the columns that are needed of it; None: all."""
        c = self._c
        if is_fetch(c, node):
            return node if used is None else self._leaf(node, used)
        name = c.name(node)
        below = None
        if name in _CHOOSING:
            below = self._named(node)
        elif name in _PASSING and used is not None:
            below = used | self._named(node)
        before = c.children(node)
        children = [self._narrowed(child, below) for child in before]
        if all(new is old for new, old in zip(children, before, strict=True)):
            return node
        return c.with_children(node, children)

    def _named(self, node: Node) -> frozenset[int]:
        return frozenset(map(_id, self._c.items(node.references().toSeq())))

    def _leaf(self, node: Node, used: frozenset[int]) -> Node:
        c = self._c
        output = c.items(node.output())
        leaf = self._leaves.get(tuple(map(_id, output)))
        narrow: Callable[..., Any] | None = getattr(leaf and leaf.fetch, "for_columns", None)
        # Rows without columns would not be counted: then the smallest column stands for them.
        kept = [each for each in output if _id(each) in used] or [
            min(output, key=lambda attribute: int(attribute.dataType().defaultSize()))
        ]
        if narrow is None or len(kept) == len(output):
            return node
        base = c.items(node.child().output())
        function = narrow([str(attribute.name()) for attribute in kept])
        expression = c.python_function(function, kept, base, FETCH)
        return c.execution.python.MapInArrowExec(
            expression, c.seq(kept), node.child(), node.isBarrier(), node.profile()
        )


def _id(attribute: Node) -> int:
    return int(attribute.exprId().id())
