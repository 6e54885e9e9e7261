"""Is the stream equal to the batch? ``query.verify()`` answers for what has been consumed so far.

The batch query runs over everything that the committed batches have read, and is compared with what the
stream has made of it: the table of the sink, where it can be read back, and the result that is kept as state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, StructType, VariantType

from tidemill.errors import UnsupportedError
from tidemill.sinks.sink import APPEND, COMPLETE, UPDATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN = 20


@dataclass(frozen=True)
class Verification:
    """The outcome. True in a condition if stream and batch are equal; printed, it says what differs.

    Attributes:
        batch_id: the last batch that has been compared.
        rows: how many rows the batch query has.
        missing: rows of the batch query that the stream does not have, some of them.
        unexpected: rows of the stream that the batch query does not have, some of them.
        late_rows: how many rows came after the watermark and were dropped; they are in the batch query.
        compared_with: where the stream's rows were taken from.
    """

    batch_id: int
    rows: int
    missing: list[Row] = field(default_factory=list)
    unexpected: list[Row] = field(default_factory=list)
    late_rows: int = 0
    compared_with: str = ""

    @property
    def equal(self) -> bool:
        return not self.missing and not self.unexpected

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        head = f"after batch {self.batch_id}, compared with {self.compared_with}"
        if self.equal:
            return f"equal: {self.rows} rows, {head}"
        lines = [f"different, {head}"]
        for what, rows in (
            ("in the batch query only", self.missing),
            ("in the stream only", self.unexpected),
        ):
            lines += [f"  {what}: {row}" for row in rows]
        if self.late_rows:
            lines.append(f"  {self.late_rows} rows came late and were dropped: see withWatermark")
        return "\n".join(lines)


@dataclass(frozen=True)
class StreamResult:
    """What there is to compare. ``sink`` and ``state`` give tables, where there are any."""

    batch_id: int
    output_mode: str
    aggregates: bool
    # The columns that decide what is a duplicate, of a query that ends with dropDuplicates.
    duplicate_keys: Sequence[str] | None
    late_rows: int
    sink: Callable[[], DataFrame] | None
    state: Callable[[], DataFrame] | None


def verified(expected: DataFrame, result: StreamResult) -> Verification:
    """Compare the batch query with the stream's own tables."""
    tables, names = _tables(result)
    actual = tables[0]
    for table in tables[1:]:
        actual = actual.unionAll(table)
    columns = _columns(expected.schema, result.duplicate_keys)
    mine, theirs = expected.select(*columns), actual.select(*columns)
    return Verification(
        result.batch_id,
        expected.count(),
        mine.exceptAll(theirs).limit(SHOWN).collect(),
        theirs.exceptAll(mine).limit(SHOWN).collect(),
        result.late_rows,
        " and ".join(names),
    )


def _tables(result: StreamResult) -> tuple[list[DataFrame], list[str]]:
    if result.aggregates and result.state is not None and result.output_mode in (UPDATE, COMPLETE):
        return [result.state()], ["the state"]
    if result.sink is None:
        raise UnsupportedError(
            "this sink cannot be read back, so there is nothing to compare with: verify() works with the "
            "memory and file sinks, and with aggregations in outputMode('update') and ('complete')"
        )
    tables, names = [result.sink()], ["the sink"]
    if result.aggregates and result.state is not None and result.output_mode == APPEND:
        # Windows that are still open have not been written yet.
        tables.append(result.state())
        names.append("the state")
    return tables, names


def _columns(schema: StructType, only: Sequence[str] | None) -> list[Column]:
    names = schema.names if only is None else list(only)
    return [_comparable(f"`{name}`", schema[name].dataType).alias(name) for name in names]


def _comparable(name: str, data_type: DataType) -> Column:
    """Sums of floating point numbers depend on their order in the last digits; maps cannot be compared."""
    column = sql.col(name)
    if isinstance(data_type, (DoubleType, FloatType)):
        digits = "%.11g" if isinstance(data_type, DoubleType) else "%.5g"
        return sql.when(column.isNotNull(), sql.format_string(digits, column.cast("double")))
    if isinstance(data_type, MapType):
        return sql.array_sort(sql.map_entries(column))
    if isinstance(data_type, VariantType):
        return sql.to_json(column)
    return column
