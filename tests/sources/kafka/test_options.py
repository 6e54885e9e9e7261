from __future__ import annotations

import pytest

from tidemill.common.options import Options
from tidemill.errors import OptionError
from tidemill.kafka.partitions import EARLIEST, LATEST, TopicPartition
from tidemill.sources.kafka.options import KafkaReadOptions, Place

NEEDED = {"kafka.bootstrap.servers": "a:1", "subscribe": "t"}


def read(**options: str) -> KafkaReadOptions:
    return KafkaReadOptions.of_stream(Options({**NEEDED, **options}))


def test_what_a_stream_does_without_options() -> None:
    found = read()
    assert found.subscription.topics == ("t",)
    assert (found.starting, found.ending) == (Place(everywhere=LATEST), Place(everywhere=LATEST))
    assert found.fail_on_data_loss
    assert not found.include_headers


def test_a_batch_begins_at_the_beginning() -> None:
    assert KafkaReadOptions.of_batch(Options(NEEDED)).starting == Place(everywhere=EARLIEST)


def test_a_place() -> None:
    part = TopicPartition("t", 0)
    assert read(startingOffsets='{"t": {"0": -2}}').starting == Place(offsets={part: EARLIEST})
    assert read(startingOffsetsByTimestamp='{"t": {"0": 7}}').starting == Place(times_ms={part: 7})
    assert read(startingOffsets=" Earliest ").starting == Place(everywhere=EARLIEST)
    latest = {"startingOffsetsByTimestampStrategy": "LATEST"}
    assert read(startingTimestamp="9", **latest).starting == Place(time_ms=9, or_latest=True)
    both = {"startingTimestamp": "9", "startingOffsets": "earliest"}
    assert read(**both).starting == Place(time_ms=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": " , "}, "names of topics"),
        ({"assign": '{"t": [0]}'}, "subscribe and assign are set"),
        ({"startingOffsets": "soon"}, "expected earliest, latest or offsets"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "-2 for the earliest"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "must be the minimum"),
        ({"failOnDataLoss": "maybe"}, "expected true or false"),
        ({"startingOffset": "latest"}, "startingOffsets"),
        ({"kafka.group.instance.id": "x", "kafka.enable.auto.commit": "true"}, "itself knows"),
    ],
)
def test_bad_options_name_themselves(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(**options)


def test_a_pattern_that_is_none() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}
    with pytest.raises(OptionError, match="regular expression"):
        KafkaReadOptions.of_stream(Options(options))


def test_nothing_is_subscribed() -> None:
    with pytest.raises(OptionError, match="none is set"):
        KafkaReadOptions.of_stream(Options({"kafka.bootstrap.servers": "a:1"}))


def test_the_group_that_a_cluster_sees() -> None:
    assert "group.id" not in read().client
    assert read(**{"kafka.group.id": "mine"}).client["group.id"] == "mine"
    assert read(groupIdPrefix="team-a").client["group.id"] == "team-a-reader"
    both = {"kafka.group.id": "mine", "groupIdPrefix": "team-a"}
    assert read(**both).client["group.id"] == "mine"


def test_spaces_around_values_do_not_matter() -> None:
    assert read(startingOffsets=" EARLIEST ").starting == Place(everywhere=EARLIEST)
    assert read(subscribe=" a , b,a").subscription.topics == ("a", "b")


def test_secrets_do_not_show() -> None:
    assert "hidden" not in repr(read(**{"kafka.sasl.password": "hidden"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "is empty"),
        ({"endingOffsets": "earliest"}, "is empty"),
        ({"maxOffsetsPerTrigger": "5"}, "for streams"),
    ],
)
def test_what_a_batch_cannot_have(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaReadOptions.of_batch(Options({**NEEDED, **options}))
