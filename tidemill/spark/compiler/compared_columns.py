"""Which columns of a query's result can be compared with a batch, and which tell its rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.catalyst import Catalyst, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEDUPLICATES = ("Deduplicate", "DeduplicateWithinWatermark")
_AGGREGATES = ("Aggregate", "Distinct")
# They make one row of each row, or none.
_ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias", "View", "Sort", "ResolvedHint")


@dataclass(frozen=True)
class ComparedColumns:
    """The positions of the columns that are the same however the rows arrive.

    Not all of them are after ``dropDuplicates`` by some columns: then only those columns count, because the
    query does not say which of the rows with equal keys comes first. With ``any_of_duplicates`` the other
    columns have the values of any such row.
    """

    positions: tuple[int, ...]
    any_of_duplicates: bool = False


def compared_columns(df: DataFrame) -> ComparedColumns:
    """Return which columns of the query's result to compare."""
    c = Catalyst(df.sparkSession)
    plan = df._jdf.queryExecution().analyzed()
    nodes = [node for node in c.walk(plan) if node.isStreaming()]
    everything = tuple(range(plan.output().size()))
    deduplicates = [node for node in nodes if c.name(node) in _DEDUPLICATES]
    by_some = [node for node in deduplicates if node.keys().size() < node.child().output().size()]
    if not by_some or any(c.name(node) == "Aggregate" for node in nodes):
        return ComparedColumns(everything)
    keys = [_ids(c, c.items(node.keys())) for node in by_some]
    found = tuple(
        position
        for position, expr_id in enumerate(_ids(c, c.items(plan.output())))
        if all(expr_id in ids for ids in keys)
    )
    if not found:
        raise UnsupportedError(
            "the columns by which dropDuplicates tells rows apart are not in the result, and of the others "
            "nobody knows which of the equal rows they come from: select these columns, too"
        )
    return ComparedColumns(found, found != everything)


def key_positions(df: DataFrame) -> tuple[int, ...] | None:
    """Return the columns that tell the rows of an aggregation apart; None if the result lacks one of them.

    A later row of update mode takes the place of the earlier one with the same values in these columns. None
    also if operations above the aggregation may make several rows of one.
    """
    c = Catalyst(df.sparkSession)
    node = df._jdf.queryExecution().analyzed()
    # Each column of the result, as the node at hand knows it: None if it computes something.
    columns: list[int | None] = list(_ids(c, c.items(node.output())))
    while c.name(node) not in _AGGREGATES:
        if c.name(node) not in _ROW_BY_ROW:
            return None
        if c.name(node) == "Project":
            below = {each.toAttribute().exprId().id(): each for each in c.items(node.projectList())}
            columns = [
                None if column is None else _plain_column(c, below.get(column))
                for column in columns
            ]
        node = node.child()
    if c.name(node) == "Distinct":
        keys: list[set[int]] = [{each} for each in _ids(c, c.items(node.output()))]
    else:
        keys = _grouping_columns(c, node)
    found = [
        next((position for position, column in enumerate(columns) if column in names), None)
        for names in keys
    ]
    return None if None in found else tuple(sorted({each for each in found if each is not None}))


def _grouping_columns(c: Catalyst, aggregate: Node) -> list[set[int]]:
    """Return for each grouping expression the ids of the output columns that have its value."""
    outputs = c.items(aggregate.aggregateExpressions())
    return [
        {
            each.toAttribute().exprId().id()
            for each in outputs
            if _without_alias(c, each).semanticEquals(_without_alias(c, key))
        }
        for key in c.items(aggregate.groupingExpressions())
    ]


def _without_alias(c: Catalyst, expression: Node) -> Node:
    return expression.child() if c.name(expression) == "Alias" else expression


def _plain_column(c: Catalyst, expression: Node | None) -> int | None:
    """Return the id of the column that an expression hands on as it is."""
    if expression is None:
        return None
    plain = _without_alias(c, expression)
    return plain.exprId().id() if c.name(plain) == "AttributeReference" else None


def _ids(c: Catalyst, attributes: Sequence[Node]) -> list[Any]:
    return [int(attribute.exprId().id()) for attribute in attributes]
