"""The streams of a context and what they depend on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tidemill.common.config import UNPERSIST
from tidemill.errors import GraphError, IllegalStateError

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.batches.batch import Batch
    from tidemill.streaming.job import Job
    from tidemill.streaming.node import DStreamNode
    from tidemill.streaming.nodes import InputNode, OutputNode


class DStreamGraph:
    """Inputs, outputs, and everything between them. Frozen once it has started."""

    def __init__(self, spark_context: SparkContext, batch_ms: int) -> None:
        self.spark_context = spark_context
        self.unpersist = UNPERSIST.read(spark_context.getConf())
        self.batch_ms = batch_ms
        self.remember_ms = 0
        self.checkpoint_directory: str | None = None
        self.inputs: list[InputNode] = []
        self.outputs: list[OutputNode] = []
        self.lock = threading.RLock()
        self.planned_until_ms = -1
        self._nodes: list[DStreamNode] = []
        self._frozen_because: str | None = None

    def add_input(self, node: InputNode) -> int:
        self.inputs.append(node)
        return len(self.inputs) - 1

    def add_output(self, node: OutputNode) -> int:
        self.outputs.append(node)
        return len(self.outputs) - 1

    def freeze(self, because: str) -> None:
        self._frozen_because = because

    def refuse_change_after_start(self) -> None:
        if self._frozen_because is not None:
            raise IllegalStateError(
                "inputs, transformations and output operations cannot be added to a StreamingContext "
                f"that {self._frozen_because}: define the whole stream before start()"
            )

    def validate(self) -> None:
        if not self.inputs:
            raise GraphError(
                "this StreamingContext has no input stream: make one with textFileStream(), "
                "queueStream() or their like before start()"
            )
        if not self.outputs:
            raise GraphError(
                "no output operation is registered, so nothing would ever run: call pprint(), "
                "foreachRDD() or saveAsTextFiles() on a DStream before start()"
            )

    def start(self, zero_ms: int) -> None:
        with self.lock:
            self._nodes = self._followers_first()
            needed_ms = dict.fromkeys(self._nodes, self.remember_ms)
            for node in self._nodes:
                node.initialize(zero_ms, needed_ms[node])
                node.validate_at_start()
                for parent in node.dependencies:
                    needed_ms[parent] = max(needed_ms[parent], node.parent_remember_ms)

    def generate_jobs(self, batch: Batch) -> list[Job]:
        with self.lock:
            for stream in self.inputs:
                stream.plan(batch.time_ms, batch.ranges[stream.source_id])
            self.planned_until_ms = batch.time_ms
            jobs = (output.generate_job(batch.time_ms) for output in self.outputs)
            return [job for job in jobs if job is not None]

    def clear_metadata(self, time_ms: int) -> None:
        with self.lock:
            for node in self._nodes:
                node.clear_metadata(time_ms)

    def longest_input_memory_ms(self) -> int:
        return max((stream.remember_ms for stream in self.inputs), default=0)

    def _followers_first(self) -> list[DStreamNode]:
        """Every node that has a part in the stream, after all nodes that depend on it."""
        parents_first: dict[DStreamNode, None] = {}

        def visit(node: DStreamNode) -> None:
            if node not in parents_first:
                for parent in node.dependencies:
                    visit(parent)
                parents_first[node] = None

        for node in (*self.inputs, *self.outputs):
            visit(node)
        return list(reversed(parents_first))
