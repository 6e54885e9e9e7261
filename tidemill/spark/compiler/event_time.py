"""Watermarks in a plan: an observed maximum of the event time in place of Spark's own node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.spark.compiler.catalyst import Catalyst, Node

_METRIC = "tidemill.watermark."


@dataclass(frozen=True)
class WatermarkSpec:
    """``withWatermark(column, delay)``."""

    metric: str
    column: str
    delay_ms: int


@dataclass(frozen=True)
class EventTimes:
    """What a batch has seen of one watermark's column, in microseconds. ``count`` may be 0."""

    count: int
    max_us: int = 0
    min_us: int = 0
    avg_us: float = 0.0


def delay_ms_of(catalyst: Catalyst, node: Node) -> int:
    return int(catalyst.logical.EventTimeWatermark.getDelayMs(node.delay()))


def observed(
    catalyst: Catalyst, node: Node, child: Node, number: int
) -> tuple[Node, WatermarkSpec]:
    """``child`` with the event times of an ``EventTimeWatermark`` node counted on the way."""
    c = catalyst
    column = node.eventTime()
    time: Node = column
    if c.name(column.dataType()) == "StructType":  # a window: its end
        time = c.expressions.GetStructField(column, column.dataType().fieldIndex("end"), c.none)
    if c.name(time.dataType()).startswith("TimestampNTZ"):
        utc = c.some("UTC")
        timestamp = c.module("org.apache.spark.sql.types.TimestampType")
        time = c.expressions.Cast(time, timestamp, utc, c.module(_CAST_MODES).apply(False))
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
    spec = WatermarkSpec(name, str(column.name()), delay_ms_of(c, node))
    return c.logical.CollectMetrics(name, c.seq(metrics), child, 0), spec


_CAST_MODES = "org.apache.spark.sql.catalyst.expressions.EvalMode"


def is_watermark_metric(name: str) -> bool:
    return name.startswith(_METRIC)


def event_times(row: Any) -> EventTimes:
    """The values that a batch has collected for one watermark."""
    count = int(row.get(0))
    if not count:
        return EventTimes(0)
    return EventTimes(count, int(row.get(1)), int(row.get(2)), float(row.get(3)))
