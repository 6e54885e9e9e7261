"""Nodes that make each batch from the same batch of their parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.errors import ProgramError
from tidemill.spark.rdds.record_chain import apply_step
from tidemill.streaming.graph.node import DStreamNode

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.tasks.record_steps import RecordStep

RDDFunction = Callable[..., "RDD[Any] | None"]
"""A function of a batch time in milliseconds and one RDD for each parent."""


class TransformedNode(DStreamNode):
    """Applies a function to the RDDs of its parents, which all have the same slide."""

    def __init__(self, parents: Sequence[DStreamNode], func: RDDFunction) -> None:
        super().__init__(parents[0].graph, parents[0].slide_ms, parents)
        self._func = func

    def compute(self, time_ms: int) -> RDD[Any] | None:
        rdds = [parent.get_or_compute(time_ms) for parent in self.dependencies]
        if any(rdd is None for rdd in rdds):
            return None
        return self._func(time_ms, *rdds)


def per_rdd(parent: DStreamNode, func: Callable[[RDD[Any]], RDD[Any]]) -> TransformedNode:
    """Apply ``func`` to the RDD of each batch."""
    return TransformedNode([parent], lambda _, rdd: func(rdd))


def per_partition(
    parent: DStreamNode,
    func: Callable[[int, Iterable[Any]], Iterable[Any]],
    preserves_partitioning: bool = False,
) -> TransformedNode:
    """Apply ``func`` to the number of each partition and an iterator over its records."""
    return per_rdd(parent, lambda rdd: rdd.mapPartitionsWithIndex(func, preserves_partitioning))


def per_record(
    parent: DStreamNode, step: RecordStep, preserves_partitioning: bool = False
) -> TransformedNode:
    """Apply ``step`` to each record; a chain of such nodes runs as one loop in a task."""
    return per_rdd(parent, lambda rdd: apply_step(rdd, step, preserves_partitioning))


def combine_nodes(
    one: DStreamNode, other: DStreamNode, func: Callable[[int, RDD[Any], RDD[Any]], RDD[Any] | None]
) -> TransformedNode:
    """Apply ``func`` to the batch time and the RDDs of two streams of one context."""
    if other.graph is not one.graph:
        raise ProgramError(
            "two DStreams of different StreamingContexts cannot be combined", str(other.site)
        )
    if other.slide_ms != one.slide_ms:
        raise ProgramError(
            f"the DStreams have different slide durations, {one.slide_ms} ms and "
            f"{other.slide_ms} ms: give them the same with window()",
            str(other.site),
        )
    return TransformedNode([one, other], func)
