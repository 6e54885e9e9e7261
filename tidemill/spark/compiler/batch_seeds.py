"""The seeds of ``rand()``, ``uuid()`` and the like: a batch has its own, and keeps them when it runs again.

1. When a batch is planned, one random number is drawn for it. ``offsets/N`` has it: from now on the batch has
   the same seeds whenever it runs. For a log that has none, the number comes from the ids of query and batch.
2. When the query is compiled, each expression with a seed gets a number, in the order of the analyzed plan.
   A seed that stands for the number is put in: so the expression is recognised in the physical plan, whatever
   the optimizer has made of the rest.
3. For each batch, the nodes that have such an expression are copied, with a seed that comes from the batch's
   number and the expression's.

As in Spark's own engine, an explicit seed (``rand(42)``) is replaced, too, because all batches would get the
same values; and a subquery that gives one value has the same seeds in all batches.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node

_SEEDED = "org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed"
_PATTERN = "EXPRESSION_WITH_RANDOM_SEED"

Renewal = Callable[[int], Any]
"""Makes a part of a plan with the seeds of a batch, whose number is the argument."""


def new_batch_seed() -> int:
    """Draw the number of a new batch. It is not 0, which stands for a log without one."""
    return secrets.randbelow((1 << 63) - 1) + 1


def seed_of(*parts: object) -> int:
    """Return a positive number of 63 bits that depends on the parts, on any machine and at any time."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


class BatchSeeds:
    """Numbers the seeds of a query's plan, and finds them again in the physical plans made from it."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst
        # The number of an expression, by the seed that it has got in place of its own.
        self._numbers: dict[int, int] = {}

    def is_in(self, tree: Node) -> bool:
        """Return True if a plan or an expression has a random seed anywhere in it."""
        return self._c.has_pattern(tree, _PATTERN)

    def numbered(self, plan: Node) -> Node:
        """Return the analyzed plan with numbers in place of its seeds.

        A table that is cached stays as it is, or Spark would not find it in the cache; its expressions count.
        """
        if not self.is_in(plan):
            return plan
        c = self._c
        children = [self.numbered(child) for child in c.children(plan)]
        numbered = c.with_children(c.transform_expressions(plan, self._numbered), children)
        return plan if not plan.isStreaming() and c.is_cached(plan) else numbered

    def _numbered(self, expression: Node) -> Node:
        c = self._c
        if not self.is_in(expression):
            return expression
        if c.is_subquery(expression):
            return expression.withNewPlan(self.numbered(expression.plan()))
        children = c.children(expression)
        expression = c.with_children(expression, [self._numbered(child) for child in children])
        if not c.is_instance(expression, _SEEDED):
            return expression
        number = len(self._numbers)
        seed = seed_of(number)
        self._numbers[seed] = number
        new = expression.withNewSeed(seed)
        # uniform() forgets its time zone, which it has as all functions that cast have.
        return new if new.resolved() else new.withTimeZone(expression.timeZoneId().get())

    def renewals(self, node: Node) -> dict[int, Renewal]:
        """Return what makes the parameters of a physical node with a batch's seeds, by their positions."""
        if not any(map(self.is_in, self._c.expressions_of(node))):
            return {}
        found = {
            index: self._renewal(node.productElement(index)) for index in range(node.productArity())
        }
        return {index: renewal for index, renewal in found.items() if renewal is not None}

    def _renewal(self, element: Any) -> Renewal | None:
        """Return what makes the element with a batch's seeds; None if there is no seed in it."""
        c = self._c
        match c.holds(element):
            case "expression" if self.is_in(element) and not c.is_subquery(element):
                return self._renewal_of_expression(element)
            case "option":
                of_value = self._renewal(element.get())
                return None if of_value is None else lambda seed: c.some(of_value(seed))
            case "list":
                items = c.items(element)
                of_items = [self._renewal(item) for item in items]
                return self._renewal_of_list(items, of_items) if any(of_items) else None
        return None

    def _renewal_of_expression(self, expression: Node) -> Renewal | None:
        c = self._c
        children = c.children(expression)
        of_children = [self._renewal(child) for child in children]
        of_list = self._renewal_of_list(children, of_children) if any(of_children) else None
        number = self._number(expression)
        if number is None and of_list is None:
            return None

        def renew(seed: int) -> Node:
            new = expression if of_list is None else expression.withNewChildren(of_list(seed))
            return new if number is None else new.withNewSeed(seed_of(seed, number))

        return renew

    def _renewal_of_list(self, items: list[Any], of_items: list[Renewal | None]) -> Renewal:
        return lambda seed: self._c.seq(
            item if renew is None else renew(seed)
            for item, renew in zip(items, of_items, strict=True)
        )

    def _number(self, expression: Node) -> int | None:
        if not self._c.is_instance(expression, _SEEDED):
            return None
        seed = expression.seedExpression()
        return self._numbers.get(int(seed.value())) if self._c.name(seed) == "Literal" else None
