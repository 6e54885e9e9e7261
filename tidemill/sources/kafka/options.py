"""The options of ``format("kafka")``, with Spark's names and meanings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tidemill.common.config import boolean, one_of, positive_int, time_ms
from tidemill.common.options import Options, non_empty, non_negative_int
from tidemill.errors import OptionError
from tidemill.kafka.clients.options import bootstrap_servers, client_settings, kafka_options
from tidemill.kafka.partitions import (
    EARLIEST,
    LATEST,
    Positions,
    TopicPartition,
    parse_assignment,
    parse_positions,
)

OWNER = "the kafka source"

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTING = (
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
KNOWN = (
    *SUBSCRIPTIONS,
    *_STARTING,
    *_ENDING,
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)

DEFAULT_POLL_TIMEOUT_MS = 120_000
DEFAULT_TRIGGER_DELAY_MS = 900_000


@dataclass(frozen=True)
class Subscription:
    """What to read: names of topics, a pattern of names, or partitions."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"SubscribePattern[{self.pattern.pattern}]"
        if self.partitions:
            names = ", ".join(f"{topic}-{number}" for topic, number in self.partitions)
            return f"Assign[{names}]"
        return f"Subscribe[{', '.join(self.topics)}]"


@dataclass(frozen=True)
class Place:
    """Where to begin or to end: at one end of all partitions, at offsets, or at times.

    ``or_latest`` says what to do where no record is as young as the time: begin at the end, or fail.
    """

    everywhere: int | None = None
    offsets: Positions | None = None
    times_ms: Positions | None = None
    time_ms: int | None = None
    or_latest: bool = False


@dataclass(frozen=True)
class KafkaReadOptions:
    """Everything that a reader says. ``client`` are librdkafka's settings, which may have secrets."""

    client: dict[str, str] = field(repr=False)
    subscription: Subscription
    starting: Place
    ending: Place
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    poll_timeout_s: float

    @classmethod
    def of_stream(cls, options: Options) -> KafkaReadOptions:
        for name in _ENDING:
            if name in options:
                raise OptionError(
                    f"option {name} of {OWNER} is for batches (spark.read): a stream has no end",
                    name,
                )
        return cls._of(options, EARLIEST, LATEST)

    @classmethod
    def of_batch(cls, options: Options) -> KafkaReadOptions:
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if name in options:
                raise OptionError(
                    f"option {name} of {OWNER} is for streams: a batch reads all", name
                )
        read = cls._of(options, LATEST, EARLIEST)
        if read.starting.everywhere == LATEST:
            raise OptionError(
                f"option startingOffsets of {OWNER} is latest: a batch that begins there is empty",
                "startingOffsets",
            )
        if read.ending.everywhere == EARLIEST:
            raise OptionError(
                f"option endingOffsets of {OWNER} is earliest: a batch that ends there is empty",
                "endingOffsets",
            )
        return read

    @classmethod
    def _of(cls, options: Options, forbidden: int, default_start: int) -> KafkaReadOptions:
        given = Options(options, OWNER)
        given.without(kafka_options(given)).refuse_unknown(KNOWN)
        client = client_settings(given, OWNER)
        bootstrap_servers(client, OWNER)
        # A position in a group is not the stream's, but a cluster may let readers use some groups only.
        prefix = given.read("groupIdPrefix", non_empty, None)
        if prefix is not None:
            client.setdefault("group.id", f"{prefix}-reader")
        least = given.read("minOffsetsPerTrigger", positive_int, None)
        most = given.read("maxOffsetsPerTrigger", positive_int, None)
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"option minOffsetsPerTrigger of {OWNER} is {least} and maxOffsetsPerTrigger is {most}: "
                "the smaller number must be the minimum",
                "minOffsetsPerTrigger",
            )
        poll_ms = given.read("kafkaConsumer.pollTimeoutMs", positive_int, DEFAULT_POLL_TIMEOUT_MS)
        for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
            given.read(name, non_negative_int, 0)  # our waiting is bounded by time
        return cls(
            client,
            _subscription(given),
            _place(given, "starting", default_start),
            _place(given, "ending", LATEST),
            most,
            least,
            given.read("maxTriggerDelay", time_ms, DEFAULT_TRIGGER_DELAY_MS),
            given.read("minPartitions", positive_int, None),
            given.read("maxRecordsPerPartition", positive_int, None),
            given.read("failOnDataLoss", _lower_boolean, True),
            given.read("includeHeaders", _lower_boolean, False),
            poll_ms / 1000,
        )


def _lower_boolean(text: str) -> bool:
    return boolean(text.lower())


def _subscription(options: Options) -> Subscription:
    given = [name for name in SUBSCRIPTIONS if name in options]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none is set"
        raise OptionError(
            f"{OWNER} needs one of the options {', '.join(SUBSCRIPTIONS)}, and {found}: "
            '.option("subscribe", "topic1,topic2")',
            given[0] if given else "subscribe",
        )
    if given == ["assign"]:
        return Subscription(partitions=tuple(options.required("assign", parse_assignment, "...")))
    if given == ["subscribePattern"]:
        return Subscription(pattern=options.required("subscribePattern", _pattern, '"orders-.*"'))
    return Subscription(topics=options.required("subscribe", _topics, '"topic"'))


def _topics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    topics = tuple(dict.fromkeys(name for name in names if name))
    if not topics:
        raise ValueError("expected the names of topics, with commas between them")
    return topics


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(non_empty(text))
    except re.error as error:
        raise ValueError(f"expected a regular expression ({error})") from None


def _place(options: Options, which: str, default: int) -> Place:
    """Read the three ways to say a place. As in Spark, one time wins over times, and times over offsets."""
    strategy = options.read("startingOffsetsByTimestampStrategy", _strategy, "error")
    # Behind the last record a batch ends where the partition ends.
    or_latest = which == "ending" or strategy == "latest"
    if (time := options.read(f"{which}Timestamp", non_negative_int, None)) is not None:
        return Place(time_ms=time, or_latest=or_latest)
    name = f"{which}OffsetsByTimestamp"
    if (times := options.read(name, parse_positions, None)) is not None:
        return Place(times_ms=times, or_latest=or_latest)
    return options.read(f"{which}Offsets", _offsets, Place(everywhere=default))


def _strategy(text: str) -> str:
    return one_of("error", "latest")(text.strip().lower())


def _offsets(text: str) -> Place:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Place(everywhere=EARLIEST if word == "earliest" else LATEST)
    try:
        offsets = parse_positions(text)
    except ValueError as error:
        raise ValueError(f"expected earliest, latest or offsets ({error})") from None
    if any(offset < EARLIEST for offset in offsets.values()):
        raise ValueError("expected offsets of at least 0, -1 for the latest or -2 for the earliest")
    return Place(offsets=offsets)


def options_without_secrets(options: KafkaReadOptions) -> dict[str, Any]:
    """Return what may be shown."""
    return {
        "subscription": str(options.subscription),
        "servers": options.client["bootstrap.servers"],
    }
