"""Which columns of a query's result are the same however its rows arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WITHIN_WATERMARK = "DeduplicateWithinWatermark"


@dataclass(frozen=True)
class ComparedColumns:
    """The positions of the columns to compare. If ``distinct``, how often a row comes depends on time."""

    positions: tuple[int, ...]
    distinct: bool = False


def compared_columns(df: DataFrame) -> ComparedColumns:
    """Return all columns, except after ``dropDuplicates`` by some columns: then only those columns, because
    the query does not say which of the rows with equal keys comes first.
    """
    c = Catalyst(df.sparkSession)
    plan = df._jdf.queryExecution().analyzed()
    nodes = [node for node in c.walk(plan) if node.isStreaming()]
    everything = tuple(range(plan.output().size()))
    deduplicates = [node for node in nodes if c.name(node) in ("Deduplicate", WITHIN_WATERMARK)]
    distinct = any(c.name(node) == WITHIN_WATERMARK for node in deduplicates)
    by_some = [node for node in deduplicates if node.keys().size() < node.child().output().size()]
    if not by_some or any(c.name(node) == "Aggregate" for node in nodes):
        return ComparedColumns(everything, distinct)
    keys = [_ids(c, node.keys()) for node in by_some]
    found = tuple(
        position
        for position, expr_id in enumerate(_ids(c, plan.output()))
        if all(expr_id in ids for ids in keys)
    )
    if not found:
        raise UnsupportedError(
            "the columns by which dropDuplicates tells rows apart are not in the result, and of the others "
            "nobody knows which of the equal rows they come from: select these columns, too"
        )
    return ComparedColumns(found, distinct)


def _ids(c: Catalyst, attributes: Node) -> list[Any]:
    return [int(attribute.exprId().id()) for attribute in c.items(attributes)]
