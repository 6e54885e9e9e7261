"""Direct streams on topics of a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PythonException

from tests.kafka.broker import KafkaBroker
from tests.manual_stream import Stream
from tests.sources.kafka.direct.streams import (
    Recovered,
    Topics,
    params,
    read_values,
    texts,
    write_values,
)
from tests.waiting import wait_for
from tidemill.errors import BatchError, DataLossError, OptionError, SourceError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.group import ConsumerGroup
from tidemill.streaming import StreamingContext, StreamingListener
from tidemill.streaming.kafka import (
    Broker,
    KafkaUtils,
    OffsetRange,
    TopicAndPartition,
)
from tidemill.testing import collected


def test_records_are_decoded_pairs_and_rdds_know_their_ranges(
    broker: KafkaBroker, topic: Topics, stream: Stream
) -> None:
    name = topic(3)
    broker.send(name, ["a", None, ""], 1, key="k")
    direct = KafkaUtils.createDirectStream(stream.ssc, [name], params(broker))
    batches = collected(direct)
    ranges: list[Any] = []
    in_transform: list[Any] = []

    def note(rdd: Any) -> Any:
        in_transform.append(rdd.offsetRanges())
        return rdd

    direct.transform(note).foreachRDD(lambda rdd: None)
    direct.foreachRDD(lambda rdd: ranges.append((rdd.offsetRanges(), rdd.getNumPartitions())))
    stream.start_and_run(1)
    broker.send(name, ["b"], 0)
    broker.send(name, ["c"], 2)
    stream.driver.run(2)
    assert [sorted(batch, key=str) for batch in batches] == [
        [("k", ""), ("k", "a"), ("k", None)],
        [(None, "b"), (None, "c")],
        [],
    ]
    assert in_transform == [each for each, _ in ranges]
    assert ranges[0] == (
        [OffsetRange(name, 1, 0, 3), OffsetRange(name, 0, 0, 0), OffsetRange(name, 2, 0, 0)],
        1,
    )
    assert ranges[1] == (
        [OffsetRange(name, 0, 0, 1), OffsetRange(name, 2, 0, 1), OffsetRange(name, 1, 3, 3)],
        2,
    )
    assert ranges[2][1] == 1
    assert [each.count() for each in ranges[2][0]] == [0, 0, 0]


def test_state_and_windows_go_on_after_a_recovery(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path
) -> None:
    name = topic(2)
    given = params(broker)

    def build(ssc: StreamingContext) -> None:
        words = KafkaUtils.createDirectStream(ssc, [name], given).map(lambda pair: (pair[1], 1))
        words.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).setName("totals").pprint()
        words.reduceByKeyAndWindow(lambda a, b: a + b, None, 3, 1).foreachRDD(
            lambda rdd: rdd.count()
        )

    it = Recovered(sc, tmp_path / "checkpoint", build)
    broker.send(name, ["a", "b"], 0)
    it.run(2)
    broker.send(name, ["a", "c"], 1)
    it.run(2)
    broker.send(name, ["a"], 0)
    it.run(1)
    from tidemill.state.reader import read_state

    assert read_state(str(tmp_path / "checkpoint"), "totals").values == {"a": 3, "b": 1, "c": 1}


def test_a_batch_that_runs_again_has_the_same_ranges(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path
) -> None:
    name = topic(2)
    given, out, fails = params(broker), tmp_path / "out", tmp_path / "fails"
    write = write_values(out)
    marker = str(fails)

    def write_or_fail(time: Any, rdd: Any) -> None:
        import os

        write(time, rdd)
        if os.path.exists(marker):
            raise RuntimeError("on purpose")

    def build(ssc: StreamingContext) -> None:
        KafkaUtils.createDirectStream(ssc, [name], given).foreachRDD(write_or_fail)

    it = Recovered(sc, tmp_path / "checkpoint", build)
    broker.send(name, texts(0, 3), 0)
    it.run(1)
    fails.touch()
    broker.send(name, texts(3, 5), 1)
    assert "on purpose" in it.run_to_failure()
    failed = sorted(out.iterdir())[-1].read_text()
    broker.send(name, texts(5, 9), 1)  # for the batch after it
    fails.unlink()
    it.run(1)
    assert sorted(out.iterdir())[1].read_text() == failed
    assert read_values(out) == texts(0, 9)


def test_a_new_version_reads_other_topics_too(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path
) -> None:
    one, two, three = topic(), topic(), topic()
    given, out = params(broker), tmp_path / "out"
    write = write_values(out)

    def program(topics: list[str]) -> Callable[[StreamingContext], Any]:
        return lambda ssc: (
            KafkaUtils.createDirectStream(ssc, topics, given).setName("in").foreachRDD(write)
        )

    it = Recovered(sc, tmp_path / "checkpoint", program([one, two]))
    broker.send(one, ["a0"])
    broker.send(two, ["b0"])
    it.run(1)
    broker.send(one, ["a1"])
    broker.send(three, ["c0", "c1"])
    again = Recovered(sc, tmp_path / "checkpoint", program([one, three]))
    again.clock = it.clock
    again.run(2, upgrade=True)
    assert sorted(read_values(out)) == ["a0", "a1", "b0", "c0", "c1"]


def test_where_a_stream_begins(
    broker: KafkaBroker, topic: Topics, new_stream: Callable[..., Stream]
) -> None:
    name = topic(2)
    broker.send(name, texts(0, 3), 0)
    broker.send(name, texts(10, 13), 1)
    first, second = TopicAndPartition(name, 0), TopicAndPartition(name, 1)
    no_reset = {"bootstrap.servers": broker.address}
    cases: list[tuple[Any, dict[str, Any], list[str]]] = [
        ({}, no_reset, ["x"]),
        ({}, {**no_reset, "auto.offset.reset": "largest"}, ["x"]),
        ({}, params(broker), [*texts(0, 3), *texts(10, 13), "x"]),
        ({first: 2}, no_reset, [*texts(2, 3), *texts(10, 13), "x"]),
        ({first: 2}, {**no_reset, "auto.offset.reset": "latest"}, [*texts(2, 3), "x"]),
        ({first: 1, second: 3}, no_reset, [*texts(1, 3), "x"]),
    ]
    for offsets, given, expected in cases:
        stream = new_stream()
        found: list[list[Any]] = []
        last = broker.latest(name)

        def handle(message: Any, last: int = last) -> Any:
            # The messages of the cases before this one are no concern of it.
            return None if message.message == "x" and message.offset < last else message.message

        direct = KafkaUtils.createDirectStream(
            stream.ssc, [name], given, fromOffsets=offsets, messageHandler=handle
        )
        found = collected(direct)
        stream.ssc.start()
        broker.send(name, ["x"], 0)
        stream.driver.run(1, timeout_s=300)
        assert sorted(value for value in found[0] if value) == expected, (offsets, given)
        stream.ssc.stop(stopSparkContext=False)


def test_a_partition_that_the_cluster_forgets_for_a_moment_begins_where_it_should(
    broker: KafkaBroker, topic: Topics, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that answers without it once, as it may while brokers come back, has no new partition."""
    name = topic()
    broker.send(name, texts(0, 5))
    nothing_once: Iterator[Any] = iter([lambda cluster, parts: {}])
    asked = KafkaCluster.latest
    monkeypatch.setattr(
        KafkaCluster, "latest", lambda *arguments: next(nothing_once, asked)(*arguments)
    )
    given = params(broker, **{"auto.offset.reset": "largest"})
    batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], given))
    stream.start_and_run(1)
    broker.send(name, texts(5, 8))
    stream.driver.run(1)
    assert [value for batch in batches for _, value in batch] == texts(5, 8)


