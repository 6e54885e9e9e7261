"""Batches that run the very same plan again: those of sinks that only compute or collect rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tidemill.sources.memory_stream import MemoryStream

SCHEMA = "at timestamp, word string, n int"
BATCHES = [
    [("2024-03-01 12:00:00", "a", 1), ("2024-03-01 12:01:00", "b", 2)],
    [("2024-03-01 12:05:00", "a", 3)],
    [("2024-03-01 12:02:00", "c", 4), ("2024-03-01 12:03:00", "a", 5)],
    [("2024-03-01 12:09:00", "d", 6)],
]


@contextmanager
def stream() -> Iterator[MemoryStream]:
    words = MemoryStream("at string, word string, n int", keep=True)
    try:
        yield words
    finally:
        words.close()


def rows_of(spark: SparkSession, words: MemoryStream) -> DataFrame:
    return spark.readStream.format(words.name).load().withColumn("at", sql.to_timestamp("at"))


def test_each_batch_has_event_times_and_observed_values_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    with stream() as words:
        df = rows_of(spark, words).withWatermark("at", "1 minute")
        df = df.observe("seen", sql.count("*").alias("rows"), sql.max("n").alias("most"))
        counted = df.groupBy(sql.window("at", "1 minute")).count()
        writer = counted.writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            for rows in BATCHES:
                words.add(rows)
                query.processAllAvailable()
            progress = [each for each in query.recentProgress if each.numInputRows]
        finally:
            query.stop()
    assert [each.observedMetrics["seen"].asDict() for each in progress] == [
        {"rows": len(rows), "most": max(n for *_, n in rows)} for rows in BATCHES
    ]
    assert [each.eventTime["max"][11:16] for each in progress] == [
        "12:01", "12:05", "12:03", "12:09",
    ]  # fmt: skip
    assert [each.eventTime["min"][11:16] for each in progress] == [
        "12:00", "12:05", "12:02", "12:09",
    ]  # fmt: skip


OPERATIONS: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "stateless": ("append", lambda df: df.select("word", (df.n * 2).alias("n"))),
    "static join": ("append", lambda df: _joined(df, "inner")),
    "aggregation": ("complete", lambda df: df.groupBy("word").agg(sql.sum("n").alias("n"))),
    "sort and limit": (
        "complete",
        lambda df: df.groupBy("word").agg(sql.sum("n").alias("n")).orderBy("n").limit(2),
    ),
    "sort": ("complete", lambda df: df.groupBy("word").count().orderBy("word")),
}


def _joined(df: DataFrame, how: str) -> DataFrame:
    names = df.sparkSession.createDataFrame(
        [("a", "A"), ("b", "B"), ("d", "D")], "word string, name string"
    )
    return df.join(names, "word", how).select("name", "n")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_collected_rows_are_those_of_each_batch(
    spark: SparkSession, tmp_path: Path, operation: str
) -> None:
    mode, change = OPERATIONS[operation]
    name = f"lasting_{operation.replace(' ', '_')}"
    with stream() as words:
        writer = change(rows_of(spark, words)).writeStream.format("memory").outputMode(mode)
        query = writer.queryName(name).option("checkpointLocation", str(tmp_path)).start()
        try:
            for rows in BATCHES:
                words.add(rows)
                query.processAllAvailable()
            found: Any = spark.table(name).collect()
        finally:
            query.stop()
    everything = spark.createDataFrame(
        [row for rows in BATCHES for row in rows], "at string, word string, n int"
    )
    expected = change(everything).collect()
    assert sorted(found) == sorted(expected)


def test_a_query_explains_its_plans(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stream() as words:
        counted = rows_of(spark, words).groupBy("word").count()
        writer = counted.writeStream.format("noop").outputMode("complete")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            query.explain()
            physical = capsys.readouterr().out
            query.explain(True)
            extended = capsys.readouterr().out
        finally:
            query.stop()
    assert physical.startswith("== Physical Plan ==\n")
    assert "tidemill_state" in physical
    assert extended.startswith("== Analyzed Logical Plan ==\n~Aggregate [word")
    assert extended.endswith(physical)
