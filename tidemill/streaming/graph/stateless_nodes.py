"""The nodes of a graph that have no history of their own: inputs, transformations, windows, outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.batches.batch import AdmissionLimit, OffsetRange
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.scheduling.job import Job

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tidemill.batches.source import RecordSource
    from tidemill.streaming.graph.dstream_graph import DStreamGraph

RDDFunction = Callable[..., "RDD[Any] | None"]
"""Called with a batch time in milliseconds and one RDD for each parent."""


class InputNode(DStreamNode):
    """Reads the range of its source that the planner gave to the batch."""

    def __init__(
        self,
        graph: DStreamGraph,
        make_source: Callable[[SparkContext], RecordSource],
        limit: AdmissionLimit,
        now_ms: int,
    ) -> None:
        super().__init__(graph, graph.batch_ms)
        self.make_source = make_source
        self.limit = limit
        self.source = make_source(graph.spark_context)
        self.source.defined(now_ms)
        self.source_id = graph.add_input(self)

    def forget_run(self) -> None:
        super().forget_run()
        self.__dict__.pop("source", None)
        self._ranges: dict[int, OffsetRange] = {}

    def attach(self, spark_context: SparkContext) -> None:
        """Make the source again, for a program that was read from its checkpoint."""
        self.source = self.make_source(spark_context)

    def plan(self, time_ms: int, range_: OffsetRange) -> None:
        self._ranges[time_ms] = range_

    def compute(self, time_ms: int) -> RDD[Any] | None:
        range_ = self._ranges.get(time_ms)
        return None if range_ is None else self.source.read(range_)

    def clear_metadata(self, time_ms: int) -> None:
        super().clear_metadata(time_ms)
        for at_ms in [at_ms for at_ms in self._ranges if at_ms <= time_ms - self.remember_ms]:
            del self._ranges[at_ms]


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


class WindowedNode(DStreamNode):
    """The union of the parent's RDDs in a window that ends with the batch."""

    def __init__(self, parent: DStreamNode, window_ms: int, slide_ms: int) -> None:
        super().__init__(parent.graph, slide_ms, [parent])
        self._window_ms = window_ms
        # Every RDD of the parent will be read by several windows.
        if parent.storage_level is None:
            parent.storage_level = StorageLevel.MEMORY_ONLY

    @property
    def parent_remember_ms(self) -> int:
        return self.remember_ms + self._window_ms

    def compute(self, time_ms: int) -> RDD[Any] | None:
        (parent,) = self.dependencies
        rdds = parent.slice(time_ms - self._window_ms + parent.slide_ms, time_ms)
        spark_context = self.graph.spark_context
        if not rdds:
            return spark_context.emptyRDD()
        return rdds[0] if len(rdds) == 1 else spark_context.union(rdds)


class OutputNode(DStreamNode):
    """Runs a function on every RDD of its parent: what makes a stream do anything at all."""

    def __init__(self, parent: DStreamNode, func: Callable[[int, RDD[Any]], Any]) -> None:
        super().__init__(parent.graph, parent.slide_ms, [parent])
        self._func = func
        self.output_op_id = self.graph.add_output(self)

    def compute(self, time_ms: int) -> RDD[Any] | None:
        return None  # an output has jobs, not RDDs

    def generate_job(self, time_ms: int) -> Job | None:
        (parent,) = self.dependencies
        rdd = parent.get_or_compute(time_ms) if self.is_time_valid(time_ms) else None
        if rdd is None:
            return None
        return Job(time_ms, self.output_op_id, self.site, lambda: self._func(time_ms, rdd))