def test_patterns_partitions_and_a_message_with_its_place(
    broker: KafkaBroker, topic: Topics, stream: Stream
) -> None:
    name = topic(2)
    broker.send(name, ["a"], 0)
    broker.send(name, ["b"], 1, key="k")
    like = KafkaUtils.createDirectStream(
        stream.ssc,
        re.compile(f"{name}(-.*)?"),
        params(broker),
        messageHandler=lambda m: (m.topic, m.partition, m.offset, m.key, m.message),
    )
    one = KafkaUtils.createDirectStream(
        stream.ssc,
        [TopicAndPartition(name, 1)],
        params(broker),
        valueDecoder=lambda value: value,
        messageHandler=lambda m: m,
    )
    by_pattern, by_partition = collected(like), collected(one)
    stream.start_and_run(1)
    broker.create(f"{name}-b")
    broker.send(f"{name}-b", ["c"])
    stream.driver.run(2, timeout_s=300)
    rows = [row for batch in by_pattern for row in batch]
    assert sorted(rows) == [
        (name, 0, 0, None, "a"),
        (name, 1, 0, "k", "b"),
        (f"{name}-b", 0, 0, None, "c"),
    ]
    (message,) = [each for batch in by_partition for each in batch]
    assert (message.topic, message.partition, message.key, message.message) == (name, 1, "k", b"b")


