"""The node of a sliding window of whole batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from tidemill.streaming.graph.node import DStreamNode

if TYPE_CHECKING:
    from pyspark import RDD


class WindowedNode(DStreamNode):
    """Unites the parent's RDDs in a window that ends with the batch."""

    def __init__(self, parent: DStreamNode, window_ms: int, slide_ms: int) -> None:
        super().__init__(parent.graph, slide_ms, [parent])
        self._window_ms = window_ms
        # Several windows read each RDD of the parent.
        if parent.storage_level is None:
            parent.storage_level = StorageLevel.MEMORY_ONLY

    @property
    def looks_back_ms(self) -> int:
        return self._window_ms

    def compute(self, time_ms: int) -> RDD[Any] | None:
        (parent,) = self.dependencies
        rdds = parent.slice(time_ms - self._window_ms + parent.slide_ms, time_ms)
        spark_context = self.graph.spark_context
        if not rdds:
            return spark_context.emptyRDD()
        return rdds[0] if len(rdds) == 1 else spark_context.union(rdds)
