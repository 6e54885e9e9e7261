"""The time of the batch in place of ``current_timestamp()`` and the like: a batch that runs again gets the
same time.
"""

from __future__ import annotations

from tidemill.spark.compiler.catalyst import Catalyst, Node

_CURRENT = {"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp"}
_TIME_ZONE_AWARE = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"


class BatchTime:
    """Finds the expressions of a plan that ask for the time, and puts the time of a batch there."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst
        patterns = catalyst.module("org.apache.spark.sql.catalyst.trees.TreePattern")
        self._current_like = patterns.CURRENT_LIKE()

    def is_asked_by(self, tree: Node) -> bool:
        """Return True if a plan, or an expression, asks for the time anywhere in it."""
        return bool(tree.containsPattern(self._current_like))

    def in_plan(self, plan: Node, time_ms: int) -> Node:
        """Return the plan with the time in all of its nodes."""
        if not self.is_asked_by(plan):
            return plan
        children = [self.in_plan(child, time_ms) for child in self._c.children(plan)]
        return self._c.with_children(self.in_node(plan, time_ms), children)

    def in_node(self, node: Node, time_ms: int) -> Node:
        """Return the node with the time in its own expressions; its children stay."""
        if not any(self.is_asked_by(expression) for expression in self._c.expressions_of(node)):
            return node

        def literal(expression: Node) -> Node | None:
            c = self._c
            if c.name(expression) not in _CURRENT:
                return None
            has_zone = c.is_instance(expression, _TIME_ZONE_AWARE)
            zone = expression.timeZoneId() if has_zone else c.some("UTC")
            current = c.expressions.CurrentBatchTimestamp(time_ms, expression.dataType(), zone)
            return current.toLiteral()

        return self._c.transform_expressions(node, literal)
