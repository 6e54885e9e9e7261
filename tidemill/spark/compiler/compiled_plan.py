"""A physical plan that runs again for every batch.

For each batch, the nodes between the stream's leaves and the result are copied, because an exchange computes
its rows once and gives the same rows ever after; so are nodes with random seeds and those above them, because
each batch has seeds of its own. Other static nodes stay: a table is broadcast once, a static exchange is
computed once. A plan without an exchange of the stream and without seeds is not copied at all: its tasks ask
for their splits whenever they run. The plan of a DataFrame for a user's code is always a copy, whose steps
carry their batch with them: other threads and later batches leave it as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.spark.compiler.batch_seeds import BatchSeeds, Renewal
from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.computing.bound_steps import StepBinder
from tidemill.spark.compiler.computing.kept_rows import computed_rows
from tidemill.spark.compiler.computing.row_counter import RowCounter
from tidemill.spark.compiler.event_time import (
    EventTimes,
    WatermarkSpec,
    event_times,
    is_watermark_metric,
)
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
class _RenewedNode:
    """A node that is copied for every batch. ``below`` has None for a child that stays.

    ``source_id`` is that of a file leaf, None for other nodes. ``seeds`` makes the parameters that have
    random seeds, by their positions. ``is_step`` is True for a step of ours.
    """

    node: Node
    children: tuple[Node, ...]
    below: tuple[_RenewedNode | None, ...]
    source_id: str | None = None
    seeds: Mapping[int, Renewal] = field(default_factory=dict)
    is_step: bool = False


@dataclass(frozen=True)
class _OneBatch:
    """What the copy of one batch is made with: the relation of each file leaf, its seed; its scans are noted
    here.
    """

    relations: Mapping[str, Any]
    seed: int
    scans: dict[str, list[Node]] = field(default_factory=dict)


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
        seeds: BatchSeeds,
    ) -> None:
        self._c = catalyst
        self.jsession = jsession
        self._template = executed
        self.schema = schema
        self.watermarks = watermarks
        self.operators = operators
        self._files = files
        self._seeds = seeds
        self._has_seeds = False
        self._is_all_renewed = True
        self._keeps_rows = False
        self._binder = StepBinder(catalyst)
        # None if the optimizer has found that the query never gives a row.
        self._renewed = self._renewed_nodes(executed)
        self.observes = "CollectMetrics" in str(executed.treeString())
        self._lasting: tuple[Node, RowCounter] | None = None
        self._copies = itertools.count()

    def _renewed_nodes(self, node: Node) -> _RenewedNode | None:
        c = self._c
        if is_fetch(c, node):
            return _RenewedNode(node, (), (), is_step=True)
        source_id = template_source(c, node)
        if source_id is not None:
            self._is_all_renewed = False
            return _RenewedNode(node, (), (), source_id)
        children = c.children(node)
        below = tuple(self._renewed_nodes(child) for child in children)
        seeds = self._seeds.renewals(node)
        if seeds:
            self._has_seeds = True
        elif not any(below):
            return None
        if not all(below):
            self._is_all_renewed = False
        name = c.name(node)
        if "Exchange" in name or name in _KEEPERS:
            self._keeps_rows = True
        is_step = self._binder.is_step(node)
        return _RenewedNode(node, tuple(children), below, seeds=seeds, is_step=is_step)

    def for_batch(self, files: Mapping[str, Sequence[str]], seed: int = 0) -> ExecutablePlan:
        """Return the plan of a batch, to run once.

        ``files`` has the files of each file leaf, and ``seed`` is where the batch's random seeds come from.
        """
        relations: dict[str, Any] = {}
        if self._files:
            with self._c.active(self.jsession):
                relations = {name: leaf.relation(files[name]) for name, leaf in self._files.items()}
        return ExecutablePlan(self._c, self, _OneBatch(relations, seed))

    def copy(self, batch: _OneBatch, context: BatchContext | None = None) -> Node:
        """Return a plan that has not run yet, and note the scans of its files in ``batch``.

        With a ``context`` its steps work for that batch, whichever thread runs them.
        """
        with self._c.active(self.jsession):
            must_renew = not self._is_all_renewed or self._has_seeds or context is not None
            if self._renewed is None or not must_renew:
                return self._template.clone()
            return self._renew(self._renewed, batch, context)

    def lasting(self) -> tuple[Node, RowCounter] | None:
        """Return a plan that can run for every batch, and its row counter; None if a copy is needed."""
        if self._files or self._renewed is None or self._keeps_rows or self._has_seeds:
            return None
        if self._lasting is None:
            plan = self.copy(_OneBatch({}, 0))
            with self._c.active(self.jsession):
                self._lasting = plan, RowCounter(self._c, plan.execute())
        elif self.observes:
            self._lasting[0].resetMetrics()
        return self._lasting

    def _renew(self, renewed: _RenewedNode, batch: _OneBatch, context: BatchContext | None) -> Node:
        source_id, node = renewed.source_id, renewed.node
        if source_id is not None:
            scan = scan_of(self._c, node, batch.relations[source_id])
            batch.scans.setdefault(source_id, []).append(scan)
            return scan
        if renewed.is_step and not renewed.below:  # a fetch
            if context is None:
                return self._renewed_fetch(node)
            return self._binder.bound(node, context)
        children = [
            child if below is None else self._renew(below, batch, context)
            for child, below in zip(renewed.children, renewed.below, strict=True)
        ]
        if renewed.is_step and context is not None:
            return self._binder.bound(node, context, children[0])
        if renewed.seeds:
            node = self._c.copy(node, {i: make(batch.seed) for i, make in renewed.seeds.items()})
        return self._c.with_children(node, children)

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
    """

    def __init__(self, catalyst: Catalyst, compiled: CompiledPlan, batch: _OneBatch) -> None:
        self.catalyst = catalyst
        self.compiled = compiled
        self._batch = batch
        self._plan: Node | None = None

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
            self._plan = self.compiled.copy(self._batch, context)
        return self._plan

    def rows_scanned(self, source_id: str) -> int | None:
        """Return how many rows the scans of a file leaf have given, after the batch has run."""
        scans = self._batch.scans.get(source_id)
        if scans is None:
            return None
        return sum(int(scan.metrics().apply("numOutputRows").value()) for scan in scans)

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