def test_partitions_that_come_while_it_runs(
    broker: KafkaBroker, topic: Topics, stream: Stream
) -> None:
    name = topic(1)
    given = {"bootstrap.servers": broker.address, "auto.offset.reset": "latest"}
    batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], given))
    stream.start_and_run(1)
    broker.add_partitions(name, 2)
    broker.send(name, texts(0, 4), 1)
    stream.driver.run(2, timeout_s=300)
    assert [value for batch in batches for _, value in batch] == texts(0, 4)


def test_rates_of_partitions(
    broker: KafkaBroker, topic: Topics, stream: Stream, sc: SparkContext, monkeypatch: Any
) -> None:
    name = topic(2)
    broker.send(name, texts(0, 90), 0)
    broker.send(name, texts(100, 103), 1)
    sc._conf.set("spark.streaming.kafka.maxRatePerPartition", "20")
    try:
        batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], params(broker)))
        stream.start_and_run(3)
    finally:
        sc._conf.set("spark.streaming.kafka.maxRatePerPartition", "0")
    assert [len(batch) for batch in batches] == [23, 20, 20]


def test_backpressure_is_shared_by_lag_between_the_rates_of_partitions(
    broker: KafkaBroker, topic: Topics, stream: Stream, sc: SparkContext
) -> None:
    name = topic(2)
    broker.send(name, texts(0, 180), 0)
    broker.send(name, texts(200, 220), 1)
    settings = {
        "spark.streaming.backpressure.enabled": ("true", "false"),
        "spark.streaming.backpressure.initialRate": ("20", "0"),
        "spark.streaming.kafka.minRatePerPartition": ("5", "1"),
    }
    try:
        for key, (value, _) in settings.items():
            sc._conf.set(key, value)
        sizes: list[dict[int, int]] = []
        direct = KafkaUtils.createDirectStream(stream.ssc, [name], params(broker))
        direct.foreachRDD(
            lambda rdd: sizes.append({each.partition: each.count() for each in rdd.offsetRanges()})
        )
        stream.start_and_run(1)
    finally:
        for key, (_, value) in settings.items():
            sc._conf.set(key, value)
    assert sizes == [{0: 18, 1: 5}]


def test_offsets_are_committed_to_the_group_when_a_batch_is_done(
    broker: KafkaBroker, topic: Topics, new_stream: Callable[..., Stream]
) -> None:
    name = topic(2)
    given = params(broker, **{"group.id": f"g-{name}"})
    broker.send(name, texts(0, 3), 0)

    def read() -> list[str]:
        stream = new_stream()
        found = collected(
            KafkaUtils.createDirectStream(stream.ssc, [name], given, commitOffsets=True)
        )
        stream.start_and_run(2)
        stream.ssc.stop(stopSparkContext=False)
        return [value for batch in found for _, value in batch]

    assert read() == texts(0, 3)
    group = ConsumerGroup({"bootstrap.servers": broker.address}, f"g-{name}", "the test", 60)
    parts = [TopicAndPartition(name, number) for number in (0, 1)]
    assert group.committed(parts) == {parts[0]: 3, parts[1]: 0}
    group.close()
    broker.send(name, texts(3, 5), 0)
    assert read() == texts(3, 5)


def test_no_offsets_are_committed_from_a_batch_on_that_has_failed(
    broker: KafkaBroker, topic: Topics, new_stream: Callable[..., Stream]
) -> None:
    """Without a checkpoint directory the stream goes on, and the group is all that a restart knows."""
    name = topic()
    given = params(broker, **{"group.id": f"g-{name}"})

    def fail(rdd: Any) -> None:
        if "bad" in rdd.values().collect():
            raise RuntimeError("on purpose")

    stream = new_stream()
    direct = KafkaUtils.createDirectStream(stream.ssc, [name], given, commitOffsets=True)
    direct.foreachRDD(fail)
    broker.send(name, ["good"])
    stream.start_and_run(1)
    for value in ("bad", "good"):
        broker.send(name, [value])
        with pytest.raises(BatchError, match="on purpose"):
            stream.driver.run(1, timeout_s=300)
    stream.ssc.stop(stopSparkContext=False)
    assert broker.group_offset(f"g-{name}", name) == 1


