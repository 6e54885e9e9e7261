"""A physical plan that is run again for every batch.

Between batches only what lies between the stream's leaves and the result is copied, because a node of
Spark's runs once. What is static stays: a table is broadcast once, a static exchange is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.spark.catalyst import Catalyst, Node
from tidemill.spark.event_time import EventTimes, WatermarkSpec, event_times, is_watermark_metric
from tidemill.spark.stream_leaves import FileRelations, is_fetch, scan_of, template_source


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
        self._way = self._find_way(executed)

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
        return _OnTheWay(node, tuple(children), below)

    def for_batch(self, files: Mapping[str, Sequence[str]]) -> ExecutablePlan:
        """A copy to run once. ``files`` has the files of each file leaf."""
        scans: dict[str, list[Node]] = {}
        with self._c.active(self.jsession):
            # Without a way the optimizer has found that there is never a row.
            plan = (
                self.template.clone()
                if self._way is None or self._is_all_stream
                else self._renewed(self._way, files, scans)
            )
        return ExecutablePlan(self._c, self, plan, scans)

    def _renewed(
        self, way: _OnTheWay, files: Mapping[str, Sequence[str]], scans: dict[str, list[Node]]
    ) -> Node:
        if way.source_id is not None:
            relation = self._files[way.source_id].relation(files[way.source_id])
            scan = scan_of(self._c, way.node, relation)
            scans.setdefault(way.source_id, []).append(scan)
            return scan
        if not way.below:
            return way.node.clone()
        children = [
            child if below is None else self._renewed(below, files, scans)
            for child, below in zip(way.children, way.below, strict=True)
        ]
        return way.node.withNewChildren(self._c.seq(children))

    def explain(self, extended: bool) -> str:
        return str(self.template.treeString() if extended else self.template.toString())


class ExecutablePlan:
    """The plan of one batch."""

    def __init__(
        self,
        catalyst: Catalyst,
        compiled: CompiledPlan,
        plan: Node,
        scans: Mapping[str, Sequence[Node]],
    ) -> None:
        self._c = catalyst
        self.compiled = compiled
        self.plan = plan
        self._scans = scans

    def execute(self) -> Any:
        """The JVM RDD of its rows."""
        with self._c.active(self.compiled.jsession):
            return self.plan.execute()

    def collect(self) -> Any:
        """The JVM array of its rows, on the driver."""
        with self._c.active(self.compiled.jsession):
            return self.plan.executeCollectPublic()

    def rows_scanned(self, source_id: str) -> int | None:
        """How many rows the scans of a file leaf have given, after the batch has run."""
        if source_id not in self._scans:
            return None
        return sum(
            int(scan.metrics().apply("numOutputRows").value()) for scan in self._scans[source_id]
        )

    def metrics(self) -> tuple[list[EventTimes], dict[str, Any]]:
        """After the batch has run: the event times of each watermark, and what the user observes."""
        found = self._c.module("org.apache.spark.sql.execution.CollectMetricsExec").collect(
            self.plan
        )
        times = []
        for watermark in self.compiled.watermarks:
            row = found.get(watermark.metric)
            times.append(EventTimes(0) if row.isEmpty() else event_times(row.get()))
        observed = {
            str(pair._1()): self._c.python_row(pair._2())
            for pair in self._c.items(found.toSeq())
            if not is_watermark_metric(str(pair._1()))
        }
        return times, observed
