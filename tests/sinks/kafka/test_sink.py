"""Queries that write to topics of a real broker, at least once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.reading import messages_of, values_of
from tests.sinks.kafka.writing import Writing
from tests.waiting import wait_for

Topics = Callable[..., str]


@pytest.fixture
def writing(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> Callable[..., Writing]:
    return lambda **options: Writing(spark, broker, tmp_path / "checkpoint", **options)


def test_messages_have_what_the_columns_say(
    broker: KafkaBroker, topic: Topics, writing: Any
) -> None:
    name, other = topic(3), topic()
    it = writing()
    it.columns = [
        "CASE n WHEN 1 THEN NULL ELSE concat('key ', n) END AS key",
        "CASE n WHEN 2 THEN NULL ELSE cast(concat('é', n) AS binary) END AS value",
        "CASE n WHEN 3 THEN NULL ELSE 2 END AS partition",
        "CASE n WHEN 0 THEN array(struct('mine' AS key, cast('1' AS binary) AS value), "
        "struct('mine' AS key, cast(NULL AS binary) AS value)) END AS headers",
        f"CASE n WHEN 4 THEN '{other}' ELSE '{name}' END AS topic",
        "n AS ignored",
    ]
    it.columns[2] = "CASE WHEN n IN (3, 4) THEN NULL ELSE 2 END AS partition"
    with it:
        it.add(0, 1, 2, 3, 4)
        batch = ("tidemill-batch", f"{it.query.id}/0".encode())
        progress = it.query.lastProgress
    found = {(m.key(), m.value()): m for m in messages_of(broker, name, 3)}
    assert set(found) == {
        (b"key 0", "é0".encode()),
        (None, "é1".encode()),
        (b"key 2", None),
        (b"key 3", "é3".encode()),
    }
    assert found[(b"key 0", "é0".encode())].headers() == [("mine", b"1"), ("mine", None), batch]
    assert found[(None, "é1".encode())].headers() == [batch]
    assert {m.partition() for m in found.values() if m.key() != b"key 3"} == {2}
    assert values_of(broker, other) == ["é4"]
    assert progress.sink.numOutputRows == 5


def test_the_option_topic_wins_and_a_key_has_its_place(
    broker: KafkaBroker, topic: Topics, writing: Any
) -> None:
    name = topic(4)
    it = writing(topic=name, batchHeader="false")
    it.columns = ["concat('k', n % 5) AS key", "string(n) AS value", "1 AS topic"]
    with it:
        it.add(*range(20))
    found = messages_of(broker, name, 4)
    assert all(message.headers() is None for message in found)
    assert sorted(int(message.value()) for message in found) == list(range(20))
    # Where Kafka's Java producer puts these keys.
    where = {message.key().decode(): message.partition() for message in found}
    assert where == {key: java_partition(key.encode(), 4) for key in where}


def java_partition(key: bytes, partitions: int) -> int:
    """The default partitioner of Kafka's Java producer: murmur2 of the key, without its sign."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    rest = key[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return ((h ^ (h >> 15)) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        (
            ["n AS key", "string(n) AS value"],
            "t",
            "column key has the type bigint.* string or binary",
        ),
        (["n AS value"], "t", "column value has the type bigint"),
        (["string(n) AS key"], "t", "needs a column value"),
        (["string(n) AS value"], None, 'column topic, or .option."topic"'),
        (["string(n) AS value", "n AS topic"], None, "column topic has the type bigint"),
        (
            ["string(n) AS value", "n AS partition"],
            "t",
            "column partition has the type bigint.* int",
        ),
        (
            ["string(n) AS value", "array(1) AS headers"],
            "t",
            "column headers has the type array<int>",
        ),
    ],
)
def test_columns_that_make_no_messages_are_refused_at_start(
    writing: Any, columns: list[str], topic: str | None, sentence: str
) -> None:
    it = writing(**({} if topic is None else {"topic": topic}))
    it.columns = columns
    with pytest.raises(AnalysisException, match=sentence) as refused:
        it.start()
    assert refused.value.getCondition() == "_LEGACY_ERROR_TEMP_3080"
    assert len(str(refused.value).splitlines()) == 1


