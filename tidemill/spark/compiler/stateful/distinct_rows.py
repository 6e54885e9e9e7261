"""``SELECT DISTINCT`` and ``UNION``: as an aggregation without functions, or as a deduplication.

To Spark a ``Distinct`` node is an aggregation: in update mode its result has a row again in every batch that
brings the row again, in complete mode it has all rows. (``DataFrame.distinct()`` is another node, a
deduplication.) A deduplication lets a row pass once. That is what an operator above needs that keeps state
itself, and what append mode can do without a watermark.
"""

from __future__ import annotations

from tidemill.common.output_modes import APPEND
from tidemill.spark.compiler.catalyst import Catalyst, Node

_KEEPS_STATE = frozenset({"Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark"})


def with_deduplications(
    catalyst: Catalyst, node: Node, output_mode: str, below_state: bool = False
) -> Node:
    """Return an analyzed plan whose ``Distinct`` nodes of the stream are deduplications where they can be."""
    c = catalyst
    if not node.isStreaming():
        return node
    name = c.name(node)
    below = below_state or name in _KEEPS_STATE
    children = c.children(node)
    new = [with_deduplications(c, child, output_mode, below) for child in children]
    if name == "Distinct" and (below_state or output_mode == APPEND):
        return c.logical.Deduplicate(new[0].output(), new[0], c.none)
    if all(a is b for a, b in zip(children, new, strict=True)):
        return node
    return c.with_children(node, new)