def test_ranges_are_split_when_asked(broker: KafkaBroker, topic: Topics, stream: Stream) -> None:
    name = topic(1)
    broker.send(name, texts(0, 100))
    direct = KafkaUtils.createDirectStream(stream.ssc, [name], params(broker), minPartitions=4)
    found: list[Any] = []
    direct.foreachRDD(lambda rdd: found.append((rdd.offsetRanges(), rdd.glom().collect())))
    stream.start_and_run(1)
    ((ranges, parts),) = found
    assert [each.count() for each in ranges] == [len(part) for part in parts] == [25] * 4
    assert [value for part in parts for _, value in part] == texts(0, 100)


def test_an_rdd_of_fixed_ranges(broker: KafkaBroker, topic: Topics, sc: SparkContext) -> None:
    name = topic(2)
    broker.send(name, texts(0, 10), 0)
    broker.send(name, texts(20, 30), 1)
    ranges = [OffsetRange(name, 0, 2, 5), OffsetRange(name, 1, 0, 1)]
    leaders = {TopicAndPartition(name, 0): Broker("localhost", 9092)}
    rdd = KafkaUtils.createRDD(sc, params(broker), ranges, leaders)
    assert rdd.values().collect() == [*texts(2, 5), *texts(20, 21)]
    assert rdd.offsetRanges() == ranges
    assert KafkaUtils.createRDD(sc, params(broker), []).collect() == []
    with pytest.raises(
        DataLossError, match=f"partition 0 of topic {name} does not have offsets 8 to before 11"
    ):
        KafkaUtils.createRDD(sc, params(broker), [OffsetRange(name, 0, 8, 11)])
    with pytest.raises(OptionError, match="there is no partition 7"):
        KafkaUtils.createRDD(sc, params(broker), [OffsetRange(name, 7, 0, 1)])


def test_an_rdd_of_a_topic_that_was_made_again_has_what_the_new_one_has(
    broker: KafkaBroker, topic: Topics, sc: SparkContext
) -> None:
    name = topic()
    broker.send(name, texts(0, 50))
    first, second = OffsetRange(name, 0, 0, 5), OffsetRange(name, 0, 5, 10)
    assert KafkaUtils.createRDD(sc, params(broker), [first]).values().collect() == texts(0, 5)
    # The worker has a consumer that stands where the second range begins, and has fetched it.
    broker.delete(name)
    broker.create(name)
    broker.send(name, texts(100, 150))
    assert KafkaUtils.createRDD(sc, params(broker), [second]).values().collect() == texts(105, 110)


def test_a_function_that_raises_stop_iteration_ends_nothing_in_silence(
    broker: KafkaBroker, topic: Topics, sc: SparkContext
) -> None:
    name = topic()
    broker.send(name, texts(0, 10))
    rdd = KafkaUtils.createRDD(
        sc,
        params(broker),
        [OffsetRange(name, 0, 0, 10)],
        messageHandler=lambda message: next(x for x in [message.message] if x != "v004"),
    )
    with pytest.raises(PythonException, match=f"(?s)StopIteration.*offset 4 of .*{name}"):
        rdd.collect()


def test_a_message_that_cannot_be_decoded_is_named(
    broker: KafkaBroker, topic: Topics, stream: Stream
) -> None:
    name = topic()
    broker.send(name, ["good", b"\xff"])
    collected(KafkaUtils.createDirectStream(stream.ssc, [name], params(broker)))
    stream.ssc.start()
    with pytest.raises(
        BatchError, match=f"(?s)the message with offset 1 of partition 0 of topic {name}"
    ):
        stream.driver.run(1, timeout_s=300)


def test_expired_messages_fail_or_are_skipped(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path
) -> None:
    name = topic()
    given, out = params(broker), tmp_path / "out"
    write = write_values(out)

    def program(strict: bool) -> Callable[[StreamingContext], Any]:
        def build(ssc: StreamingContext) -> None:
            direct = KafkaUtils.createDirectStream(
                ssc, [name], {**given, "client.id": f"{name}-{strict}"}, failOnDataLoss=strict
            )
            direct.foreachRDD(write)

        return build

    it = Recovered(sc, tmp_path / "checkpoint", program(True))
    it.run(1)  # no consumer has fetched anything ahead
    broker.send(name, texts(0, 20))
    broker.truncate(name, 0, 12)
    said = it.run_to_failure()
    assert f"records of partition 0 of topic {name} are gone" in said
    assert "at offset 0" in said
    assert "has offsets 12 to before 20" in said
    again = Recovered(sc, tmp_path / "checkpoint", program(False))
    again.clock = it.clock
    again.run(1, upgrade=True)
    assert read_values(out) == texts(12, 20)


