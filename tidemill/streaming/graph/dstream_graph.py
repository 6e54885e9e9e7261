"""All streams of a context, from inputs to outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import OffsetRange, RangeSize
from tidemill.errors import ProgramError
from tidemill.streaming.graph.graph_base import GraphBase
from tidemill.streaming.graph.inputs import InputNode
from tidemill.streaming.graph.outputs import OutputNode, TextOutputNode

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

    from tidemill.batches.batch import AdmissionLimit, Batch
    from tidemill.batches.source import RecordSource
    from tidemill.spark.session.creation_site import CreationSite
    from tidemill.streaming.graph.node import DStreamNode
    from tidemill.streaming.graph.state import StatefulNode
    from tidemill.streaming.scheduling.job import Job


class DStreamGraph(GraphBase):
    """Inputs, outputs, and everything between them. Frozen once it has started."""

    def __init__(self, spark_context: SparkContext, batch_ms: int) -> None:
        self.inputs: list[InputNode] = []
        self.outputs: list[OutputNode] = []
        self.stateful: list[StatefulNode] = []
        super().__init__(spark_context, batch_ms)

    def begin_run(self, spark_context: SparkContext) -> None:
        super().begin_run(spark_context)
        self._nodes: list[DStreamNode] = []

    def attach(self, spark_context: SparkContext) -> None:
        """Bring a graph that was read from its checkpoint to life."""
        self.begin_run(spark_context)
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

    # -- the program is defined ----------------------------------------------------------------

    def add_input(
        self,
        make_source: Callable[[SparkContext], RecordSource],
        limit: AdmissionLimit,
        now_ms: int,
    ) -> InputNode:
        """Add an input stream that reads the source made by ``make_source``."""
        node = InputNode(self, len(self.inputs), make_source, limit, now_ms)
        self.inputs.append(node)
        return node

    def add_output(self, parent: DStreamNode, func: Callable[[int, RDD[Any]], Any]) -> None:
        """Call ``func`` with the time and the RDD of every batch of ``parent``."""
        self.outputs.append(OutputNode(parent, len(self.outputs), func))

    def add_text_output(self, parent: DStreamNode, prefix: str, suffix: str | None) -> None:
        """Write every batch of ``parent`` as text."""
        self.outputs.append(TextOutputNode(parent, len(self.outputs), prefix, suffix))

    def add_stateful(self, node: StatefulNode) -> None:
        """Run ``node`` in every batch, whether or not an output asks for it."""
        self.stateful.append(node)

    def operators(self) -> dict[str, InputNode | StatefulNode]:
        """Return the nodes for which a checkpoint keeps something, by name.

        A name is the one that the user gave, or operation and number, such as ``textFileStream-1``.
        """
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
                    "tells them apart by their names, so give one of them another with setName()",
                    str(node.site),
                )
            operators[name] = node
        return operators

    def validate(self) -> None:
        """Raise if the program could never run."""
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
        if self.stateful and not self.has_directory:
            site = str(self.stateful[0].site)
            raise ProgramError(
                f"{site} keeps state from batch to batch, and needs a directory to keep it "
                "in. Before start(), call StreamingContext.checkpoint(directory), or "
                "SparkContext.setCheckpointDir(directory) for state that ends with the stream.",
                site,
            )

        self._require_own_directories()

    def _require_own_directories(self) -> None:
        """Raise if two outputs write text to the same directories: of each batch, only one's rows stay."""
        writers: dict[tuple[str, str | None], TextOutputNode] = {}
        for node in self.outputs:
            if isinstance(node, TextOutputNode):
                other = writers.setdefault(node.names, node)
                if other is not node:
                    raise ProgramError(
                        f"{other.site} and {node.site} both write to {node.names[0]}, and the rows of one "
                        "would replace those of the other: give each its own prefix, or write the union() of "
                        "both",
                        str(node.site),
                    )

    # -- the stream runs -----------------------------------------------------------------------

    def start(self, zero_ms: int) -> None:
        """Tell every node the zero time, and how long it has to remember its RDDs."""
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
        """Note the ranges of a batch: a new one, or one of an earlier run that a window looks back at."""
        with self.lock:
            self._batches[batch.time_ms] = batch

    def leave_out(self, before: Batch, next_ms: int) -> None:
        """Note that no batch is planned between ``before``, which had no input, and ``next_ms``.

        Windows that look back at these times see what they would have seen had all batches run: the counts of
        nothing, and the state as it rests.
        """
        first_ms = max(before.time_ms + self.batch_ms, next_ms - self.looks_back_ms())
        nothing = {source_id: OffsetRange(r.end, r.end) for source_id, r in before.ranges.items()}
        empty = replace(before, ranges=nothing, sizes=dict.fromkeys(nothing, RangeSize(0)))
        with self.lock:
            for time_ms in range(first_ms, next_ms, self.batch_ms):
                self._left_out[time_ms] = empty

    def outputs_at(self, time_ms: int) -> dict[int, CreationSite]:
        """Return the output operations that have something to do in the batch of ``time_ms``."""
        return {
            node.output_op_id: node.site for node in self.outputs if node.is_time_valid(time_ms)
        }

    def generate_jobs(self, batch: Batch) -> list[Job]:
        """Make the jobs of a batch, one for each output operation that has something to do."""
        with self.lock:
            self.restore(batch)
            # State goes on from batch to batch, even where no output asks for it in this one.
            for node in self.stateful:
                if node in self._nodes:
                    node.get_or_compute(batch.time_ms)
            jobs = (output.generate_job(batch.time_ms) for output in self.outputs)
            return [job for job in jobs if job is not None]

    def clear_metadata(self, time_ms: int) -> None:
        """Forget everything that no batch after ``time_ms`` can ask for."""
        with self.lock:
            for node in self._nodes:
                node.clear_metadata(time_ms)
            oldest_ms = time_ms - max((node.remember_ms for node in self._nodes), default=0)
            self._batches = {at: each for at, each in self._batches.items() if at > oldest_ms}
            self._left_out = {at: each for at, each in self._left_out.items() if at > oldest_ms}

    def first_batch_after(self, time_ms: int, otherwise: int) -> int:
        """Return the id of the oldest known batch after ``time_ms``, or ``otherwise`` if there is none."""
        with self.lock:
            known = chain(self._batches.items(), self._left_out.items())
            ids = (each.batch_id for at_ms, each in known if at_ms > time_ms)
            return min(ids, default=otherwise)

    def longest_input_memory_ms(self) -> int:
        """Return how long after its batch a range of any input may still be read."""
        return max((stream.remember_ms for stream in self.inputs), default=0)

    def looks_back_ms(self) -> int:
        """Return for how long after a batch a window may show something of it; 0 without windows."""
        reaches_ms = dict.fromkeys(self._nodes, 0)
        for node in self._nodes:
            for parent in node.dependencies:
                reach_ms = reaches_ms[node] + node.looks_back_ms
                reaches_ms[parent] = max(reaches_ms[parent], reach_ms)
        return max(reaches_ms.values(), default=0)

    @property
    def has_state(self) -> bool:
        """True if some node keeps state, which a batch without input may change."""
        return any(node in self._nodes for node in self.stateful)

    def state_changed_ms(self) -> int:
        """Return the time of the last batch of this run that changed state; -1 if none did."""
        with self.lock:
            return max((node.changed_ms for node in self.stateful), default=-1)

    def is_state_resting(self, time_ms: int) -> bool:
        """Return True if all state was left as it was, each when it had its turn last until ``time_ms``."""
        with self.lock:
            return all(node.rested_at(time_ms) for node in self.stateful if node in self._nodes)

    def nodes(self) -> list[DStreamNode]:
        """Return every node that has a part in the stream, after all nodes that it depends on."""
        return self._followers_first()[::-1]

    def _followers_first(self) -> list[DStreamNode]:
        """Return every node that has a part in the stream, after all nodes that depend on it."""
        parents_first: dict[DStreamNode, None] = {}

        def visit(node: DStreamNode) -> None:
            if node not in parents_first:
                for parent in node.dependencies:
                    visit(parent)
                parents_first[node] = None

        for node in (*self.inputs, *self.outputs):
            visit(node)
        return list(reversed(parents_first))
