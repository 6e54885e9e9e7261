"""The time of the batch in place of ``current_timestamp()`` and the like: a batch that runs again gets the
same time.

All expressions of all nodes are rewritten, those of tables and subqueries, too. Spark's own engine leaves
``now()``, ``current_time()`` and everything in a subquery to the wall clock.
"""

from __future__ import annotations

from tidemill.spark.compiler.catalyst import Catalyst, Node

_CURRENT = {"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime"}
_TIME_ZONE_AWARE = "org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression"
# Also of ``current_user()`` and the like, which have nothing to do with the time.
_PATTERN = "CURRENT_LIKE"
_DAY_US = 86_400_000_000


class BatchTime:
    """Finds the expressions of a plan that ask for the time, and puts the time of a batch there."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst

    def is_asked_by(self, plan: Node) -> bool:
        """Return True if a plan asks for the time anywhere in it."""
        c = self._c
        if not c.has_pattern(plan, _PATTERN):
            return False
        return any(
            self._is_in(expression)
            for node in c.walk(plan)
            for expression in c.expressions_of(node)
        )

    def _is_in(self, expression: Node) -> bool:
        c = self._c
        if not c.has_pattern(expression, _PATTERN):
            return False
        return any(
            c.name(part) in _CURRENT or (c.is_subquery(part) and self.is_asked_by(part.plan()))
            for part in c.parts(expression)
        )

    def in_plan(self, plan: Node, time_ms: int) -> Node:
        """Return the plan with the time in all of its nodes."""
        if not self._c.has_pattern(plan, _PATTERN):
            return plan
        children = [self.in_plan(child, time_ms) for child in self._c.children(plan)]
        return self._c.with_children(self.in_node(plan, time_ms), children)

    def in_node(self, node: Node, time_ms: int) -> Node:
        """Return the node with the time in its own expressions; its children stay."""
        c = self._c
        if not any(c.has_pattern(each, _PATTERN) for each in c.expressions_of(node)):
            return node

        def literal(expression: Node) -> Node | None:
            if not c.has_pattern(expression, _PATTERN):
                return expression
            if c.is_subquery(expression):
                return expression.withNewPlan(self.in_plan(expression.plan(), time_ms))
            return self._literal(expression, time_ms)

        return c.transform_expressions(node, literal)

    def _literal(self, expression: Node, time_ms: int) -> Node | None:
        c = self._c
        name = c.name(expression)
        if name not in _CURRENT:
            return None
        has_zone = c.is_instance(expression, _TIME_ZONE_AWARE)
        zone = expression.timeZoneId() if has_zone else c.some("UTC")
        if name != "CurrentTime":
            return c.expressions.CurrentBatchTimestamp(
                time_ms, expression.dataType(), zone
            ).toLiteral()
        local = c.module("org.apache.spark.sql.types.TimestampNTZType")
        local_us = int(
            c.expressions.CurrentBatchTimestamp(time_ms, local, zone).toLiteral().value()
        )
        tick_us = 10 ** (6 - int(expression.dataType().precision()))
        time_of_day_us = local_us % _DAY_US // tick_us * tick_us
        return c.module("org.apache.spark.sql.catalyst.expressions.Literal").create(
            c.jvm.java.time.LocalTime.ofNanoOfDay(time_of_day_us * 1000), expression.dataType()
        )
