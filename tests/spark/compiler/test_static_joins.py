"""A stream joined with tables: every kind of join that gives its rows row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.streams import FedQuery, plans, settings_of

SCHEMA = "id int, k string"
BATCHES: list[list[Any]] = [
    [(1, "a"), (2, "b"), (None, "x"), (9, None)],
    [(2, "b"), (3, "a"), (3, "c"), (1, None)],
    [],
    [(4, "d"), (2, "b")],
]
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DataFrame:
    path = str(tmp_path / "table")
    rows = [(1, "one"), (2, "two"), (2, "deux"), (4, "four"), (None, "none")]
    spark.createDataFrame(rows, "id int, name string").coalesce(1).write.parquet(path)
    return spark.read.parquet(path)


def check(
    spark: SparkSession, operation: Any, tmp_path: Path, mode: str = "append", threshold: int = -1
) -> None:
    with (
        settings_of(spark, **{THRESHOLD: threshold}),
        plans(lambda batch_id: batch_id < 2),
        FedQuery(spark, SCHEMA, operation, mode, tmp_path / "checkpoint") as query,
    ):
        for number, rows in enumerate(BATCHES):
            if number == 3:
                query.restart()
            query.feed(rows)
            assert query.result() == query.expected()


@pytest.mark.parametrize("threshold", [-1, 10_000_000], ids=["shuffled", "broadcast"])
@pytest.mark.parametrize("kind", ["inner", "left_outer", "left_semi", "left_anti"])
def test_the_stream_on_the_left(
    kind: str, threshold: int, spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    check(spark, lambda df: df.join(table, "id", kind), tmp_path, threshold=threshold)


@pytest.mark.parametrize("threshold", [-1, 10_000_000], ids=["shuffled", "broadcast"])
def test_the_stream_on_the_right(
    threshold: int, spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    check(spark, lambda df: table.join(df, "id", "right_outer"), tmp_path, threshold=threshold)


def test_without_equal_columns(spark: SparkSession, table: DataFrame, tmp_path: Path) -> None:
    check(
        spark,
        lambda df: (
            df.withColumnRenamed("id", "own")
            .join(table, F.expr("abs(own - id) <= 1"), "left_outer")
            .crossJoin(spark.range(2).toDF("copy"))
        ),
        tmp_path,
    )


def test_a_table_that_is_cached_or_aggregated_itself(
    spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    names = table.groupBy("id").agg(F.count("*").alias("names"))
    cached = spark.range(4).withColumn("square", F.col("id") * F.col("id")).cache()
    try:
        check(
            spark,
            lambda df: (
                df.join(names, "id", "left_outer")
                .join(cached, "id", "left_outer")
                .groupBy("k")
                .agg(F.sum("names").alias("n"), F.sum("square").alias("s"), F.countDistinct("id"))
            ),
            tmp_path,
            "complete",
        )
    finally:
        cached.unpersist()


@pytest.mark.parametrize("threshold", [-1, 10_000_000], ids=["shuffled", "broadcast"])
def test_an_inner_join_that_is_aggregated(
    threshold: int, spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    spread = table.repartition(3)
    check(
        spark,
        lambda df: df.join(spread, "id").groupBy("name").agg(F.count("*").alias("n")),
        tmp_path,
        "complete",
        threshold,
    )


def test_an_aggregation_joined_with_a_table(
    spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    check(
        spark,
        lambda df: df.groupBy("id").count().join(table, "id").orderBy("count", "name"),
        tmp_path,
        "complete",
    )


def test_subqueries_over_tables(spark: SparkSession, table: DataFrame, tmp_path: Path) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("tidemill_joined")
        table.createOrReplaceTempView("tidemill_table")
        return spark.sql(
            """
            SELECT id, k, (SELECT max(name) FROM tidemill_table) AS most,
                   id IN (SELECT id FROM tidemill_table WHERE id IS NOT NULL) AS known
            FROM tidemill_joined s
            WHERE NOT EXISTS (SELECT 1 FROM tidemill_table t WHERE t.id = s.id AND t.name = 'one')
            """
        )

    check(spark, operation, tmp_path, threshold=10_000_000)
