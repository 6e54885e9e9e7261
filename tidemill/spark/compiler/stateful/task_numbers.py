"""A state step knows its partition by the number of its task. Some operations of Spark run the rows of
several partitions in one task, number their tasks anew, or read a part of the rows only: below those an
exchange ends the step's stage.
"""

from __future__ import annotations

from tidemill.spark.compiler.catalyst import Catalyst, Node

_STATEFUL = {"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark"}
_EXCHANGES = {"Sort", "RepartitionByExpression", "RebalancePartitions"}


def with_own_tasks(
    catalyst: Catalyst, node: Node, children: list[Node], tasks: int, single: bool
) -> Node:
    """The node over its rewritten children. ``tasks`` is how many follow an exchange: one if ``single``."""
    c = catalyst
    befores = c.children(node)
    match c.name(node):
        case "Union" if single:
            return c.logical.Repartition(1, False, c.with_children(node, children))
        case "Union":  # numbers the tasks of all children in one go
            children = _exchanged(c, befores, children, tasks)
        case "Join" if c.join_keys(node) is None:
            # A product of partitions: every one of the stream is computed for each of the table.
            children = _exchanged(c, befores, children, tasks)
        case "LocalLimit":  # stops reading when it has enough
            children = _exchanged(c, befores, children, 1)
        case "Repartition" if not single and not node.shuffle() and _has_state(c, befores[0]):
            return c.logical.Repartition(node.numPartitions(), True, children[0])
    return c.with_children(node, children)


def _exchanged(c: Catalyst, befores: list[Node], children: list[Node], tasks: int) -> list[Node]:
    return [
        c.logical.Repartition(tasks, True, child) if _has_state(c, before) else child
        for before, child in zip(befores, children, strict=True)
    ]


def _has_state(c: Catalyst, plan: Node) -> bool:
    """True if a state step is in the last stage of an analyzed plan."""
    if not plan.isStreaming():
        return False
    name = c.name(plan)
    if name in _STATEFUL:
        return True
    if name in _EXCHANGES or (name == "Repartition" and plan.shuffle()):
        return False
    return any(_has_state(c, child) for child in c.children(plan))
