"""Why a message could not be delivered, in one sentence."""

from __future__ import annotations

from confluent_kafka import KafkaError

from tidemill.errors import SinkError, TidemillError
from tidemill.kafka.clients.errors import ConnectionErrors, is_final, refused

AWAY = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
_GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


def not_delivered(
    error: KafkaError, topic: str, size: int, owner: str, errors: ConnectionErrors
) -> TidemillError:
    """Return the error for a message of ``size`` bytes that will not arrive."""
    if is_final(error):
        return refused(errors.servers, error, f"topic {topic}")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return too_large(topic, size, owner)
    if error.code() in _GONE:
        return SinkError(
            f"{owner} cannot write to topic {topic}: it, or the partition, does not exist any more. Create "
            "it, and start the query again",
            "kafka",
        )
    if error.code() in AWAY:
        return errors.not_taken(topic, error)
    return SinkError(
        f"{owner} could not write a message of {size} bytes to topic {topic}: {error.str()}",
        "kafka",
    )


def too_large(topic: str, size: int, owner: str) -> SinkError:
    return SinkError(
        f"{owner} has a message with a value of {size} bytes for topic {topic}, more than may be sent: raise "
        'both .option("kafka.max.request.size", ...) and max.message.bytes of the topic, or write smaller '
        "values",
        "kafka",
    )
