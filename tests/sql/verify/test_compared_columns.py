"""Which columns of a result tell its rows apart, and which can be compared with a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.compared_columns import (
    ComparedColumns,
    compared_columns,
    key_positions,
)


@pytest.fixture(scope="module")
def stream(spark: SparkSession) -> DataFrame:
    rate = spark.readStream.format("rate").load()
    return rate.selectExpr("value AS a", "value % 7 AS b", "timestamp AS at")


KEYS: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[int, ...] | None]] = {
    "columns": (lambda df: df.groupBy("a", "b").count(), (0, 1)),
    "an expression": (lambda df: df.groupBy((F.col("a") % 3).alias("k")).count(), (0,)),
    "a window": (lambda df: df.groupBy(F.window("at", "1 minute"), "b").count(), (0, 1)),
    "in another order": (lambda df: df.groupBy("a", "b").count().select("count", "b", "a"), (1, 2)),
    "under other names": (lambda df: df.groupBy("a").count().toDF("x", "y"), (0,)),
    "after a filter": (lambda df: df.groupBy("a").count().where("count > 1"), (0,)),
    "without keys": (lambda df: df.groupBy().count(), ()),
    "one is not selected": (lambda df: df.groupBy("a", "b").count().select("a", "count"), None),
    "one is computed from": (lambda df: df.groupBy("a").count().selectExpr("a % 2", "count"), None),
    "several rows for each": (
        lambda df: df.groupBy("a").count().select("a", F.explode(F.array("count"))),
        None,
    ),
    "all columns": (
        lambda df: df.sparkSession.sql("SELECT DISTINCT a, b FROM {df}", df=df),
        (0, 1),
    ),
}


@pytest.mark.parametrize("case", KEYS)
def test_the_keys_of_an_aggregation_are_found_in_its_result(stream: DataFrame, case: str) -> None:
    operation, positions = KEYS[case]
    assert key_positions(operation(stream)) == positions


def test_of_duplicates_only_the_keys_are_certain(stream: DataFrame) -> None:
    assert compared_columns(stream) == ComparedColumns((0, 1, 2))
    assert compared_columns(stream.distinct()) == ComparedColumns((0, 1, 2))
    assert compared_columns(stream.dropDuplicates(["b"])) == ComparedColumns((1,), True)
    with pytest.raises(UnsupportedError, match="select these columns, too"):
        compared_columns(stream.dropDuplicates(["b"]).select("a"))
