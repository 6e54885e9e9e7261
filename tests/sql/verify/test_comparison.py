"""Rows of a batch query beside rows of a stream, of every type and name."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from tests.sql.verify.names import NAMES
from tidemill.sql.verify.comparison import MAX_ROWS_SHOWN, StreamResult, compare, newest_rows
from tidemill.sql.verify.report import Verification


def compared(expected: DataFrame, found: DataFrame, positions: Sequence[int]) -> Verification:
    rows, comparisons = compare(expected, [StreamResult.of("rows", found)], positions)
    return Verification(0, rows, comparisons)


def test_columns_of_any_name_are_compared(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,) * len(NAMES)], NAMES)
    other = spark.createDataFrame([(2,) * len(NAMES)], NAMES)
    outcome = compared(rows, other, range(len(NAMES)))
    assert (outcome.missing, outcome.unexpected) == (rows.collect(), other.collect())
    assert list(outcome.missing[0].asDict()) == NAMES


def test_fields_of_a_struct_with_any_name_are_compared(spark: SparkSession) -> None:
    inner = ", ".join(f"0.1D AS `{name.replace('`', '``')}`" for name in NAMES)
    rows = spark.sql(f"SELECT struct({inner}) AS s, array(struct({inner})) AS a")
    assert compared(rows, rows, range(2))
    twice = spark.sql("SELECT struct(1 AS a, 2.5D AS a, 3 AS b) AS s")
    outcome = compared(twice, twice, range(1))
    assert outcome, str(outcome)
    other = spark.sql("SELECT struct(1 AS a, 3.5D AS a, 3 AS b) AS s")
    outcome = compared(twice, other, range(1))
    assert [tuple(row.s) for row in outcome.missing] == [(1, 2.5, 3)]


def test_columns_of_one_name_are_compared_by_position(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS `a``b`, 2 AS `a``b`")
    other = spark.sql("SELECT 2 AS `a``b`, 1 AS `a``b`")
    assert compared(rows, rows, range(2))
    outcome = compared(rows, other, range(2))
    assert ([tuple(r) for r in outcome.missing], [tuple(r) for r in outcome.unexpected]) == (
        [(1, 2)],
        [(2, 1)],
    )


def test_rows_of_every_type_are_compared(spark: SparkSession) -> None:
    text = """SELECT map('b', 1.0D, 'a', cast('NaN' AS double)) AS m, array(3, 1) AS l,
        struct(0.1D AS x, array(map(1, 2f)) AS y) AS s, cast(null AS struct<z: double>) AS n,
        parse_json('{"a": 1}') AS v, X'00' AS b, -0.0D AS zero, 1 AS same, 2 AS same"""
    rows = spark.sql(text)
    assert compared(rows, rows, range(9))
    other = spark.sql(text.replace("map(1, 2f)", "map(1, 3f)"))
    outcome = compared(rows, other, range(9))
    assert len(outcome.missing) == len(outcome.unexpected) == 1
    twice = rows.unionAll(rows)
    assert len(compared(rows, twice, range(9)).unexpected) == 1


def test_each_result_is_compared_for_itself(spark: SparkSession) -> None:
    """However many rows one of them differs in, the other one is not forgotten."""
    expected = spark.range(100)
    results = [
        StreamResult.of("empty", spark.range(0)),
        StreamResult.of("a part", spark.range(3), is_partial=True),
        StreamResult([("one", spark.range(50)), ("other", spark.range(50, 100))]),
        StreamResult.of("one more", spark.range(101)),
        StreamResult.of("a part and one more", spark.range(100, 101), is_partial=True),
    ]
    rows, comparisons = compare(expected, results, [0])
    assert rows == 100
    assert [each.equal for each in comparisons] == [False, True, True, False, False]
    assert [each.differences for each in comparisons] == [100, 0, 0, 1, 1]
    assert [[number for _, number in each.results] for each in comparisons] == [
        [0],
        [3],
        [50, 50],
        [101],
        [1],
    ]
    assert len(comparisons[0].missing) == MAX_ROWS_SHOWN


def test_a_row_counts_as_often_as_it_is_there(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,), (1,), (2,)], "n int")
    more = compared(rows, rows.unionAll(spark.createDataFrame([(1,)], "n int")), [0])
    assert ([tuple(row) for row in more.unexpected], more.missing) == ([(1,)], [])
    less = compared(rows, rows.distinct(), [0])
    assert ([tuple(row) for row in less.missing], less.unexpected) == ([(1,)], [])


def test_nothing_equals_nothing(spark: SparkSession) -> None:
    outcome = compared(spark.range(0), spark.range(0), [0])
    assert outcome
    assert (
        str(outcome) == "equal after batch 0: 0 rows in the batch query, the same in rows (0 rows)"
    )


def test_the_newest_row_of_a_key_counts(spark: SparkSession) -> None:
    rows = [("a", 1, None), ("b", 1, 2.0), ("a", 3, 1.0), (None, 1, 1.0), ("a", 2, None)]
    written = spark.createDataFrame(rows, "k string, n int, x double").repartition(1)
    newest = newest_rows(written, [0]).collect()
    assert {tuple(row) for row in newest} == {("a", 2, None), ("b", 1, 2.0), (None, 1, 1.0)}
