"""Compares the rows of a batch query with the rows that a stream has made, in Spark jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

from tidemill.sql.verify.report import Verification

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_ROWS_SHOWN = 20
"""The most rows that a report shows of each kind."""

_COUNT = "_times"


@dataclass(frozen=True)
class StreamResult:
    """Rows that the stream has made, and where they were read.

    With ``is_partial`` the watermark may have removed rows that can no longer change.
    """

    name: str
    rows: DataFrame
    is_partial: bool = False


def compare(
    expected: DataFrame,
    results: Sequence[StreamResult],
    batch_id: int,
    late_rows: int,
    positions: Sequence[int],
    distinct: bool = False,
) -> Verification:
    """Compare the batch query with each result of the stream, and report the first that differs.

    Only the columns at ``positions`` count. With ``distinct`` it does not matter how often a row occurs.
    """
    wanted = _comparable_rows(expected, positions, distinct).persist()
    names = [expected.columns[position] for position in positions]
    try:
        rows = wanted.count()
        for result in results:
            found = _comparable_rows(result.rows, positions, distinct)
            missing, unexpected = (
                [Row(*names)(*row) for row in rows_]
                for rows_ in _difference(wanted, found, result.is_partial)
            )
            if missing or unexpected:
                return Verification(batch_id, rows, missing, unexpected, late_rows, result.name)
    finally:
        wanted.unpersist()
    compared_with = " and ".join(result.name for result in results)
    return Verification(batch_id, rows, late_rows=late_rows, compared_with=compared_with)


def _comparable_rows(df: DataFrame, positions: Sequence[int], distinct: bool) -> DataFrame:
    """Return the columns that count, called ``c0``, ``c1``, ...

    They have names of their own because two columns may have the same one, and any characters in it.
    """
    numbered = df.toDF(*(f"c{position}" for position in range(len(df.columns))))
    rows = numbered.select(
        *(
            _comparable(sql.col(f"c{position}"), df.schema[position].dataType).alias(f"c{position}")
            for position in positions
        )
    )
    return rows.distinct() if distinct else rows


def _difference(
    wanted: DataFrame, found: DataFrame, only_unexpected: bool
) -> tuple[list[Row], list[Row]]:
    """Return the missing and the surplus rows, each as often as it is missing or surplus. Runs one job."""
    both = wanted.withColumn(_COUNT, sql.lit(1)).unionAll(found.withColumn(_COUNT, sql.lit(-1)))
    counted = both.groupBy(*wanted.columns).agg(sql.sum(_COUNT).alias(_COUNT))
    condition = f"{_COUNT} < 0" if only_unexpected else f"{_COUNT} != 0"
    different = counted.where(condition).limit(2 * MAX_ROWS_SHOWN).collect()
    missing = [row for row in different if row[-1] > 0]
    surplus = [row for row in different if row[-1] < 0]
    return _repeated(missing), _repeated(surplus)


def _repeated(rows: Sequence[Row]) -> list[Row]:
    """Return each row without its count, as often as the count says."""
    shown: list[Row] = []
    for row in rows:
        shown += [Row(*row[:-1])] * min(abs(row[-1]), MAX_ROWS_SHOWN)
    return shown[:MAX_ROWS_SHOWN]


def _comparable(column: Column, data_type: DataType) -> Column:
    """Return the column in a form whose values can be grouped and do not depend on the order of rows.

    The last digits of a floating point sum depend on the order of its rows, so numbers are rounded; the
    order in an array may, so arrays are sorted. Maps and variants cannot be grouped at all.
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
            # Two fields may have the same name.
            numbered = StructType()
            for position, field in enumerate(fields):
                numbered.add(f"c{position}", field.dataType)
            renamed = column.cast(numbered)
            parts = [
                _comparable(renamed.getField(f"c{position}"), field.dataType).alias(field.name)
                for position, field in enumerate(fields)
            ]
            return sql.when(column.isNotNull(), sql.struct(*parts))
    return column


def _rounded(column: Column, digits: str, type_name: str) -> Column:
    text = sql.format_string(digits, column.cast("double"))
    return sql.when(column.isNotNull(), text.cast(type_name))
