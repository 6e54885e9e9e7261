"""Kafka for DStreams: the names of ``pyspark.streaming.kafka``, which PySpark had until 2.4."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext, StorageLevel

from tidemill.batches.batch import UNLIMITED
from tidemill.errors import OptionError, SetupError, WrongTypeError
from tidemill.kafka.consumer_params import AUTO_COMMIT, GROUP, ConsumerParams
from tidemill.kafka.partitions import Positions, TopicPartition
from tidemill.kafka.ranges import (
    Broker,
    Decoder,
    KafkaMessageAndMetadata,
    OffsetRange,
    TopicAndPartition,
    utf8_decoder,
)
from tidemill.receivers.connectors.kafka.receiver import KafkaReceiver
from tidemill.receivers.connectors.kafka.record_source import KafkaReceiverStream
from tidemill.receivers.secret_values import LiteralSecret
from tidemill.streaming.context import StreamingContext
from tidemill.streaming.dstream import DStream
from tidemill.streaming.util import require_storage_level

if TYPE_CHECKING:
    from tidemill.sources.kafka.direct.rdd import KafkaRDD

__all__ = [
    "Broker",
    "KafkaMessageAndMetadata",
    "KafkaUtils",
    "OffsetRange",
    "TopicAndPartition",
    "utf8_decoder",
]

DIRECT, RECEIVER, BATCH = "createDirectStream", "createStream", "createRDD"
GROUP_PROTOCOL = "group.protocol"

logger = logging.getLogger(__name__)


class KafkaUtils:
    """Makes DStreams and RDDs of Kafka's topics. Needs ``pip install 'tidemill[kafka]'``.

    ::

        lines = KafkaUtils.createDirectStream(ssc, ["orders"], {"bootstrap.servers": "broker:9092"})
        lines.map(lambda message: message[1]).countByValue().pprint()

    A record is a pair of key and value, each decoded by a function of bytes, or of None for a null. In
    ``kafkaParams``, the value of a password may be a function, such as ``EnvironmentSecret("NAME")`` of
    ``tidemill.receivers``: with a checkpoint directory it has to be.
    """

    @staticmethod
    def createDirectStream(
        ssc: StreamingContext,
        topics: Sequence[str | TopicAndPartition] | re.Pattern[str],
        kafkaParams: Mapping[str, Any],
        fromOffsets: Mapping[TopicAndPartition, int] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Callable[[KafkaMessageAndMetadata], Any] | None = None,
        *,
        commitOffsets: bool = False,
        failOnDataLoss: bool = True,
        minPartitions: int | None = None,
        maxRecordsPerPartition: int | None = None,
    ) -> DStream[Any]:
        """Read topics without a receiver: the driver decides which offsets a batch has, tasks read them.

        Each batch's RDD says which, in ``foreachRDD`` and ``transform``: ``rdd.offsetRanges()``. With a
        checkpoint directory every message is in the state, and in outputs that can be repeated, exactly once.

        Parameters:
            topics: the names of topics; or a compiled pattern for whole names; or single partitions.
            kafkaParams: settings of Kafka's consumers. ``auto.offset.reset`` (``latest``) says where a new
                stream begins.
            fromOffsets: where a new stream begins, for some of the partitions.
            messageHandler: makes a record of a :class:`KafkaMessageAndMetadata`.
            commitOffsets: commit the offsets of each batch that is done to the consumer group ``group.id``. A
                new stream then begins where the group stands.
            failOnDataLoss: False to go on with what is there when messages are gone that were not read.
            minPartitions, maxRecordsPerPartition: split the ranges of a batch further. By default there is a
                task for each partition that has something.
        """
        from_offsets = _positions(fromOffsets)
        params = ConsumerParams.of(kafkaParams, DIRECT).with_secrets(LiteralSecret)
        if any(str(kafkaParams.get(name)).lower() == "true" for name in AUTO_COMMIT):
            raise OptionError(
                f"{DIRECT} commits no offsets that are not processed: leave out "
                f"{' and '.join(AUTO_COMMIT)}, and set commitOffsets=True",
                AUTO_COMMIT[0],
            )
        if commitOffsets and params.group_id is None:
            raise OptionError(
                f'commitOffsets of {DIRECT} needs a consumer group: {{"{GROUP}": "name"}} in kafkaParams',
                GROUP,
            )
        for name, number in (
            ("minPartitions", minPartitions),
            ("maxRecordsPerPartition", maxRecordsPerPartition),
        ):
            if number is not None and (type(number) is not int or number < 1):
                raise OptionError(f"{name} of {DIRECT} must be at least 1, not {number!r}", name)
        sources = _sources()
        subscription = sources.Subscription(**_subscription(topics, from_offsets))
        stream = sources.DirectStream(
            params,
            subscription,
            from_offsets,
            _decoders(sources, keyDecoder, valueDecoder, messageHandler, DIRECT),
            ssc._graph.batch_ms,
            minPartitions,
            maxRecordsPerPartition,
            bool(commitOffsets),
            bool(failOnDataLoss),
        )
        return DStream(ssc._graph.add_input(stream, UNLIMITED, ssc._clock.now_ms()), ssc)

    @staticmethod
    def createRDD(
        sc: SparkContext,
        kafkaParams: Mapping[str, Any],
        offsetRanges: Iterable[OffsetRange],
        leaders: Mapping[TopicAndPartition, Broker] | None = None,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
        messageHandler: Callable[[KafkaMessageAndMetadata], Any] | None = None,
    ) -> KafkaRDD:
        """Return the messages of some ranges of offsets; raise if the topics do not have them.

        ``leaders`` is not needed: the client finds them.
        """
        if not isinstance(sc, SparkContext):
            raise WrongTypeError(f"sc of {BATCH} must be a SparkContext, not {sc!r:.100}", "sc")
        ranges = list(offsetRanges)
        if wrong := [each for each in ranges if not isinstance(each, OffsetRange)]:
            raise WrongTypeError(
                f"offsetRanges of {BATCH} must be OffsetRange objects, not {wrong[0]!r:.100}",
                "offsetRanges",
            )
        params = ConsumerParams.of(kafkaParams, BATCH)
        sources = _sources()
        decoders = _decoders(sources, keyDecoder, valueDecoder, messageHandler, BATCH)
        rdd: KafkaRDD = sources.rdd_of_ranges(sc, params, ranges, decoders)
        return rdd

    @staticmethod
    def createStream(
        ssc: StreamingContext,
        zkQuorum: str,
        groupId: str,
        topics: Mapping[str, int],
        kafkaParams: Mapping[str, Any] | None = None,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        keyDecoder: Decoder = utf8_decoder,
        valueDecoder: Decoder = utf8_decoder,
    ) -> DStream[Any]:
        """Read topics with a receiver, as a member of the consumer group ``groupId``.

        The receiver commits an offset when the messages before it are safe. Several streams may share a
        group: each gets some of the partitions, and a message that one has stored no other stores again.

        Parameters:
            zkQuorum: the addresses of brokers, unless ``kafkaParams`` has them.
            topics: the names of topics; PySpark's numbers of threads have no effect.
            kafkaParams: settings of Kafka's consumers. ``auto.offset.reset`` (``latest``) says where a new
                group begins.
        """
        if not isinstance(topics, (dict, list, tuple)) or not topics:
            raise WrongTypeError(
                f'topics of {RECEIVER} must be a dict such as {{"orders": 1}}, not {topics!r:.100}',
                "topics",
            )
        if not isinstance(groupId, str) or not groupId:
            raise OptionError(
                f"groupId of {RECEIVER} must be the name of a consumer group, not {groupId!r}",
                "groupId",
            )
        given = dict(kafkaParams or {})
        if not {"bootstrap.servers", "metadata.broker.list"} & given.keys():
            given["bootstrap.servers"] = zkQuorum
            logger.warning(
                "%s takes zkQuorum, %s, for the address of a broker: Kafka needs no ZooKeeper any more",
                RECEIVER,
                zkQuorum,
            )
        params = ConsumerParams.of(given, RECEIVER, **{GROUP: groupId})
        _require_classic_group(params)
        level = require_storage_level(storageLevel)
        receiver = KafkaReceiver(params.with_secrets(LiteralSecret), tuple(topics), level)
        _require_functions(RECEIVER, keyDecoder=keyDecoder, valueDecoder=valueDecoder)
        stream = KafkaReceiverStream(receiver, keyDecoder, valueDecoder)
        return DStream(ssc._graph.add_input(stream, UNLIMITED, ssc._clock.now_ms()), ssc)


def _require_classic_group(params: ConsumerParams) -> None:
    protocol = params.given.get(GROUP_PROTOCOL, "classic")
    if isinstance(protocol, str) and protocol.strip().lower() != "classic":
        raise OptionError(
            f"{GROUP_PROTOCOL}={protocol} in kafkaParams of {RECEIVER} is not possible: leave it out, the "
            "receiver is a member of a classic group, which brokers of all versions have",
            GROUP_PROTOCOL,
        )


def _sources() -> Any:
    """Import what needs confluent-kafka, or say how to get that."""
    try:
        from tidemill.sources.kafka.direct import streams
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "confluent_kafka":
            raise
        raise SetupError(
            "KafkaUtils needs the package confluent_kafka: pip install 'tidemill[kafka]' on the driver and "
            "on all executors"
        ) from None
    return streams


def _positions(given: Any) -> Positions:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise WrongTypeError(
            f"fromOffsets of {DIRECT} must be a dict, not a {type(given).__name__}", "fromOffsets"
        )
    positions = {}
    for part, offset in given.items():
        if not isinstance(part, TopicPartition) or type(offset) is not int or offset < 0:
            raise OptionError(
                f"fromOffsets of {DIRECT} must have offsets of at least 0 by TopicAndPartition, not "
                f"{part!r}: {offset!r}",
                "fromOffsets",
            )
        positions[part] = offset
    return positions


def _subscription(topics: Any, from_offsets: Positions) -> dict[str, Any]:
    """Return the fields of a subscription. It must have every topic that has an offset to begin at."""
    if isinstance(topics, re.Pattern):
        named = {part.topic for part in from_offsets if topics.fullmatch(part.topic)}
        found: dict[str, Any] = {"pattern": topics}
    elif not isinstance(topics, (list, tuple, set)) or isinstance(topics, TopicPartition):
        raise WrongTypeError(
            f"topics of {DIRECT} must be a list of names, not {topics!r:.100}", "topics"
        )
    elif topics and all(isinstance(each, TopicPartition) for each in topics):
        named = {part.topic for part in topics}
        if foreign := set(from_offsets) - set(topics):
            named -= {part.topic for part in foreign}
        found = {"partitions": tuple(sorted(set(topics)))}
    elif topics and all(isinstance(each, str) and each.strip() for each in topics):
        named = set(topics)
        found = {"topics": tuple(dict.fromkeys(topics))}
    else:
        raise OptionError(
            f"topics of {DIRECT} must be a list of names of topics, not {topics!r:.100}", "topics"
        )
    if others := {part.topic for part in from_offsets} - named:
        raise OptionError(
            f"fromOffsets of {DIRECT} begins in {', '.join(sorted(others))}, which topics does not name",
            "fromOffsets",
        )
    return found


def _decoders(sources: Any, key: Any, value: Any, handler: Any, owner: str) -> Any:
    _require_functions(owner, keyDecoder=key, valueDecoder=value)
    if handler is not None:
        _require_functions(owner, messageHandler=handler)
    return sources.Decoders(key, value, handler)


def _require_functions(owner: str, **functions: Any) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise OptionError(f"{name} of {owner} must be a function, not {function!r:.100}", name)
