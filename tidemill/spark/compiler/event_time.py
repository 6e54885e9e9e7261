"""Event time in a plan: which column has it, and watermarks that are observed in place of Spark's own node.

Spark marks a column that has a watermark by its metadata, under the key ``EventTimeWatermark.delayKey``. The
event times of a batch come back as an observed metric with the name ``tidemill.watermark.<number>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node
from tidemill.tasks.event_time import EventTimeColumn

_METRIC = "tidemill.watermark."


@dataclass(frozen=True)
class WatermarkSpec:
    """A ``withWatermark(column, delay)`` of the query, and the metric that observes its column."""

    metric: str
    delay_ms: int


@dataclass(frozen=True)
class EventTimes:
    """The event times of a batch in one watermark's column. Without any, ``count`` is 0."""

    count: int
    max_us: int = 0
    min_us: int = 0
    avg_us: float = 0.0

    @property
    def max_ms(self) -> int:
        """The latest event time, rounded down to the unit of watermarks."""
        return self.max_us // 1000


def event_time_column(catalyst: Catalyst, attributes: list[Node]) -> EventTimeColumn | None:
    """Return the column that has a watermark, the first one if there are several."""
    key = catalyst.logical.EventTimeWatermark.delayKey()
    for index, attribute in enumerate(attributes):
        if attribute.metadata().contains(key):
            return EventTimeColumn(index, catalyst.name(attribute.dataType()) == "StructType")
    return None


def delay_ms_of(catalyst: Catalyst, watermark: Node) -> int:
    """Return the delay of an ``EventTimeWatermark`` node."""
    return int(catalyst.logical.EventTimeWatermark.getDelayMs(watermark.delay()))


def delay_ms_below(catalyst: Catalyst, plan: Node) -> int:
    """Return the delay of the first watermark in a plan that has one."""
    nodes = catalyst.walk(plan)
    watermark = next(node for node in nodes if catalyst.name(node) == "EventTimeWatermark")
    return delay_ms_of(catalyst, watermark)


def observed(
    catalyst: Catalyst, watermark: Node, child: Node, number: int
) -> tuple[Node, WatermarkSpec]:
    """Return ``child`` with a metric that observes the event times of an ``EventTimeWatermark`` node."""
    c = catalyst
    column = watermark.eventTime()
    time: Node = column
    if c.name(column.dataType()) == "StructType":  # a window: its end
        time = c.expressions.GetStructField(column, column.dataType().fieldIndex("end"), c.none)
    micros = c.expressions.UnixMicros(time)
    aggregate = c.expressions.aggregate
    functions = {
        "count": aggregate.Count(c.seq([micros])),
        "max": aggregate.Max(micros),
        "min": aggregate.Min(micros),
        "avg": aggregate.Average(micros),
    }
    metrics = [
        c.alias(function.toAggregateExpression(), name) for name, function in functions.items()
    ]
    name = f"{_METRIC}{number}"
    spec = WatermarkSpec(name, delay_ms_of(c, watermark))
    return c.logical.CollectMetrics(name, c.seq(metrics), child, 0), spec


def is_watermark_metric(name: str) -> bool:
    return name.startswith(_METRIC)


def event_times(row: Any) -> EventTimes:
    """Return the event times of a batch, from the row of a watermark's metric."""
    count = int(row.get(0))
    if not count:
        return EventTimes(0)
    return EventTimes(count, int(row.get(1)), int(row.get(2)), float(row.get(3)))
