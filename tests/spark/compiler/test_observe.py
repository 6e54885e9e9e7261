"""Metrics that a query observes, in the progress of each batch."""

from __future__ import annotations

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql

from tidemill.sources.memory_stream import MemoryStream


def test_observed_metrics_of_a_batch_are_in_its_progress(spark: SparkSession) -> None:
    numbers = MemoryStream("n int, word string")
    df = spark.readStream.format(numbers.name).load()
    seen = df.observe("seen", sql.sum("n").alias("total"), sql.max("word").alias("last"))
    query = seen.writeStream.format("noop").start()
    try:
        numbers.add([(1, "b"), (2, None)])
        query.processAllAvailable()
        first = query.recentProgress[-1].observedMetrics
        numbers.add([(5, None)])
        query.processAllAvailable()
        second = query.recentProgress[-1].observedMetrics
    finally:
        query.stop()
        numbers.close()
    assert first == {"seen": Row(total=3, last="b")}
    assert second == {"seen": Row(total=5, last=None)}
