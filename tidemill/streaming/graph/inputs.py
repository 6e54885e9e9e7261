"""The node of an input stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.streaming.graph.node import DStreamNode

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tidemill.batches.batch import AdmissionLimit
    from tidemill.batches.source import RecordSource
    from tidemill.streaming.graph.graph_base import GraphBase


class InputNode(DStreamNode):
    """Reads the range of its source that the planner gave to the batch."""

    def __init__(
        self,
        graph: GraphBase,
        source_id: int,
        make_source: Callable[[SparkContext], RecordSource],
        limit: AdmissionLimit,
        now_ms: int,
    ) -> None:
        super().__init__(graph, graph.batch_ms)
        self.source_id = source_id
        self.make_source = make_source
        self.limit = limit
        self.source = make_source(graph.spark_context)
        self.source.defined(now_ms)

    def forget_run(self) -> None:
        super().forget_run()
        self.__dict__.pop("source", None)

    def attach(self, spark_context: SparkContext) -> None:
        """Make the source again, for a program that was read from its checkpoint."""
        self.source = self.make_source(spark_context)

    def compute(self, time_ms: int) -> RDD[Any] | None:
        range_ = self.graph.range_at(time_ms, self.source_id)
        return None if range_ is None else self.source.read(range_, self.graph.tasks_at(time_ms))