def test_output_modes(
    broker: KafkaBroker, topic: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    for mode, expected in (
        ("update", ["0=1", "1=1", "0=2", "2=1"]),
        ("complete", ["0=1", "1=1", "0=2", "1=1", "2=1"]),
    ):
        name = topic()
        it = Writing(spark, broker, tmp_path / mode, topic=name)
        it.mode = mode
        counts = spark.readStream.format(it.input.name).load().groupBy("n").count()
        rows = counts.orderBy("n") if mode == "complete" else counts
        it.rows = lambda rows=rows: rows.select(  # type: ignore[misc]
            F.concat("n", F.lit("="), "count").alias("value")
        )
        with it:
            it.add(0, 1)
            it.add(0, 2)
        found = values_of(broker, name)
        assert (sorted(found[:2]), sorted(found[2:])) == (expected[:2], sorted(expected[2:]))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(broker: KafkaBroker, topic: Topics, writing: Any, codec: str) -> None:
    name = topic(compression_type="producer")
    it = writing(topic=name, **{"kafka.compression.type": codec})
    it.columns = ["repeat('tide', 1000) AS value"]
    with it:
        it.add(*range(50))
    assert values_of(broker, name) == ["tide" * 1000] * 50
    described = (Path(broker.data) / f"{name}-0").glob("*.log")
    assert sum(file.stat().st_size for file in described) < 50 * 4000 / 4


@pytest.mark.parametrize("once", ["false", "true"])
def test_a_message_that_is_larger_than_the_queue_of_the_producer(
    broker: KafkaBroker, topic: Topics, writing: Any, once: str
) -> None:
    name = topic(max_message_bytes="90000000")
    options = {"topic": name, "exactlyOnce": once, "kafka.max.request.size": "90000000"}
    it = writing(**options, **{"kafka.buffer.memory": "1048576"})
    it.columns = ["repeat('x', n) AS value"]
    sentence = (
        f"a value of 2000000 bytes for topic {name}, more than the producer keeps at once, 1024"
    )
    with pytest.raises(Exception, match=sentence), it:
        it.add(2_000_000)


def test_a_message_that_is_larger_than_the_queue_would_be_by_default(
    broker: KafkaBroker, topic: Topics, writing: Any
) -> None:
    name = topic(max_message_bytes="90000000")
    it = writing(topic=name, **{"kafka.max.request.size": "90000000"})
    it.columns = ["repeat('x', n) AS value"]
    with it:
        it.add(70_000_000)
    assert broker.latest(name) == 1


def test_mistakes_are_one_sentence(broker: KafkaBroker, topic: Topics, writing: Any) -> None:
    name = topic()
    cases: list[tuple[dict[str, str], str]] = [
        ({"topic": "no-such-topic"}, "cannot write to topic no-such-topic: there is none at 127"),
        ({"topic": "no such topic"}, "cannot write to topic no such topic"),
        ({"topic": name, "kafka.bootstrap.servers": "127.0.0.1:1"}, "no Kafka broker answers"),
        ({"topic": name, "kafka.no.such": "1"}, 'No such configuration property: "no.such"'),
        ({"topic": name, "kafka.acks": "many"}, "refuses.*acks"),
        ({"topic": name, "topik": "x"}, "no option topik. Did you mean topic"),
        ({"topic": name, "kafka.transactional.id": "x"}, "transactionalIdPrefix"),
        ({"topic": name, "exactlyOnceTasks": "2"}, "exactlyOnce=true only"),
        ({"topic": name, "exactlyOnce": "true", "kafka.acks": "1"}, "needs.*acks=all"),
        ({"topic": name, "exactlyOnce": "true", "batchHeader": "b"}, "for writing at least once"),
    ]
    for options, sentence in cases:
        it = writing(**options)
        with pytest.raises(Exception, match=sentence) as failure:
            it.start()
        assert len(str(failure.value).splitlines()) == 1


@pytest.mark.parametrize("once", ["false", "true"])
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["repeat('x', 2000000) AS value", "'{}' AS topic"], "value of 2000000 bytes for topic {}"),
        (["repeat('x', 900000) AS value", "'{}' AS topic"], "value of 900000 bytes for topic {}"),
        (["string(n) AS value", "string(NULL) AS topic"], "a row whose topic is null"),
        (["string(n) AS value", "'none-{}' AS topic"], "to topic none-{}: there is none"),
        (["string(n) AS value", "'{}' AS topic", "7 AS partition"], "partition 7 of topic {}"),
        (["string(n) AS value", "'{}' AS topic", "-1 AS partition"], "partition -1 of topic {}"),
        (
            [
                "string(n) AS value",
                "'{}' AS topic",
                "array(struct(string(NULL) AS key, cast('v' AS binary) AS value)) AS headers",
            ],
            "a header without a key",
        ),
    ],
)
def test_rows_that_make_no_messages(
    broker: KafkaBroker,
    topic: Topics,
    writing: Any,
    columns: list[str],
    sentence: str,
    once: str,
) -> None:
    name = topic(max_message_bytes="500000")
    it = writing(exactlyOnce=once)
    it.columns = [column.format(name) for column in columns]
    it.start()
    with pytest.raises(Exception, match=sentence.format(name)) as failure:
        it.add(1)
    assert str(failure.value).startswith(("SinkError: ", "a row", "the kafka sink"))
    assert values_of(broker, name) == []
    assert broker.committed(name) == broker.latest(name), "a transaction stays open"


@pytest.mark.parametrize("once", ["false", "true"])
def test_a_broker_that_dies_and_comes_back(
    broker: KafkaBroker, topic: Topics, writing: Any, once: str
) -> None:
    name = topic(2)
    patient = {"kafka.delivery.timeout.ms": 300_000}
    with writing(topic=name, exactlyOnce=once, **patient) as it:
        it.add(*range(10))
        broker.kill()
        it.input.add([(number,) for number in range(10, 20)])
        waiting = f"Waiting for the broker at {broker.address}"
        wait_for(lambda: it.query.status["message"].startswith(waiting), "the status to say so")
        broker.start()
        it.query.processAllAvailable()
        assert not it.query.status["message"].startswith(waiting)
        it.add(*range(20, 30))
    found = [int(value) for value in values_of(broker, name, 2)]
    assert set(found) == set(range(30))
    assert once == "false" or len(found) == 30


@pytest.mark.parametrize("once", ["false", "true"])
def test_a_broker_that_stays_away_is_an_error_and_no_row_is_lost(
    broker: KafkaBroker, topic: Topics, writing: Any, once: str
) -> None:
    name = topic()
    it = writing(topic=name, exactlyOnce=once, **{"kafka.delivery.timeout.ms": 3000})
    it.start()
    it.add(1)
    broker.kill()
    try:
        with pytest.raises(Exception, match=r"BrokerUnavailableError: no .*broker"):
            it.add(2)
        with pytest.raises(Exception, match="no Kafka broker answers"):
            it.start()
    finally:
        broker.start()
    with it:
        it.query.processAllAvailable()
    assert values_of(broker, name) == ["1", "2"]
