"""Lists the differences between what two engines made of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from tests.sql.comparison.engines import STARTING, Failure, Record
from tests.sql.comparison.expressions import ROUNDED_AGGREGATES
from tests.sql.comparison.pending import STATE, left_out
from tests.sql.comparison.queries import Query, Run, text_of


def differences(query: Query, run: Run, spark: Record, tidemill: Record) -> list[str]:
    """Return what differs, a line each, Spark's value first; nothing if the engines agree."""
    found: list[str] = []
    pending = left_out(text_of(query, run))
    rounded = any(each in str(query) for each in ROUNDED_AGGREGATES)

    def compare(what: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            found.append(f"{what}:\n    Spark    {theirs}\n    Tidemill {ours}")

    if not _same_failure(spark.failure, tidemill.failure):
        compare("failure", spark.failure, tidemill.failure)
    if found:
        messages = [each.failure.message[:1500] for each in (spark, tidemill) if each.failure]
        return found + messages
    compare("schema", spark.schema, tidemill.schema)
    compare("schema of the batches", spark.batch_schema, tidemill.batch_schema)
    compare("batches", sorted(spark.batches), sorted(tidemill.batches))
    for batch_id in sorted(spark.batches.keys() & tidemill.batches.keys()):
        theirs, ours = (_counted(each.batches[batch_id], rounded) for each in (spark, tidemill))
        _compare_rows(f"rows of batch {batch_id}", theirs, ours, found)
    compare("looks at the sink", len(spark.tables), len(tidemill.tables))
    for number, (their_table, our_table) in enumerate(
        zip(spark.tables, tidemill.tables, strict=False)
    ):
        theirs, ours = _counted(their_table, rounded), _counted(our_table, rounded)
        _compare_rows(f"rows of the sink, look {number}", theirs, ours, found)
    compare("batches in progress", sorted(spark.progress), sorted(tidemill.progress))
    for batch_id in sorted(spark.progress.keys() & tidemill.progress.keys()):
        their_figures, our_figures = (
            _comparable(each.progress[batch_id], run, query) for each in (spark, tidemill)
        )
        if not _near(their_figures, our_figures):
            compare(f"average event time of batch {batch_id}", their_figures, our_figures)
        for name in their_figures:
            if name not in pending:
                compare(f"{name} of batch {batch_id}", their_figures[name], our_figures[name])
    return found


def _near(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Return True if the average event times are equal, but for one millisecond of rounding."""
    averages = [figures["eventTime"].pop("avg", None) for figures in (theirs, ours)]
    if None in averages:
        return averages == [None, None]
    one, two = (datetime.fromisoformat(average) for average in averages)
    return abs(one - two) <= timedelta(milliseconds=1)


def _comparable(figures: dict[str, Any], run: Run, query: Query) -> dict[str, Any]:
    event_time, operators = dict(figures["eventTime"]), figures[STATE]
    # Of several watermarks Spark has the figures of one; and it counts a null as 1970.
    if run.null_times or str(query).count("withWatermark") > 1:
        event_time = {"watermark": event_time.get("watermark")}
    # The branches of a union come in no certain order.
    names = [operator["operatorName"] for operator in operators]
    operators = names, sorted(operators, key=str)
    return {**figures, "eventTime": event_time, STATE: operators}


def _same_failure(theirs: Failure | None, ours: Failure | None) -> bool:
    """Return True if a query fails on both engines at the same moment.

    Refusals at ``start()`` are Tidemill's own, and have its own words; the errors of batches are Spark's.
    """
    if theirs is None or ours is None:
        return theirs is ours
    return theirs.moment == ours.moment and (
        theirs.moment == STARTING or theirs.condition == ours.condition
    )


def _compare_rows(what: str, theirs: Counter[Any], ours: Counter[Any], found: list[str]) -> None:
    for engine, rows in (("Spark", theirs - ours), ("Tidemill", ours - theirs)):
        if rows:
            shown = "\n      ".join(
                f"{count} x {row}" for row, count in sorted(rows.items(), key=repr)[:5]
            )
            found.append(f"{what}, in {engine} only:\n      {shown}")


def _counted(rows: Sequence[Row], rounded: bool) -> Counter[Any]:
    return Counter(_plain(row, rounded) for row in rows)


def _plain(value: Any, rounded: bool) -> Any:
    """Return a value that can be counted, in which NaN equals NaN and -0.0 differs from 0.0."""
    match value:
        case float():
            return f"{round(value, 9) + 0.0:.10g}" if rounded else repr(value)
        case Row():
            return tuple(_plain(part, rounded) for part in value)
        case list() | tuple():
            return tuple(_plain(part, rounded) for part in value)
        case dict():
            pairs = [(_plain(key, rounded), _plain(part, rounded)) for key, part in value.items()]
            return ("map", *sorted(pairs, key=repr))
        case bytearray() | bytes():
            return bytes(value)
        case VariantVal():
            return ("variant", value.toJson())
    return (type(value).__name__, value)
