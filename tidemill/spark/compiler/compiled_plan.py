"""A physical plan that runs again for every batch.

For each batch, the nodes between the stream's leaves and the result are copied, because an exchange computes
its rows once and gives the same rows ever after. Static nodes stay: a table is broadcast once, a static
exchange is computed once. A plan without an exchange of the stream is not copied at all: its tasks ask for
their splits whenever they run. The plan of a DataFrame for a user's code is always a copy, whose steps carry
their batch with them: other threads and later batches leave it as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.compiler.bound_steps import StepBinder
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.event_time import (
    EventTimes,
    WatermarkSpec,
    event_times,
    is_watermark_metric,
)
from tidemill.spark.compiler.kept_rows import computed_rows
from tidemill.spark.compiler.row_counter import RowCounter
from tidemill.spark.compiler.stateful.state_steps import is_state_step
from tidemill.spark.compiler.stream_leaves import FileRelations, is_fetch, scan_of, template_source

if TYPE_CHECKING:
    from tidemill.tasks.batch_context import BatchContext

_KEEPERS = frozenset(
    {
        "CollectLimitExec",
        "CollectTailExec",
        "TakeOrderedAndProjectExec",
        "AttachDistributedSequenceExec",
    }
)
"""Nodes that have an exchange or a cache inside, without its name."""


@dataclass(frozen=True)
class _StreamNode:
    """A node that reads the stream. ``below`` has None for a child that is static.

    ``source_id`` is that of a file leaf, None for other nodes. ``is_step`` is True for a step of ours.
    """

    node: Node
    children: tuple[Node, ...]
    below: tuple[_StreamNode | None, ...]
    source_id: str | None = None
    is_step: bool = False


class CompiledPlan:
    """The plan of a query, which :class:`QueryCompiler` makes. Only one thread may use it."""

    def __init__(
        self,
        catalyst: Catalyst,
        jsession: Any,
        executed: Node,
        schema: Any,
        watermarks: tuple[WatermarkSpec, ...],
        operators: tuple[Any, ...],
        files: Mapping[str, FileRelations],
    ) -> None:
        self._c = catalyst
        self.jsession = jsession
        self._template = executed
        self.schema = schema
        self.watermarks = watermarks
        self.operators = operators
        self._files = files
        self._is_all_stream = True
        self._keeps_rows = False
        self._binder = StepBinder(catalyst)
        # None if the optimizer has found that the query never gives a row.
        self._stream = self._stream_nodes(executed)
        self.observes = "CollectMetrics" in str(executed.treeString())
        self._lasting: tuple[Node, RowCounter] | None = None
        self._copies = itertools.count()

    def _stream_nodes(self, node: Node) -> _StreamNode | None:
        c = self._c
        if is_fetch(c, node):
            return _StreamNode(node, (), (), is_step=True)
        source_id = template_source(c, node)
        if source_id is not None:
            self._is_all_stream = False
            return _StreamNode(node, (), (), source_id)
        children = c.children(node)
        below = tuple(self._stream_nodes(child) for child in children)
        if not any(below):
            return None
        if not all(below):
            self._is_all_stream = False
        name = c.name(node)
        if "Exchange" in name or name in _KEEPERS:
            self._keeps_rows = True
        is_step = self._binder.is_step(node)
        return _StreamNode(node, tuple(children), below, is_step=is_step)

    def for_batch(self, files: Mapping[str, Sequence[str]]) -> ExecutablePlan:
        """Return the plan of a batch, to run once. ``files`` has the files of each file leaf."""
        if not self._files:
            return ExecutablePlan(self._c, self, {})
        with self._c.active(self.jsession):
            relations = {name: leaf.relation(files[name]) for name, leaf in self._files.items()}
        return ExecutablePlan(self._c, self, relations)

    def copy(
        self,
        relations: Mapping[str, Any] | None = None,
        scans: dict[str, list[Node]] | None = None,
        context: BatchContext | None = None,
    ) -> Node:
        """Return a plan that has not run yet, and put the scans of its files into ``scans``.

        With a ``context`` its steps work for that batch, whichever thread runs them.
        """
        with self._c.active(self.jsession):
            if self._stream is None or (self._is_all_stream and context is None):
                return self._template.clone()
            return self._renewed(
                self._stream, relations or {}, {} if scans is None else scans, context
            )

    def lasting(self) -> tuple[Node, RowCounter] | None:
        """Return a plan that can run for every batch, and its row counter; None if a copy is needed."""
        if self._files or self._stream is None or self._keeps_rows:
            return None
        if self._lasting is None:
            plan = self.copy()
            with self._c.active(self.jsession):
                self._lasting = plan, RowCounter(self._c, plan.execute())
        elif self.observes:
            self._lasting[0].resetMetrics()
        return self._lasting

    def _renewed(
        self,
        stream: _StreamNode,
        relations: Mapping[str, Any],
        scans: dict[str, list[Node]],
        context: BatchContext | None,
    ) -> Node:
        if stream.source_id is not None:
            scan = scan_of(self._c, stream.node, relations[stream.source_id])
            scans.setdefault(stream.source_id, []).append(scan)
            return scan
        if not stream.below:
            if context is not None:
                return self._binder.bound(stream.node, context)
            return self._renewed_fetch(stream.node)
        children = [
            child if below is None else self._renewed(below, relations, scans, context)
            for child, below in zip(stream.children, stream.below, strict=True)
        ]
        if stream.is_step and context is not None:
            return self._binder.bound(stream.node, context, children[0])
        return stream.node.withNewChildren(self._c.seq(children))

    def _renewed_fetch(self, node: Node) -> Node:
        """Return a split leaf that is not equal to the one before.

        ``withNewChildren`` returns the node itself if its new children are equal to the old ones: over a mere
        clone of the leaf, an exchange would keep its rows.
        """
        c = self._c
        if c.name(node) != "RDDScanExec":
            return node.withNewChildren(c.seq([self._renewed_fetch(node.child())]))
        return node.copy(
            node.output(),
            node.rdd(),
            f"tidemill {next(self._copies)}",
            node.outputPartitioning(),
            node.outputOrdering(),
            node.stream(),
        )

    def explain(self) -> str:
        return str(self._template.treeString())


class ExecutablePlan:
    """The plan of one batch. Run it once, by one of :meth:`count`, :meth:`collect`, :meth:`execute`,
    :meth:`compute`.

    ``relations`` has the relation of each file leaf.
    """

    def __init__(
        self, catalyst: Catalyst, compiled: CompiledPlan, relations: Mapping[str, Any]
    ) -> None:
        self.catalyst = catalyst
        self.compiled = compiled
        self._relations = relations
        self._plan: Node | None = None
        self._scans: dict[str, list[Node]] = {}

    def count(self) -> int:
        """Compute all rows, and return how many there are."""
        lasting = self.compiled.lasting()
        if lasting is None:
            return RowCounter(self.catalyst, self.execute()).count()
        self._plan, rows = lasting
        return rows.count()

    def collect(self) -> Any:
        """Return the rows as a JVM array, on the driver."""
        lasting = self.compiled.lasting()
        if lasting is not None:
            self._plan = lasting[0]
        plan = self._own_plan()
        with self.catalyst.active(self.compiled.jsession):
            return plan.executeCollectPublic()

    def execute(self, context: BatchContext | None = None) -> Any:
        """Return the rows as a JVM RDD of this batch only: Spark caches rows by the RDD they come from.

        Only the thread that runs the batch can compute them, and only now; with a ``context``, which says
        what that thread would, anybody can at any time.
        """
        plan = self._own_plan(context)
        with self.catalyst.active(self.compiled.jsession):
            return plan.execute()

    def compute(self, context: BatchContext) -> Any:
        """Compute all rows and all state, and return the rows as a JVM RDD for any use at any time."""
        plan = self._own_plan(context)
        with self.catalyst.active(self.compiled.jsession):
            return computed_rows(self.catalyst, plan)

    def finish(self, is_complete: Callable[[], bool]) -> None:
        """Compute the state that computing the rows of the result has left out.

        A join with an empty table does not read the stream, and a function of the user may stop reading.
        """
        if is_complete() or self._plan is None:
            return
        for step in self._state_steps(self._plan):
            with self.catalyst.active(self.compiled.jsession):
                rows = step.execute()
            RowCounter(self.catalyst, rows).count()
            if is_complete():
                return

    def _state_steps(self, node: Node) -> Iterator[Node]:
        """Yield state steps from the top: computing one computes those below it."""
        if is_state_step(self.catalyst, node):
            yield node
        for child in self.catalyst.children(node):
            yield from self._state_steps(child)

    def _own_plan(self, context: BatchContext | None = None) -> Node:
        if self._plan is None:
            self._plan = self.compiled.copy(self._relations, self._scans, context)
        return self._plan

    def rows_scanned(self, source_id: str) -> int | None:
        """Return how many rows the scans of a file leaf have given, after the batch has run."""
        if source_id not in self._scans:
            return None
        return sum(
            int(scan.metrics().apply("numOutputRows").value()) for scan in self._scans[source_id]
        )

    def metrics(self) -> tuple[list[EventTimes], dict[str, Any]]:
        """Return the event times of each watermark and the user's observed metrics, after the batch."""
        if not self.compiled.observes or self._plan is None:
            return [EventTimes(0) for _ in self.compiled.watermarks], {}
        c = self.catalyst
        found = c.module("org.apache.spark.sql.execution.CollectMetricsExec").collect(self._plan)
        times = []
        for watermark in self.compiled.watermarks:
            row = found.get(watermark.metric)
            times.append(EventTimes(0) if row.isEmpty() else event_times(row.get()))
        observed = {
            str(pair._1()): c.python_row(pair._2())
            for pair in c.items(found.toSeq())
            if not is_watermark_metric(str(pair._1()))
        }
        return times, observed
