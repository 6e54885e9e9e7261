"""The names and parameters of ``KafkaUtils``, and what it refuses. No broker is asked."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.serializers import CPickleSerializer

from tests.manual_stream import Stream
from tidemill.errors import OptionError, WrongTypeError
from tidemill.streaming import kafka
from tidemill.streaming.kafka import (
    KafkaMessageAndMetadata,
    KafkaUtils,
    OffsetRange,
    TopicAndPartition,
    utf8_decoder,
)

GIVEN = {"bootstrap.servers": "localhost:9"}


def test_the_parameters_are_those_of_pyspark_2_4() -> None:
    def names(method: Any) -> list[str]:
        parameters = inspect.signature(method).parameters.values()
        return [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]

    decoders = ["keyDecoder", "valueDecoder"]
    assert names(KafkaUtils.createDirectStream) == [
        *("ssc", "topics", "kafkaParams", "fromOffsets", *decoders, "messageHandler")
    ]
    assert names(KafkaUtils.createStream) == [
        *("ssc", "zkQuorum", "groupId", "topics", "kafkaParams", "storageLevel", *decoders)
    ]
    assert names(KafkaUtils.createRDD) == [
        *("sc", "kafkaParams", "offsetRanges", "leaders", *decoders, "messageHandler")
    ]
    assert sorted(kafka.__all__) == [
        *("Broker", "KafkaMessageAndMetadata", "KafkaUtils", "OffsetRange", "TopicAndPartition"),
        "utf8_decoder",
    ]


def test_values_of_the_old_api() -> None:
    part = TopicAndPartition("t", 3)
    assert {part: 1}[TopicAndPartition("t", 3)] == 1
    assert part != TopicAndPartition("t", 4)
    range_ = OffsetRange("t", 3, 5, 9)
    assert (range_.topic, range_.partition, range_.fromOffset, range_.untilOffset) == ("t", 3, 5, 9)
    assert str(range_) == "OffsetRange(topic: t, partition: 3, range: [5 -> 9])"
    assert range_ == CPickleSerializer().loads(CPickleSerializer().dumps(range_))
    assert (utf8_decoder(None), utf8_decoder(b"\xc3\xa4")) == (None, "\u00e4")


def test_a_message_travels_decoded() -> None:
    message = KafkaMessageAndMetadata("t", 0, 7, b"k", b"5")._decoded_by(
        lambda key: key, lambda value: int(value or 0)
    )
    assert (message.key, message.message) == (b"k", 5)
    again = CPickleSerializer().loads(CPickleSerializer().dumps(message))
    assert (again.topic, again.partition, again.offset, again.key, again.message) == (
        *("t", 0, 7, b"k", 5),
    )
    assert again == message
    assert KafkaMessageAndMetadata("t", 0, 7, None, "\u00e4".encode()).message == "\u00e4"


DIRECT: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topics": "t"}, WrongTypeError, "topics of createDirectStream must be a list"),
    ({"topics": []}, OptionError, "must be a list of names"),
    ({"topics": ["t", 1]}, OptionError, "must be a list of names"),
    ({"kafkaParams": None}, WrongTypeError, "kafkaParams of createDirectStream must be a dict"),
    ({"kafkaParams": {}}, OptionError, "createDirectStream needs the address of a broker"),
    ({"kafkaParams": {**GIVEN, "enable.auto.commit": True}}, OptionError, "commitOffsets=True"),
    ({"commitOffsets": True}, OptionError, "needs a consumer group"),
    ({"fromOffsets": [1]}, WrongTypeError, "fromOffsets .* must be a dict"),
    ({"fromOffsets": {TopicAndPartition("t", 0): -1}}, OptionError, "offsets of at least 0"),
    ({"fromOffsets": {("t", 0): "x"}}, OptionError, "by TopicAndPartition"),
    ({"fromOffsets": {TopicAndPartition("u", 0): 1}}, OptionError, "begins in u, which"),
    ({"keyDecoder": "utf8"}, OptionError, "keyDecoder .* must be a function"),
    ({"messageHandler": 5}, OptionError, "messageHandler .* must be a function"),
    ({"minPartitions": 0}, OptionError, "minPartitions .* at least 1"),
]


@pytest.mark.parametrize(("changed", "kind", "said"), DIRECT)
def test_wrong_arguments_of_direct_streams(
    stream: Stream, changed: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        KafkaUtils.createDirectStream(
            stream.ssc, **{"topics": ["t"], "kafkaParams": GIVEN, **changed}
        )


def test_a_pattern_is_for_topics_that_have_offsets(stream: Stream) -> None:
    at = {TopicAndPartition("u", 0): 1}
    with pytest.raises(OptionError, match="begins in u, which"):
        KafkaUtils.createDirectStream(stream.ssc, re.compile("t.*"), GIVEN, at)
    KafkaUtils.createDirectStream(stream.ssc, re.compile("[tu].*"), GIVEN, at)


def test_the_minimum_rate_is_not_above_the_maximum(stream: Stream, sc: SparkContext) -> None:
    sc._conf.set("spark.streaming.kafka.maxRatePerPartition", "2")
    sc._conf.set("spark.streaming.kafka.minRatePerPartition", "3")
    try:
        with pytest.raises(OptionError, match="the smaller number must be the minimum"):
            KafkaUtils.createDirectStream(stream.ssc, ["t"], GIVEN)
    finally:
        sc._conf.set("spark.streaming.kafka.maxRatePerPartition", "0")
        sc._conf.set("spark.streaming.kafka.minRatePerPartition", "1")


def test_zookeepers_address_is_taken_for_that_of_a_broker(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    direct = KafkaUtils.createStream(stream.ssc, "h:9092", "g", {"t": 1})
    receiver = stream.ssc._graph.inputs[-1].source.receiver  # type: ignore[attr-defined]
    assert receiver.params.settings() == {"bootstrap.servers": "h:9092"}
    assert receiver.topics == ("t",)
    assert direct is not None
    assert [each.getMessage() for each in caplog.records] == [
        "createStream takes zkQuorum, h:9092, for the address of a broker: Kafka needs no ZooKeeper any "
        "more"
    ]
    caplog.clear()
    KafkaUtils.createStream(stream.ssc, "zk:2181", "g", {"t": 1}, GIVEN)
    receiver = stream.ssc._graph.inputs[-1].source.receiver  # type: ignore[attr-defined]
    assert receiver.params.settings() == GIVEN
    assert caplog.records == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("h:1", "g", "t"), "topics of createStream must be a dict"),
        (("h:1", "", {"t": 1}), "groupId of createStream must be the name"),
        (("", "g", {"t": 1}), "needs the address of a broker"),
        (("h:1", "g", {"t": 1}, {"auto.offset.reset": "now"}), "expected earliest"),
        (
            ("h:1", "g", {"t": 1}, {"group.protocol": "consumer"}),
            "group.protocol=consumer .* not pos",
        ),
    ],
)
def test_wrong_arguments_of_receiver_streams(
    stream: Stream, arguments: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        KafkaUtils.createStream(stream.ssc, *arguments)


def test_wrong_arguments_of_rdds(sc: SparkContext) -> None:
    with pytest.raises(WrongTypeError, match="must be OffsetRange objects"):
        KafkaUtils.createRDD(sc, GIVEN, [("t", 0, 1, 2)])  # type: ignore[list-item]
    with pytest.raises(WrongTypeError, match="sc of createRDD must be a SparkContext"):
        KafkaUtils.createRDD(None, GIVEN, [])  # type: ignore[arg-type]
