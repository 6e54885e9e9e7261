"""Compares the rows of a batch query with the rows that a stream has made, in one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
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

from tidemill.batches.sink import Sink
from tidemill.spark.compiler.observed_rows import collect_observed
from tidemill.sql.verify.report import Comparison

MAX_ROWS_SHOWN = 20
"""The most rows that a report shows of each kind."""

_SIDE = "_side"
_ROWS, _DIFFERENCES = "tidemill.rows", "tidemill.differences"
_POSITION = "_position"


@dataclass(frozen=True)
class StreamResult:
    """Rows that the stream has made, by the places that they were read from.

    With ``is_partial`` it may lack rows of the batch query: the watermark has removed those that can no
    longer change.
    """

    places: Sequence[tuple[str, DataFrame]]
    is_partial: bool = False
    # What the rows of a partial result must be among.
    among: str = "them"
    # The sink that the first place is read from.
    sink: Sink | None = None

    @classmethod
    def of(cls, name: str, rows: DataFrame, is_partial: bool = False) -> StreamResult:
        return cls([(name, rows)], is_partial)

    @property
    def kept_as(self) -> str:
        return "" if self.sink is None else self.sink.kept_as()


def compare_as_kept(
    expected: DataFrame, results: Sequence[StreamResult], positions: Sequence[int]
) -> tuple[int, list[Comparison]]:
    """Compare as :func:`compare` does. A sink that does not keep all of a row, such as csv files, is compared
    with what it would have kept of the batch query's rows.
    """
    rows = 0
    comparisons: list[Comparison] = []
    complete = [result for result in results if not result.kept_as]
    if complete:
        rows, comparisons = compare(expected, complete, positions)
    for result in results:
        if result.sink is None or not result.kept_as:
            continue
        with ExitStack() as stack:
            kept, *others = [
                stack.enter_context(result.sink.read_back(each))
                for each in [expected, *(each for _, each in result.places[1:])]
            ]
            names = [name for name, _ in result.places]
            places = list(zip(names, [result.places[0][1], *others], strict=True))
            rows, found = compare(kept, [replace(result, places=places)], positions)
            comparisons += [replace(each, kept_as=result.kept_as) for each in found]
    return rows, comparisons


def compare(
    expected: DataFrame, results: Sequence[StreamResult], positions: Sequence[int]
) -> tuple[int, list[Comparison]]:
    """Return how many rows the batch query has, and how each result of the stream compares with them.

    Only the columns at ``positions`` count. Every row gets the number of its side: 0 for the batch query,
    then one for each place. Equal rows are grouped, and counted by side.
    """
    places = [(number, place) for number, each in enumerate(results) for place in each.places]
    sides = [expected, *(rows for _, (_, rows) in places)]
    union = reduce(
        DataFrame.unionAll,
        (
            _comparable_rows(rows, positions).withColumn(_SIDE, sql.lit(side))
            for side, rows in enumerate(sides)
        ),
    )
    counts = [sql.count_if(sql.col(_SIDE) == side) for side in range(len(sides))]
    # By how much each result has more of a row than the batch query; negative if it has less.
    surplus = [
        sum(
            (counts[side] for side, (of, _) in enumerate(places, start=1) if of == number),
            start=-counts[0],
        )
        for number in range(len(results))
    ]
    differs = [
        sql.col(f"r{number}") > 0 if each.is_partial else sql.col(f"r{number}") != 0
        for number, each in enumerate(results)
    ]
    names = [f"c{position}" for position in positions]
    different = (
        union.observe(_ROWS, *(count.alias(f"s{side}") for side, count in enumerate(counts)))
        .groupBy(*names)
        .agg(*(column.alias(f"r{number}") for number, column in enumerate(surplus)))
        .where(reduce(Column.__or__, differs))
        .observe(
            _DIFFERENCES, *(sql.count_if(each).alias(str(n)) for n, each in enumerate(differs))
        )
    )
    # Sorted by anything: unlike a bare limit, that computes all rows, so that all are counted.
    shown, observed = collect_observed(
        different.orderBy(sql.xxhash64(*names)).limit(2 * MAX_ROWS_SHOWN), [_ROWS, _DIFFERENCES]
    )
    totals = observed.get(_ROWS) or [0] * len(sides)
    differences = observed.get(_DIFFERENCES) or [0] * len(results)
    as_row = Row(*(expected.columns[position] for position in positions))
    comparisons = [
        Comparison(
            [
                (name, totals[side])
                for side, (of, (name, _)) in enumerate(places, start=1)
                if of == number
            ],
            each.is_partial,
            differences[number],
            [] if each.is_partial else _repeated(as_row, shown, len(names) + number, -1),
            _repeated(as_row, shown, len(names) + number, 1),
            each.among,
        )
        for number, each in enumerate(results)
    ]
    return totals[0], comparisons


def newest_rows(rows: DataFrame, keys: Sequence[int]) -> DataFrame:
    """Return, of rows in the order in which they were written, the last one for each value of ``keys``."""
    numbered = _numbered(rows).withColumn(_POSITION, sql.monotonically_increasing_id())
    columns = [f"c{position}" for position in range(len(rows.columns))]
    newest = numbered.groupBy(*(columns[key] for key in keys)).agg(
        sql.max_by(sql.struct(*columns), _POSITION).alias("newest")
    )
    return newest.select("newest.*").toDF(*rows.columns)


def _numbered(df: DataFrame) -> DataFrame:
    """Return the columns under the names ``c0``, ``c1``, ...: two may have one name, of any characters."""
    return df.toDF(*(f"c{position}" for position in range(len(df.columns))))


def _comparable_rows(df: DataFrame, positions: Sequence[int]) -> DataFrame:
    """Return the columns that count, called ``c0``, ``c1``, ..."""
    return _numbered(df).select(
        *(
            _comparable(sql.col(f"c{position}"), df.schema[position].dataType).alias(f"c{position}")
            for position in positions
        )
    )


def _repeated(as_row: Row, rows: Sequence[Row], place: int, sign: int) -> list[Row]:
    """Return the rows with a surplus (``sign`` 1) or a lack (-1) at ``place``, each as often as it says."""
    repeated: list[Row] = []
    for row in rows:
        repeated += [as_row(*row[: len(as_row)])] * min(sign * row[place], MAX_ROWS_SHOWN)
    return repeated[:MAX_ROWS_SHOWN]


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
