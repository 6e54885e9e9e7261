"""The streams of a context and what they depend on."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from tidemill.common.config import UNPERSIST
from tidemill.errors import IllegalStateError, ProgramError

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.batches.batch import Batch
    from tidemill.state.operators import StateOperators
    from tidemill.streaming.graph.creation_site import CreationSite
    from tidemill.streaming.graph.node import DStreamNode
    from tidemill.streaming.graph.stateful_node import StatefulNode
    from tidemill.streaming.graph.stateless_nodes import InputNode, OutputNode
    from tidemill.streaming.scheduling.job import Job


class DStreamGraph:
    """Inputs, outputs, and everything between them. Frozen once it has started."""

    def __init__(self, spark_context: SparkContext, batch_ms: int) -> None:
        self.batch_ms = batch_ms
        self.remember_ms = 0
        self.checkpoint_directory: str | None = None
        self.inputs: list[InputNode] = []
        self.outputs: list[OutputNode] = []
        self.stateful: list[StatefulNode] = []
        self._attach(spark_context)

    def _attach(self, spark_context: SparkContext) -> None:
        self.spark_context = spark_context
        self.unpersist = UNPERSIST.read(spark_context.getConf())
        self.lock = threading.RLock()
        self.zero_ms = 0
        self.planned_until_ms = -1
        self.state: StateOperators | None = None
        self._batch_ids: dict[int, int] = {}
        self._nodes: list[DStreamNode] = []
        self._frozen_because: str | None = None

    def attach(self, spark_context: SparkContext) -> None:
        """Bring a graph that was read from its checkpoint to life."""
        self._attach(spark_context)
        for stream in self.inputs:
            stream.attach(spark_context)

    def __getstate__(self) -> dict[str, Any]:
        # The rest belongs to a run, or to the SparkContext that it runs on.
        program = (
            "batch_ms",
            "remember_ms",
            "checkpoint_directory",
            "inputs",
            "outputs",
            "stateful",
        )
        return {name: self.__dict__[name] for name in program}

    def add_input(self, node: InputNode) -> int:
        self.inputs.append(node)
        return len(self.inputs) - 1

    def add_output(self, node: OutputNode) -> int:
        self.outputs.append(node)
        return len(self.outputs) - 1

    def add_stateful(self, node: StatefulNode) -> None:
        self.stateful.append(node)

    def operators(self) -> dict[str, InputNode | StatefulNode]:
        """What a checkpoint keeps something for, by name: the user's, or operation and number."""
        in_use = self._followers_first()
        operators: dict[str, InputNode | StatefulNode] = {}
        counts: Counter[str] = Counter()
        stateful = [node for node in self.stateful if node in in_use]
        nodes: list[InputNode | StatefulNode] = [*self.inputs, *stateful]
        for node in nodes:
            counts[node.site.operation] += 1
            name = node.name or f"{node.site.operation}-{counts[node.site.operation]}"
            if name in operators:
                raise ProgramError(
                    f"{operators[name].site} and {node.site} are both called {name!r}: the checkpoint "
                    "tells them apart by their names, so give one of them another with setName()"
                )
            operators[name] = node
        return operators

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
            raise ProgramError(
                "this StreamingContext has no input stream: make one with textFileStream(), "
                "queueStream() or their like before start()"
            )
        if not self.outputs:
            raise ProgramError(
                "no output operation is registered, so nothing would ever run: call pprint(), "
                "foreachRDD() or saveAsTextFiles() on a DStream before start()"
            )
        if self.stateful and self.checkpoint_directory is None:
            raise ProgramError(
                f"{self.stateful[0].site} keeps state from batch to batch, and needs a directory to keep it "
                "in: call StreamingContext.checkpoint(directory) before start()"
            )

    def start(self, zero_ms: int) -> None:
        with self.lock:
            self.zero_ms = zero_ms
            self._nodes = self._followers_first()
            needed_ms = dict.fromkeys(self._nodes, self.remember_ms)
            for node in self._nodes:
                node.initialize(zero_ms, needed_ms[node])
                node.validate_at_start()
                for parent in node.dependencies:
                    needed_ms[parent] = max(needed_ms[parent], node.parent_remember_ms)

    def restore(self, batch: Batch) -> None:
        """A batch of an earlier run, which a window may look back at."""
        with self.lock:
            self._batch_ids[batch.time_ms] = batch.batch_id
            for stream in self.inputs:
                if stream.source_id in batch.ranges:
                    stream.plan(batch.time_ms, batch.ranges[stream.source_id])
            self.planned_until_ms = batch.time_ms

    def outputs_at(self, time_ms: int) -> dict[int, CreationSite]:
        """The output operations that have something to do in the batch of that time."""
        return {
            node.output_op_id: node.site for node in self.outputs if node.is_time_valid(time_ms)
        }

    def batch_id(self, time_ms: int) -> int:
        return self._batch_ids[time_ms]

    def generate_jobs(self, batch: Batch) -> list[Job]:
        with self.lock:
            self.restore(batch)
            # State goes on from batch to batch, also where no output asks for it this time.
            for node in self.stateful:
                if node in self._nodes:
                    node.get_or_compute(batch.time_ms)
            jobs = (output.generate_job(batch.time_ms) for output in self.outputs)
            return [job for job in jobs if job is not None]

    def clear_metadata(self, time_ms: int) -> None:
        with self.lock:
            for node in self._nodes:
                node.clear_metadata(time_ms)
            oldest_ms = time_ms - max((node.remember_ms for node in self._nodes), default=0)
            self._batch_ids = {at: n for at, n in self._batch_ids.items() if at > oldest_ms}

    def longest_input_memory_ms(self) -> int:
        return max((stream.remember_ms for stream in self.inputs), default=0)

    def nodes(self) -> list[DStreamNode]:
        """Every node that has a part in the stream, after all nodes that it depends on."""
        return self._followers_first()[::-1]

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
