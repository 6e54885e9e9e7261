"""``dropDuplicates``, ``distinct`` and the like: only the first row of a key ever passes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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
