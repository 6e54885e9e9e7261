"""A physical plan that is run again for every batch.

Between batches only what lies between the stream's leaves and the result is copied, because an exchange of
Spark's is written once and gives the same rows ever after. What is static stays: a table is broadcast once, a
static exchange is written once. A plan without an exchange of the stream is not copied at all: its tasks ask
for their splits whenever they run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.spark.compiler.event_time import (
    EventTimes,
    WatermarkSpec,
    event_times,
    is_watermark_metric,
)
from tidemill.spark.compiler.row_counter import RowCounter
from tidemill.spark.compiler.stateful.state_steps import is_state_step
from tidemill.spark.compiler.stream_leaves import FileRelations, is_fetch, scan_of, template_source

_KEEPERS = frozenset(
    {
        "CollectLimitExec",
        "CollectTailExec",
        "TakeOrderedAndProjectExec",
        "AttachDistributedSequenceExec",
    }
)
"""Nodes that have an exchange, or a cache, without being called one."""


@dataclass(frozen=True)
class _OnTheWay:
    """A node above a leaf of the stream. ``below`` has None for a child that is static."""

    node: Node
    children: tuple[Node, ...]
    below: tuple[_OnTheWay | None, ...]
    source_id: str | None = None


class CompiledPlan:
    """What :class:`QueryCompiler` makes. One thread uses it."""

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
        self.template = executed
        self.schema = schema
        self.watermarks = watermarks
        self.operators = operators
        self._files = files
        self._is_all_stream = True
        self._keeps_rows = False
        self._way = self._find_way(executed)
        self.observes = "CollectMetrics" in str(executed.treeString())
        self._lasting: tuple[Node, RowCounter] | None = None
        self._copies = itertools.count()

    def _find_way(self, node: Node) -> _OnTheWay | None:
        c = self._c
        if is_fetch(c, node):
            return _OnTheWay(node, (), ())
        source_id = template_source(c, node)
        if source_id is not None:
            self._is_all_stream = False
            return _OnTheWay(node, (), (), source_id)
        children = c.children(node)
        below = tuple(self._find_way(child) for child in children)
        if not any(below):
            return None
        if not all(below):
            self._is_all_stream = False
        name = c.name(node)
        if "Exchange" in name or name in _KEEPERS:
            self._keeps_rows = True
        return _OnTheWay(node, tuple(children), below)

    def for_batch(self, files: Mapping[str, Sequence[str]]) -> ExecutablePlan:
        """The plan of a batch, to run once. ``files`` has the files of each file leaf."""
        if not self._files:
            return ExecutablePlan(self._c, self, None, {})
        scans: dict[str, list[Node]] = {}
        return ExecutablePlan(self._c, self, self.copy(files, scans), scans)

    def copy(self, files: Mapping[str, Sequence[str]] | None = None, scans: Any = None) -> Node:
        """A plan that has not run yet. ``scans`` is given the scans of its files."""
        with self._c.active(self.jsession):
            # Without a way the optimizer has found that there is never a row.
            if self._way is None or self._is_all_stream:
                return self.template.clone()
            return self._renewed(self._way, files or {}, {} if scans is None else scans)

    def lasting(self) -> tuple[Node, RowCounter] | None:
        """A plan that may be run again, and what counts its rows; None if there is no such plan."""
        if self._files or self._way is None or self._keeps_rows:
            return None
        if self._lasting is None:
            plan = self.copy()
            with self._c.active(self.jsession):
                self._lasting = plan, RowCounter(self._c, plan.execute())
        elif self.observes:
            self._lasting[0].resetMetrics()
        return self._lasting

    def _renewed(
        self, way: _OnTheWay, files: Mapping[str, Sequence[str]], scans: dict[str, list[Node]]
    ) -> Node:
        if way.source_id is not None:
            relation = self._files[way.source_id].relation(files[way.source_id])
            scan = scan_of(self._c, way.node, relation)
            scans.setdefault(way.source_id, []).append(scan)
            return scan
        if not way.below:
            return self._renewed_fetch(way.node)
        children = [
            child if below is None else self._renewed(below, files, scans)
            for child, below in zip(way.children, way.below, strict=True)
        ]
        return way.node.withNewChildren(self._c.seq(children))

    def _renewed_fetch(self, node: Node) -> Node:
        """A split leaf that is not equal to the one before.

        ``withNewChildren`` gives the node itself if its new children are equal to the old ones: with a mere
        clone at the leaf an exchange above it would keep its rows.
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
        return str(self.template.treeString())


class ExecutablePlan:
    """The plan of one batch. It is run once, by one of :meth:`count`, :meth:`collect`, :meth:`execute`."""

    def __init__(
        self,
        catalyst: Catalyst,
        compiled: CompiledPlan,
        plan: Node | None,
        scans: Mapping[str, Sequence[Node]],
    ) -> None:
        self.catalyst = catalyst
        self.compiled = compiled
        self._plan = plan
        self._scans = scans

    def count(self) -> int:
        """Compute all rows. How many there are."""
        lasting = self.compiled.lasting()
        if lasting is None:
            return RowCounter(self.catalyst, self.execute()).count()
        self._plan, rows = lasting
        return rows.count()

    def collect(self) -> Any:
        """The JVM array of its rows, on the driver."""
        lasting = self.compiled.lasting()
        if lasting is not None:
            self._plan = lasting[0]
        plan = self._own_plan()
        with self.catalyst.active(self.compiled.jsession):
            return plan.executeCollectPublic()

    def execute(self) -> Any:
        """The JVM RDD of its rows: of this batch only, because Spark caches rows by the RDD they are from."""
        plan = self._own_plan()
        with self.catalyst.active(self.compiled.jsession):
            return plan.execute()

    def finish(self, is_complete: Callable[[], bool]) -> None:
        """Compute state that the rows of the result did not ask for, after they have been computed.

        A join whose table is empty does not read the stream, and a function of the user may stop reading.
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
        """From the top: what a step reads is computed with it."""
        if is_state_step(self.catalyst, node):
            yield node
        for child in self.catalyst.children(node):
            yield from self._state_steps(child)

    def _own_plan(self) -> Node:
        if self._plan is None:
            self._plan = self.compiled.copy()
        return self._plan

    def rows_scanned(self, source_id: str) -> int | None:
        """How many rows the scans of a file leaf have given, after the batch has run."""
        if source_id not in self._scans:
            return None
        return sum(
            int(scan.metrics().apply("numOutputRows").value()) for scan in self._scans[source_id]
        )

    def metrics(self) -> tuple[list[EventTimes], dict[str, Any]]:
        """After the batch has run: the event times of each watermark, and what the user observes."""
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
