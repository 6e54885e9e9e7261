"""``dropDuplicates``, ``distinct`` and the like: only the first row of a key ever passes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.spark_streams import by_spark, by_tidemill
from tests.sql.streams import FedQuery, plans

SCHEMA = "k string, d double, n int"


def test_the_first_row_of_a_key_passes(spark: SparkSession, tmp_path: Path) -> None:
    with FedQuery(spark, SCHEMA, lambda df: df.dropDuplicates(["k"]), "append", tmp_path) as query:
        query.feed([("a", 1.0, 1), ("a", 2.0, 2), (None, 0.0, 3), (None, 1.0, 4)])
        query.restart()
        query.feed([("a", 1.0, 5), ("b", 2.0, 6), ("", 0.0, 7), (None, 1.0, 8)])
        passed = [row.n for batch in query.outputs.values() for row in batch]
    assert sorted(passed) == [1, 3, 6, 7]


def test_zeros_are_one_number_and_so_are_nans(spark: SparkSession, tmp_path: Path) -> None:
    nan = float("nan")
    with (
        plans(lambda batch_id: batch_id == 1),
        FedQuery(spark, SCHEMA, lambda df: df.select("d").distinct(), "append", tmp_path) as query,
    ):
        query.feed([("", 0.0, 1), ("", nan, 1)])
        query.feed([("", -0.0, 1), ("", -nan, 1), ("", None, 1)])
        query.feed([("", -0.0, 1), ("", nan, 1), ("", None, 1)])
        assert query.result() == query.expected()
        assert sum(query.result().values()) == 3


def test_sql_says_distinct_and_union(spark: SparkSession, tmp_path: Path) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("tidemill_dedup")
        return df.sparkSession.sql(
            "SELECT DISTINCT k FROM tidemill_dedup WHERE n > 1 UNION SELECT upper(k) FROM tidemill_dedup"
        )

    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(spark, SCHEMA, operation, "append", tmp_path) as query,
    ):
        for rows in (
            [("a", 0.0, 1), ("b", 0.0, 2)],
            [("a", 0.0, 2), ("B", 0.0, 2)],
            [("b", 0.0, 3), (None, 0.0, 2)],
        ):
            query.feed(rows)
            assert query.result() == query.expected()


DISTINCT = {
    "SELECT DISTINCT": "SELECT DISTINCT t, k FROM tidemill_dedup",
    "UNION": "SELECT t, k FROM tidemill_dedup UNION SELECT t, upper(k) FROM tidemill_dedup",
    "a pipe": "TABLE tidemill_dedup |> WHERE k <> '' |> SELECT DISTINCT t, k",
}


def minute(number: int) -> datetime:
    return datetime(2020, 1, 1, 0, number, tzinfo=UTC)


@pytest.mark.parametrize("watermark", [False, True])
@pytest.mark.parametrize("text", DISTINCT)
def test_distinct_in_update_mode_repeats_a_row_that_comes_again_as_in_spark(
    text: str, watermark: bool, spark: SparkSession, tmp_path: Path
) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df = df.withWatermark("t", "5 minutes") if watermark else df
        df.createOrReplaceTempView("tidemill_dedup")
        return df.sparkSession.sql(DISTINCT[text])

    steps = [
        (0, [(minute(1), "a"), (minute(1), "a"), (minute(2), "b")]),
        (0, [(minute(1), "a"), (minute(20), "c")]),
        (0, [(minute(20), "c"), (minute(1), "a")]),
        (0, [(minute(40), "c")]),
    ]
    run = (spark, ["t timestamp, k string"], operation, "update", steps, tmp_path, {})
    expected = by_spark(*run)
    assert by_tidemill(*run, restart_before=2) == expected
    assert sum(sum(batch.values()) for batch in expected.batches.values()) > 4


def test_distinct_keeps_what_an_earlier_version_kept_as_duplicates(
    spark: SparkSession, tmp_path: Path
) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("tidemill_dedup")
        return df.sparkSession.sql("SELECT DISTINCT k FROM tidemill_dedup")

    # In append mode the state is that of dropDuplicates, as it was once in update mode.
    with FedQuery(spark, SCHEMA, operation, "append", tmp_path) as query:
        query.feed([("a", 0.0, 1), ("b", 0.0, 2)])
        query.mode = "update"
        query.restart()
        query.feed([("a", 0.0, 3), ("c", 0.0, 4)])
        assert sorted(row.k for row in query.outputs[1]) == ["a", "c"]
        (operator,) = query.query.lastProgress.stateOperators
        assert (operator.numRowsTotal, operator.numRowsUpdated) == (3, 2)
        assert operator.operatorName == "stateStoreSave"
        query.restart()
        query.feed([("b", 0.0, 5)])
        assert query.query.lastProgress.stateOperators[0].numRowsTotal == 3


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_distinct_below_an_aggregation_lets_a_row_pass_once(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("tidemill_dedup")
        text = "SELECT k, count(*) c FROM (SELECT DISTINCT k, n FROM tidemill_dedup) GROUP BY k"
        return df.sparkSession.sql(text)

    with FedQuery(spark, SCHEMA, operation, mode, tmp_path, ["k"]) as query:
        for rows in ([("a", 0.0, 1), ("b", 0.0, 2)], [("a", 0.0, 1), ("a", 0.0, 2)]):
            query.feed(rows)
            assert query.result() == query.expected()


def test_state_on_both_sides_of_a_union(spark: SparkSession, tmp_path: Path) -> None:
    def operation(a: DataFrame, b: DataFrame) -> DataFrame:
        left = a.dropDuplicates(["k"]).select("k", F.lit("left").alias("side"))
        right = b.dropDuplicates(["k", "n"]).select("k", F.lit("right").alias("side"))
        return left.unionByName(right)

    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(spark, [SCHEMA, SCHEMA], operation, "append", tmp_path) as query,
    ):
        for number, rows in enumerate(
            (
                [("a", 0.0, 1), ("b", 0.0, 2)],
                [("a", 0.0, 1), ("a", 0.0, 2)],
                [("b", 0.0, 1), ("c", 0.0, 2)],
            )
        ):
            query.add(rows, 0)
            query.feed(rows, 1)
            if number == 1:
                query.restart()
            assert query.result() == query.expected()


def test_duplicates_go_before_an_aggregation_of_two_streams(
    spark: SparkSession, tmp_path: Path
) -> None:
    def operation(a: DataFrame, b: DataFrame) -> DataFrame:
        rows = a.dropDuplicates(["k", "n"]).unionByName(b.dropDuplicates(["n"]))
        return rows.groupBy("n").count()

    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(spark, [SCHEMA, SCHEMA], operation, "complete", tmp_path) as query,
    ):
        for rows in (
            [("a", 0.0, 1), ("b", 0.0, 1)],
            [("a", 0.0, 1), ("c", 0.0, 1)],
            [("c", 0.0, 2), ("c", 0.0, 2)],
        ):
            query.add(rows, 0)
            query.feed(rows, 1)
            assert query.result() == query.expected()
