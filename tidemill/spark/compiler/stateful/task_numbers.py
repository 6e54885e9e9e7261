"""A state step takes its state partition from its rows; one without rows knows it by the number of its task.
Some operations of Spark run several partitions in one task, number tasks anew, or read only a part of the
rows: an exchange below them ends the stage of the step.
"""

from __future__ import annotations

from tidemill.spark.compiler.catalyst import Catalyst, Node

_STATEFUL = {"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark"}
_EXCHANGES = {"Sort", "RepartitionByExpression", "RebalancePartitions"}


def with_own_tasks(
    catalyst: Catalyst, node: Node, children: list[Node], tasks: int, single: bool
) -> Node:
    """Return the node over its rewritten children, with exchanges where they are needed.

    ``tasks`` is the number of tasks after an exchange: one if ``single``.
    """
    c = catalyst
    originals = c.children(node)
    match c.name(node):
        case "Union" if single:
            return c.logical.Repartition(1, False, c.with_children(node, children))
        case "Union":  # numbers the tasks of all children as a whole
            children = _exchanged(c, originals, children, tasks)
        case "Join" if c.join_keys(node) is None:
            # A product of partitions: each one of the stream is computed once for each one of the table.
            children = _exchanged(c, originals, children, tasks)
        case "LocalLimit":  # stops reading when it has enough
            children = _exchanged(c, originals, children, 1)
        case "Repartition" if not single and not node.shuffle() and _has_state(c, originals[0]):
            return c.logical.Repartition(node.numPartitions(), True, children[0])
    return c.with_children(node, children)


def _exchanged(c: Catalyst, originals: list[Node], children: list[Node], tasks: int) -> list[Node]:
    return [
        c.logical.Repartition(tasks, True, child) if _has_state(c, original) else child
        for original, child in zip(originals, children, strict=True)
    ]


def _has_state(c: Catalyst, plan: Node) -> bool:
    """Return True if a state step is in the last stage of an analyzed plan."""
    if not plan.isStreaming():
        return False
    name = c.name(plan)
    if name in _STATEFUL:
        return True
    if name in _EXCHANGES or (name == "Repartition" and plan.shuffle()):
        return False
    return any(_has_state(c, child) for child in c.children(plan))
