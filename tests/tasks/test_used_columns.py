"""A stream's leaf makes only the columns that its query uses, and the answer stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import tidemill
from tidemill.batches.batch import RangeSize
from tidemill.batches.table_source import SplitSource

ROWS = 6
COLUMNS = {
    "n": pa.array(range(ROWS), pa.int64()),
    "k": pa.array(["a", "b", None] * 2),
    "at": pa.array([s * 60_000_000 for s in range(ROWS)], pa.timestamp("us", tz="UTC")),
}


class Reader:
    """Yields, as its column ``k``, the names of the columns that it was asked for."""

    names: Sequence[str] = ("n", "k", "at")

    def for_columns(self, names: Sequence[str]) -> Reader:
        narrow = Reader()
        narrow.names = names
        return narrow

    def __call__(self, split: Any) -> Iterator[pa.RecordBatch]:
        columns = {name: COLUMNS[name] for name in self.names}
        if "k" in columns:
            columns["k"] = pa.array([",".join(self.names)] * ROWS)
        yield pa.record_batch(columns)


class Wide(SplitSource):
    def __init__(self, options: Any) -> None:
        pass

    def schema(self) -> StructType:
        return StructType(
            [
                StructField("n", LongType()),
                StructField("k", StringType()),
                StructField("at", TimestampType()),
            ]
        )

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any, time_ms: int) -> Any:
        return 1

    def size(self, range_: Any) -> RangeSize:
        return RangeSize(records=ROWS)

    def splits(self, range_: Any, parallelism: int) -> list[Any]:
        return [0] if range_.end > range_.start else []

    def split_reader(self) -> Any:
        return Reader()


def run(spark: SparkSession, query: Callable[[DataFrame], DataFrame], mode: str) -> list[Row]:
    tidemill.register_source("wide", Wide)
    found: list[Row] = []
    writer = query(spark.readStream.format("wide").load()).writeStream.outputMode(mode)
    running = writer.foreachBatch(lambda df, _: found.extend(df.collect())).start()
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    return found


@pytest.mark.parametrize(
    ("query", "mode", "asked"),
    [
        (lambda df: df.select("k"), "append", "k"),
        (lambda df: df.select("k", "n"), "append", "n,k"),
        (lambda df: df.where("n >= 0").select("k"), "append", "n,k"),
        (lambda df: df, "append", "n,k,at"),
        (lambda df: df.select(F.upper("k").alias("k")), "append", "K"),
        (lambda df: df.groupBy("k").count(), "update", "k"),
        (lambda df: df.groupBy("k").agg(F.max("at")), "update", "k,at"),
        (
            lambda df: df.withWatermark("at", "1 minute").groupBy(F.window("at", "1 hour"), "k").count(),
            "update",
            "k,at",
        ),
        (lambda df: df.withColumn("n", F.col("n") + 1), "append", "n,k,at"),
        (lambda df: df.select("k").union(df.select("k")), "append", "k"),
        (lambda df: df.mapInPandas(lambda it: (x[["k"]] for x in it), "k string"), "append", "n,k,at"),
    ],
)  # fmt: skip
def test_only_what_is_used_is_asked_for(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], mode: str, asked: str
) -> None:
    rows = run(spark, query, mode)
    assert {row.k for row in rows} == {asked}


def test_rows_without_columns_are_counted(spark: SparkSession) -> None:
    assert run(spark, lambda df: df.groupBy().count(), "complete") == [Row(count=ROWS)]
    ones = run(spark, lambda df: df.select(F.lit(1).alias("one")), "append")
    assert ones == [Row(one=1)] * ROWS


def test_two_readings_of_one_stream_each_have_their_columns(spark: SparkSession) -> None:
    def query(df: DataFrame) -> DataFrame:
        return df.select("n", F.lit(None).alias("k")).union(df.select(F.lit(0), "k"))

    rows = run(spark, query, "append")
    assert sorted(row.n for row in rows) == sorted([0] * ROWS + list(range(ROWS)))
    assert {row.k for row in rows} == {None, "k"}
