"""The node of an output operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.spark.files.text_output import save_text
from tidemill.streaming.graph.node import DStreamNode
from tidemill.streaming.scheduling.job import Job
from tidemill.streaming.util import rddToFileName

if TYPE_CHECKING:
    from pyspark import RDD


class OutputNode(DStreamNode):
    """Makes a job of every RDD of its parent. Without one, a stream does nothing."""

    def __init__(
        self, parent: DStreamNode, output_op_id: int, func: Callable[[int, RDD[Any]], Any]
    ) -> None:
        super().__init__(parent.graph, parent.slide_ms, [parent])
        self.output_op_id = output_op_id
        self._func = func

    @property
    def function(self) -> Callable[[int, RDD[Any]], Any]:
        """What is called with the time and the RDD of every batch."""
        return self._func

    def compute(self, time_ms: int) -> RDD[Any] | None:
        return None  # an output has jobs, not RDDs

    def generate_job(self, time_ms: int) -> Job | None:
        """Return the job of a batch, or None if the output has nothing to do in it."""
        (parent,) = self.dependencies
        rdd = parent.get_or_compute(time_ms) if self.is_time_valid(time_ms) else None
        if rdd is None:
            return None
        return Job(time_ms, self.output_op_id, self.site, lambda: self._func(time_ms, rdd))


class TextOutputNode(OutputNode):
    """Writes every RDD of its parent as text, to a directory that is named after the time of the batch."""

    def __init__(
        self, parent: DStreamNode, output_op_id: int, prefix: str, suffix: str | None
    ) -> None:
        super().__init__(parent, output_op_id, self._save)
        self._prefix = prefix
        self._suffix = suffix

    @property
    def names(self) -> tuple[str, str | None]:
        """What the names of its directories have before and after the time of the batch."""
        return self._prefix, self._suffix

    def _save(self, time_ms: int, rdd: RDD[Any]) -> None:
        directory = rddToFileName(self._prefix, self._suffix, time_ms)
        stream_id = self.graph.stream_id
        # A batch of a stream without a checkpoint never runs again.
        output = stream_id and {
            "stream": stream_id,
            "batch": self.graph.batch_id(time_ms),
            "output": self.output_op_id,
        }
        save_text(rdd, directory, output or None)