def test_what_is_skipped_does_not_count_as_read(
    broker: KafkaBroker, topic: Topics, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    sizes: list[int] = []

    class Sizes(StreamingListener):
        def onBatchCompleted(self, batchCompleted: Any) -> None:
            sizes.append(batchCompleted.batchInfo().numRecords())

    stream.ssc.addStreamingListener(Sizes())
    given = params(broker, **{"client.id": name})  # no consumer has fetched anything ahead
    direct = KafkaUtils.createDirectStream(stream.ssc, [name], given, failOnDataLoss=False)
    batches = collected(direct)
    stream.start_and_run(1)
    broker.send(name, texts(0, 20))
    broker.truncate(name, 0, 12)
    stream.driver.run(1)
    assert len(batches[1]) == 8
    wait_for(lambda: len(sizes) == 2, "the batches")
    assert sizes == [0, 8]
    assert "12 messages were gone" in caplog.text


def make_again(broker: KafkaBroker, name: str) -> None:
    broker.delete(name)
    broker.create(name)
    broker.send(name, texts(0, 9))  # more than there were: the offsets alone look good


def test_a_topic_that_is_made_again_is_an_error(
    broker: KafkaBroker, topic: Topics, sc: SparkContext, tmp_path: Path
) -> None:
    name = topic()
    broker.send(name, texts(0, 3))
    given = params(broker)

    def build(ssc: StreamingContext) -> None:
        KafkaUtils.createDirectStream(ssc, [name], given).foreachRDD(lambda rdd: rdd.count())

    it = Recovered(sc, tmp_path / "checkpoint", build)
    it.run(1)
    make_again(broker, name)
    with pytest.raises(DataLossError, match=f"topic {name} was deleted and made again"):
        it.run(1)


def test_a_topic_that_is_made_again_is_an_error_without_a_checkpoint(
    broker: KafkaBroker, topic: Topics, stream: Stream
) -> None:
    name = topic()
    broker.send(name, texts(0, 3))
    batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], params(broker)))
    stream.start_and_run(1)
    make_again(broker, name)
    with pytest.raises(BatchError, match=f"topic {name} was deleted and made again"):
        stream.driver.run(1, timeout_s=300)
    assert len(batches) == 1


def test_gaps_are_no_loss(broker: KafkaBroker, topic: Topics, stream: Stream) -> None:
    from confluent_kafka import Producer

    name = topic()
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": f"x-{name}"})
    producer.init_transactions(60)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(name, f"{number}{each}", partition=0)
        producer.flush(60)
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)
    committed = params(broker, **{"isolation.level": "read_committed"})
    seen = [
        collected(KafkaUtils.createDirectStream(stream.ssc, [name], each))
        for each in (params(broker), committed)
    ]
    stream.start_and_run(2)
    everything, without_aborted = ([value for batch in each for _, value in batch] for each in seen)
    assert everything == ["00", "01", "02", "10", "11", "12", "20", "21", "22"]
    assert without_aborted == ["00", "01", "02", "20", "21", "22"]


def test_messages_larger_than_a_fetch(broker: KafkaBroker, topic: Topics, stream: Stream) -> None:
    name = topic()
    broker.send(name, ["a" * 500_000, "b", "c" * 500_000])
    small = params(broker, **{"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000})
    batches = collected(KafkaUtils.createDirectStream(stream.ssc, [name], small))
    stream.start_and_run(1)
    assert [len(value) for _, value in batches[0]] == [500_000, 1, 500_000]


def test_what_is_wrong_is_said_at_the_start(
    broker: KafkaBroker, new_stream: Callable[..., Stream]
) -> None:
    from tests.ports import free_port
    from tidemill.errors import BrokerUnavailableError

    def start(topics: list[str], given: dict[str, Any], **more: Any) -> None:
        stream = new_stream()
        collected(KafkaUtils.createDirectStream(stream.ssc, topics, given, **more))
        stream.ssc.start()

    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(SourceError, match="there is no topic no-such-topic at"):
        start(["no-such-topic"], params(broker))
    with pytest.raises(BrokerUnavailableError, match=f"no Kafka broker answers at {nowhere}"):
        start(["t"], {"bootstrap.servers": nowhere})
    with pytest.raises(
        OptionError, match="createDirectStream has a setting that Kafka's client refuses"
    ):
        start(["t"], params(broker, **{"no.such.setting": 1}))
