"""Queries over topics of a real broker."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker, open_transaction
from tests.sources.kafka.reading import Reading, texts
from tests.waiting import wait_for
from tidemill.testing import ManualClock

Topics = Callable[..., str]

pytestmark = pytest.mark.usefixtures("look_often")


def test_rows_have_the_columns_of_sparks_source(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic(2)
    broker.send(
        name, ["a"], 0, key="k", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)]
    )
    broker.send(name, [None, b""], 1)
    broker.send(name, [b"x"], 1, key=b"")
    with reading(subscribe=name, includeHeaders=True) as it:
        it.read_all()
        rows = sorted(it.rows, key=lambda row: (row.partition, row.offset))
        first, null, empty, no_key = rows
    when = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000)  # noqa: DTZ001, as Spark's rows have it
    assert first[:7] == (b"k", b"a", name, 0, 0, when, 0)
    assert [tuple(header) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert (null.key, null.value, null.partition, null.offset, null.headers) == (
        None,
        None,
        1,
        0,
        None,
    )
    assert (empty.key, empty.value) == (None, b"")
    assert (no_key.key, no_key.value) == (b"", b"x")
    assert list(first.asDict()) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]


def test_a_query_continues_where_it_was(broker: KafkaBroker, topic: Topics, reading: Any) -> None:
    name = topic(2)
    with reading(subscribe=name) as it:
        for number in range(3):
            broker.send(name, texts(number * 10, number * 10 + 7), number % 2)
            it.read_all()
            it.restart()
        it.read_all()
    assert sorted(it.values) == [*texts(0, 7), *texts(10, 17), *texts(20, 27)]


def test_where_a_query_begins(
    broker: KafkaBroker, topic: Topics, spark: Any, tmp_path: Path
) -> None:
    name = topic(2)
    for number in range(4):
        broker.send(name, texts(number, number + 1), 0, timestamp=1_000 + number)
        broker.send(name, texts(10 + number, 11 + number), 1, timestamp=1_000 + number)
    earliest, latest, offset, later, never = (
        *("earliest", "latest", json.dumps({name: {"0": 3, "1": -2}})),
        *(json.dumps({name: {"0": 1_002, "1": 1_003}}), "5000"),
    )
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"startingOffsets": earliest}, [*texts(0, 4), *texts(10, 14)]),
        ({"startingOffsets": latest}, []),
        ({"startingOffsets": offset}, [*texts(3, 4), *texts(10, 14)]),
        ({"startingOffsetsByTimestamp": later}, [*texts(2, 4), *texts(13, 14)]),
        ({"startingTimestamp": "1003"}, [*texts(3, 4), *texts(13, 14)]),
        ({"startingTimestamp": never, "startingOffsetsByTimestampStrategy": "latest"}, []),
    ]
    for number, (options, expected) in enumerate(cases):
        with Reading(spark, broker, tmp_path / str(number), subscribe=name, **options) as it:
            it.read_all()
            assert it.values == expected, options
    with pytest.raises(Exception, match="no record is as young"):
        Reading(spark, broker, tmp_path / "x", subscribe=name, startingTimestamp="5000").start()
    some = json.dumps({name: {"0": 3}})
    with pytest.raises(Exception, match=r"lacks .*-1"):
        Reading(spark, broker, tmp_path / "y", subscribe=name, startingOffsets=some).start()


def test_topics_by_pattern_and_partitions_by_number(
    broker: KafkaBroker, spark: Any, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex[:8]
    for name in ("a", "b"):
        broker.create(f"{mark}-{name}", 2)
        broker.send(f"{mark}-{name}", [f"{name}0"], 0)
        broker.send(f"{mark}-{name}", [f"{name}1"], 1)
    # Kafka's own topics fit as well, and are left out.
    pattern = f"(__.*|{mark}-.*)"
    with Reading(spark, broker, tmp_path / "1", subscribePattern=pattern) as it:
        it.read_all()
        broker.create(f"{mark}-c")
        broker.send(f"{mark}-c", ["c0"])
        wait_for(lambda: it.read_all() or len(it.rows) == 5, "the new topic")
        assert it.values == ["a0", "a1", "b0", "b1", "c0"]
    assignment = json.dumps({f"{mark}-a": [1], f"{mark}-b": [0]})
    with Reading(spark, broker, tmp_path / "2", assign=assignment) as it:
        it.read_all()
        assert it.values == ["a1", "b0"]


def test_a_limit_is_shared_in_proportion_to_lag(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic(2)
    broker.send(name, texts(0, 90), 0)
    broker.send(name, texts(100, 110), 1)
    with reading(subscribe=name, maxOffsetsPerTrigger=50) as it:
        it.read_all()
    sizes = [[row.partition for row in it.batches[number]] for number in (0, 1)]
    assert [(rows.count(0), rows.count(1)) for rows in sizes] == [(45, 5), (45, 5)]
    assert it.values == [*texts(0, 90), *texts(100, 110)]


def test_a_batch_waits_until_it_is_worth_it(
    broker: KafkaBroker, topic: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    name = topic()
    clock = ManualClock()
    options = {"subscribe": name, "minOffsetsPerTrigger": "5", "maxTriggerDelay": "60s"}
    stream = spark.readStream.format("kafka").options(**options)
    stream = stream.option("kafka.bootstrap.servers", broker.address)
    found: list[int] = []
    writer = stream.option("startingOffsets", "earliest").load().writeStream.clock(clock)  # type: ignore[attr-defined]
    query = writer.foreachBatch(lambda df, _: found.append(df.count())).start()
    try:
        query.processAllAvailable()  # as in Spark, the first look of a run never waits
        broker.send(name, texts(0, 2))
        query.processAllAvailable()
        assert found == []
        broker.send(name, texts(2, 6))
        query.processAllAvailable()
        assert found == [6]
        broker.send(name, texts(6, 7))
        query.processAllAvailable()
        assert found == [6]
        clock.advance(60_000)
        query.processAllAvailable()
        assert found == [6, 1]
    finally:
        query.stop()


def test_partitions_that_come_while_it_runs(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic(1)
    broker.send(name, texts(0, 3))
    with reading(subscribe=name) as it:
        it.read_all()
        broker.add_partitions(name, 3)
        broker.send(name, texts(10, 15), 1)
        broker.send(name, texts(20, 25), 2)
        wait_for(lambda: it.read_all() or len(it.rows) >= 13, "the new partitions")
        it.restart()
        it.read_all()
    assert it.values == [*texts(0, 3), *texts(10, 15), *texts(20, 25)]


def test_expired_records_fail_or_are_skipped(
    broker: KafkaBroker, topic: Topics, reading: Any
) -> None:
    name = topic()
    broker.send(name, texts(0, 5))
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    it.query.stop()
    broker.send(name, texts(5, 20))
    broker.truncate(name, 0, 12)
    # A consumer that a worker has kept may have them already: let it make another one.
    it.options["kafka.client.id"] = "another"
    it.start()
    with pytest.raises(
        Exception, match=f"partition 0 of topic {name} are gone.* at offset 5.* offsets 12 "
    ):
        it.read_all()
    it.options["failOnDataLoss"] = "false"
    it.restart()
    it.read_all()
    it.query.stop()
    assert it.values == [*texts(0, 5), *texts(12, 20)]
    skipped = [progress.sources[0].metrics["skippedOffsets"] for progress in it.progress]
    assert skipped[-1] == "7"


def test_a_topic_that_is_made_again(broker: KafkaBroker, topic: Topics, reading: Any) -> None:
    name = topic()
    broker.send(name, texts(0, 5))
    it = reading(subscribe=name)
    it.start()
    it.read_all()
    it.query.stop()
    broker.delete(name)
    broker.create(name)
    broker.send(name, texts(50, 60))  # more than there were: the offsets alone look good
    with pytest.raises(Exception, match="deleted and made again"):
        it.start()
    it.options["failOnDataLoss"] = "false"
    for _ in range(3):
        it.start()
        it.read_all()
        it.query.stop()
    assert sorted(bytes(row.value).decode() for row in it.rows) == [*texts(0, 5), *texts(50, 60)]


@pytest.mark.parametrize("level", ["read_committed", "READ_COMMITTED", "read_uncommitted"])
def test_gaps_of_transactions_are_no_loss(
    broker: KafkaBroker, topic: Topics, reading: Any, level: str
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": name})
    producer.init_transactions(60)
    it = reading(subscribe=name, **{"kafka.isolation.level": level})
    it.start()
    for number, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for value in texts(number * 10, number * 10 + 3):
            producer.produce(name, value)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)
        it.read_all()
        if number == 1:
            it.restart()
    it.query.stop()
    aborted = [*texts(10, 13), *texts(30, 33)] if level == "read_uncommitted" else []
    assert sorted(it.values) == sorted([*texts(0, 3), *texts(20, 23), *aborted])


@pytest.mark.parametrize("level", ["read_committed", "READ_COMMITTED"])
def test_an_open_transaction_is_not_passed(
    broker: KafkaBroker, topic: Topics, reading: Any, level: str
) -> None:
    name = topic()
    producer = open_transaction(broker, name, "open")
    broker.send(name, ["after"])
    with reading(subscribe=name, **{"kafka.isolation.level": level}) as it:
        it.read_all()
        assert it.values == []
        producer.commit_transaction(60)
        wait_for(lambda: it.read_all() or len(it.rows) == 2, "the rows")
        assert it.values == ["open", "after"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_query_behind_an_open_transaction_has_lost_nothing(
    broker: KafkaBroker, topic: Topics, reading: Any, fails: bool
) -> None:
    """It has read with another isolation level until now."""
    name = topic()
    producer = open_transaction(broker, name, *texts(0, 3))
    it = reading(subscribe=name, failOnDataLoss=fails)
    it.start()
    it.read_all()
    it.options["kafka.isolation.level"] = "read_committed"
    it.restart()
    it.read_all()
    assert len(it.rows) == 3
    producer.commit_transaction(60)
    broker.send(name, texts(3, 5))
    wait_for(lambda: it.read_all() or len(it.rows) >= 5, "the rows")
    it.query.stop()
    assert it.values == texts(0, 5)


def test_large_messages(broker: KafkaBroker, topic: Topics, reading: Any) -> None:
    name = topic(max_message_bytes="9000000")
    values = ["x" * 900_000, "y" * 500_000]
    broker.send(name, values)
    small = {"kafka.max.partition.fetch.bytes": 1000, "kafka.fetch.max.bytes": 1_000_000}
    with reading(subscribe=name, **small) as it:
        it.read_all()
    assert [len(value) for value in it.values] == [900_000, 500_000]


def test_all_that_is_there_and_no_more(broker: KafkaBroker, topic: Topics, reading: Any) -> None:
    name = topic()
    broker.send(name, texts(0, 10))
    it = reading(subscribe=name, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=4)
    it.trigger = {"availableNow": True}
    it.start()
    it.query.awaitTermination()
    assert [len(rows) for rows in it.batches.values()] == [4, 4, 2]
    broker.send(name, texts(10, 13))
    it.trigger = {"once": True}
    it.start()
    it.query.awaitTermination()
    assert it.values == texts(0, 13)


def test_a_checkpoint_that_sparks_source_has_written(
    broker: KafkaBroker, topic: Topics, reading: Any, tmp_path: Path
) -> None:
    """Batch 0 is planned and not committed: it runs again, from where Spark's source began."""
    name = topic(2)
    broker.send(name, texts(0, 9), 0)
    broker.send(name, texts(100, 103), 1)
    folder = tmp_path / "checkpoint"
    for inner in ("offsets", "commits", "sources/0"):
        (folder / inner).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    first = json.dumps({name: {"0": 2, "1": 0}}, separators=(",", ":"))
    (folder / "sources/0/0").write_bytes(b"\0v1\n" + first.encode())
    end = json.dumps({name: {"0": 5, "1": 3}}, separators=(",", ":"))
    conf = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
    (folder / "offsets/0").write_text(f"v1\n{conf}\n{end}")
    with reading(subscribe=name, startingOffsets="latest") as it:
        it.read_all()
    assert sorted(len(rows) for rows in it.batches.values()) == [4, 6]
    assert it.values == [*texts(2, 9), *texts(100, 103)]


def test_mistakes_are_one_sentence(broker: KafkaBroker, reading: Any) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic at 127"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"}, "no Kafka broker answers"),
        ({"subscribe": "t", "kafka.no.such": "1"}, 'No such configuration property: "no.such"'),
    ]
    for options, sentence in cases:
        with pytest.raises(Exception, match=sentence) as failure:
            reading(**options).start()
        assert len(str(failure.value).splitlines()) == 1
