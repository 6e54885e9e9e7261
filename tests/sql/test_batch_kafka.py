"""``spark.read`` and ``df.write`` with ``format("kafka")`` in an attached session."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.kafka.broker import KafkaBroker


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    """A topic with two partitions: 0 to 4 at the times 1000 to 1004, and 10 to 14 at the same times."""
    name = broker.create(f"b-{uuid.uuid4().hex[:8]}", 2)
    for number in range(5):
        for partition in (0, 1):
            value = str(number + 10 * partition)
            broker.send(name, [value], partition, key="k", timestamp=1000 + number)
    return name


@pytest.fixture
def read(spark: SparkSession, broker: KafkaBroker) -> Callable[..., DataFrame]:
    def load(**options: Any) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
        return reader.options(**options).load()

    return load


def values(df: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in df.select("value").collect())


ALL = [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_a_batch_has_everything_there_is(
    broker: KafkaBroker, topic: str, read: Callable[..., DataFrame]
) -> None:
    rows = read(subscribe=topic)
    assert not rows.isStreaming
    assert rows.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]
    assert values(rows) == ALL
    broker.send(topic, ["99"])
    assert rows.count() == 10, "its end is that of when it was made"
    row = rows.where("value = '13'").first()
    assert row is not None
    assert (row.key, row.topic, row.partition, row.offset) == (b"k", topic, 1, 3)
    assert read(subscribe=topic, includeHeaders=True).columns[-1] == "headers"
    assert read(subscribePattern=f"{topic}.*").count() == 11
    assert values(read(assign=json.dumps({topic: [1]}))) == ALL[5:]


def test_where_a_batch_begins_and_ends(topic: str, read: Callable[..., DataFrame]) -> None:
    def offsets(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    cases: list[tuple[dict[str, str], list[int]]] = [
        ({"startingOffsets": offsets(3, -2)}, [3, 4, *ALL[5:]]),
        ({"endingOffsets": offsets(2, -1)}, [0, 1, *ALL[5:]]),
        ({"startingOffsets": offsets(1, 1), "endingOffsets": offsets(3, 1)}, [1, 2]),
        ({"startingTimestamp": "1003"}, [3, 4, 13, 14]),
        ({"endingTimestamp": "1001"}, [0, 10]),
        ({"startingTimestamp": "1001", "endingTimestamp": "1003"}, [1, 2, 11, 12]),
        ({"endingTimestamp": "5000"}, ALL),
        ({"startingOffsetsByTimestamp": offsets(1004, 1002)}, [4, 12, 13, 14]),
        ({"endingOffsetsByTimestamp": offsets(1000, 1001)}, [10]),
    ]
    for options, expected in cases:
        assert values(read(subscribe=topic, **options)) == expected, options
    many = read(subscribe=topic, minPartitions=5)
    assert many.rdd.getNumPartitions() >= 4
    assert values(many) == ALL


def test_offsets_that_are_not_there(
    broker: KafkaBroker, topic: str, read: Callable[..., DataFrame]
) -> None:
    broker.truncate(topic, 0, 2)
    wrong = [
        {"startingOffsets": json.dumps({topic: {"0": 1, "1": 0}})},
        {"endingOffsets": json.dumps({topic: {"0": 4, "1": 99}})},
    ]
    for options in wrong:
        with pytest.raises(Exception, match=r"partition \d of topic .* has offsets \d to before 5"):
            read(subscribe=topic, **options)
    assert values(read(subscribe=topic, failOnDataLoss=False, **wrong[0])) == ALL[2:]
    assert values(read(subscribe=topic, failOnDataLoss=False, **wrong[1])) == [2, 3, *ALL[5:]]


def test_mistakes_are_one_sentence(
    spark: SparkSession, topic: str, read: Callable[..., DataFrame]
) -> None:
    for options, sentence in (
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"subscribe": topic, "startingOffsets": "latest"}, "a batch that begins there is empty"),
        ({"subscribe": topic, "endingOffsets": "earliest"}, "a batch that ends there is empty"),
        ({"subscribe": topic, "maxOffsetsPerTrigger": "1"}, "is for streams"),
        ({}, "needs one of the options subscribe"),
    ):
        with pytest.raises(Exception, match=sentence) as failure:
            read(**options)
        assert len(str(failure.value).splitlines()) == 1
    with pytest.raises(Exception, match=r"leave out a schema"):
        spark.read.format("kafka").schema("a int").load()


def test_a_batch_is_written(
    spark: SparkSession, broker: KafkaBroker, topic: str, read: Callable[..., DataFrame]
) -> None:
    rows = spark.range(20, 23).selectExpr("string(id) AS key", "string(id) AS value")
    servers = {"kafka.bootstrap.servers": broker.address, "topic": topic}
    rows.write.format("kafka").options(**servers).mode("append").save()
    rows.write.save(format="kafka", **servers)
    found = read(subscribe=topic, includeHeaders=True).where("key <> 'k'").collect()
    assert sorted(int(row.value) for row in found) == [20, 20, 21, 21, 22, 22]
    assert {row.headers for row in found} == {None}
    with pytest.raises(AnalysisException, match="only adds messages") as refused:
        rows.write.format("kafka").mode("overwrite").options(**servers).save()
    assert refused.value.getCondition() == "_LEGACY_ERROR_TEMP_3081"
    with pytest.raises(AnalysisException, match="needs a column value") as refused:
        rows.select("key").write.format("kafka").options(**servers).save()
    assert refused.value.getCondition() == "_LEGACY_ERROR_TEMP_3080"
    with pytest.raises(Exception, match="is for streams"):
        rows.write.format("kafka").options(**servers, exactlyOnce=True).save()


def test_a_batch_is_joined_with_a_stream(
    spark: SparkSession, broker: KafkaBroker, topic: str, read: Callable[..., DataFrame]
) -> None:
    stream = spark.readStream.format("kafka").option("subscribe", topic)
    stream = stream.option("kafka.bootstrap.servers", broker.address)
    rows = stream.option("startingOffsets", "earliest").load().select("value", "partition")
    table = read(subscribe=topic).select("value", F.col("offset").alias("found"))
    joined = rows.join(table, "value", "left").groupBy("partition").agg(F.sum("found").alias("sum"))
    name = f"joined_{topic.replace('-', '_')}"
    writer = joined.writeStream.outputMode("complete").format("memory").queryName(name)
    query = writer.start()
    try:
        query.processAllAvailable()
        broker.send(topic, ["1", "99"])
        query.processAllAvailable()
        assert sorted(map(tuple, spark.table(name).collect())) == [(0, 11), (1, 10)]
    finally:
        query.stop()


def test_other_formats_stay_sparks(
    spark: SparkSession, other_session: SparkSession, tmp_path: Any
) -> None:
    rows = spark.range(3)
    rows.write.mode("overwrite").option("compression", "gzip").parquet(str(tmp_path / "p"))
    named = rows.selectExpr("id", "'x' AS name")
    named.write.format("json").partitionBy("name").save(str(tmp_path / "j"), mode="append")
    assert spark.read.parquet(str(tmp_path / "p")).count() == 3
    assert spark.read.format("json").schema("id long").load(str(tmp_path / "j")).count() == 3
    assert type(other_session.read).__module__.startswith("pyspark.")
    assert type(other_session.range(1).write).__module__.startswith("pyspark.")
    with pytest.raises(AnalysisException, match="Failed to find data source"):
        other_session.read.format("kafka").load()


def test_a_query_that_reads_kafka_can_be_verified(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: Any
) -> None:
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .load()
    )
    query = (
        stream.selectExpr("string(value) AS v")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "out"))
    )
    try:
        query.processAllAvailable()
        verification = query.verify()
        assert verification, verification
        assert verification.rows == 10
    finally:
        query.stop()
