"""Is the stream equal to the batch? ``query.verify()`` answers for what has been consumed so far.

The batch query runs over everything that the committed batches have read, and is compared with what the
stream has made of it: the table of the sink, where it can be read back, and the result that is kept as state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    VariantType,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN = 20
_TIMES = "_times"


@dataclass(frozen=True)
class Verification:
    """The outcome. True in a condition if stream and batch are equal; printed, it says what differs.

    ::

        assert query.verify(), query.verify()

    Attributes:
        batch_id: the last batch that has been compared; -1 if there is none yet.
        rows: how many rows the batch query has.
        missing: rows of the batch query that the stream does not have, some of them.
        unexpected: rows of the stream that the batch query does not have, some of them.
        late_rows: how many rows came after the watermark and were dropped, since the query was started last;
            they are in the batch query.
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
class StreamTable:
    """What the stream has made. ``forgets``: rows that will not change any more may have left it."""

    name: str
    rows: DataFrame
    forgets: bool = False


def verified(
    expected: DataFrame,
    tables: Sequence[StreamTable],
    batch_id: int,
    late_rows: int,
    positions: Sequence[int],
    distinct: bool = False,
) -> Verification:
    """Compare the batch query with each of the stream's tables. The first that differs is the outcome.

    Only the columns at ``positions`` count; with ``distinct`` not how often a row comes.
    """
    wanted = _comparable_rows(expected, positions, distinct).persist()
    try:
        rows = wanted.count()
        for table in tables:
            found = _comparable_rows(table.rows, positions, distinct)
            missing, unexpected = _difference(wanted, found, table.forgets)
            if missing or unexpected:
                return Verification(batch_id, rows, missing, unexpected, late_rows, table.name)
    finally:
        wanted.unpersist()
    names = " and ".join(table.name for table in tables)
    return Verification(batch_id, rows, late_rows=late_rows, compared_with=names)


def _comparable_rows(df: DataFrame, positions: Sequence[int], distinct: bool) -> DataFrame:
    # By position: two columns may have the same name.
    numbered = df.toDF(*(f"c{position}" for position in range(len(df.columns))))
    rows = numbered.select(
        *(
            _comparable(sql.col(f"c{position}"), df.schema[position].dataType).alias(f"c{position}")
            for position in positions
        )
    )
    names = [df.columns[position] for position in positions]
    if len(set(names)) == len(names) and _TIMES not in names:
        rows = rows.toDF(*names)
    return rows.distinct() if distinct else rows


def _difference(
    wanted: DataFrame, found: DataFrame, only_unexpected: bool
) -> tuple[list[Row], list[Row]]:
    """Rows that are missing, and rows that are too many, each as often as it is; by one job."""
    columns = [f"`{name}`" for name in wanted.columns]
    both = wanted.withColumn(_TIMES, sql.lit(1)).unionAll(found.withColumn(_TIMES, sql.lit(-1)))
    counted = both.groupBy(*columns).agg(sql.sum(_TIMES).alias(_TIMES))
    condition = f"{_TIMES} < 0" if only_unexpected else f"{_TIMES} != 0"
    different = counted.where(condition).limit(2 * SHOWN).collect()
    more = [row for row in different if row[-1] > 0]
    fewer = [row for row in different if row[-1] < 0]
    return _repeated(more), _repeated(fewer)


def _repeated(rows: Sequence[Row]) -> list[Row]:
    shown: list[Row] = []
    for row in rows:
        plain = Row(*row.__fields__[:-1])(*row[:-1])
        shown += [plain] * min(abs(row[-1]), SHOWN)
    return shown[:SHOWN]


def _comparable(column: Column, data_type: DataType) -> Column:
    """Sums of floating point numbers depend on their order in the last digits, and the order in which rows
    are collected into an array on everything; maps cannot be compared.
    """
    match data_type:
        case DoubleType():
            return _rounded(column, "%.11g", "double")
        case FloatType():
            return _rounded(column, "%.5g", "float")
        case VariantType():
            return sql.to_json(column)
        case ArrayType(elementType=element):
            return sql.array_sort(sql.transform(column, lambda each: _comparable(each, element)))
        case MapType(keyType=key, valueType=value):
            entry = StructType().add("key", key).add("value", value)
            return sql.array_sort(
                sql.transform(sql.map_entries(column), lambda each: _comparable(each, entry))
            )
        case StructType(fields=fields) if fields:
            parts = [
                _comparable(column.getField(field.name), field.dataType).alias(field.name)
                for field in fields
            ]
            return sql.when(column.isNotNull(), sql.struct(*parts))
    return column


def _rounded(column: Column, digits: str, type_name: str) -> Column:
    text = sql.format_string(digits, column.cast("double"))
    return sql.when(column.isNotNull(), text.cast(type_name))
