"""What librdkafka says of a connection, made into one sentence and one decision: wait, or give up."""

from __future__ import annotations

import logging
import re
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from tidemill.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    DamagedRecordError,
    OptionError,
)

# librdkafka logs twenty lines a second while a broker is away. What matters is in the errors that we raise.
quiet_logger = logging.getLogger("tidemill.kafka.librdkafka")
quiet_logger.propagate = False
quiet_logger.setLevel(logging.CRITICAL)
quiet_logger.addHandler(logging.NullHandler())

# Waiting does not help: the next attempt is refused like this one.
_FINAL = {
    KafkaError._AUTHENTICATION: "it refused the user or the password",
    KafkaError.SASL_AUTHENTICATION_FAILED: "it refused the user or the password",
    KafkaError._SSL: "no secure connection could be made",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "this user may not use the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "this user may not use the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user may not use the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not use the transactional id",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "it does not allow so large a transaction.timeout.ms (see its transaction.max.timeout.ms)"
    ),
    KafkaError.UNSUPPORTED_VERSION: "its version is too old",
}
# With TLS 1.3 a broker refuses a certificate after the handshake: librdkafka calls it a lost connection.
_REFUSED_CERTIFICATE = re.compile(r"SSL alert number (4\d|116)\b")
NOTHING = "no answer"
"""What is said of a connection of which nothing is known."""
_VAGUE = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT)


class ConnectionErrors:
    """Collects what a client says of its connections: give :meth:`heard` to it as ``error_cb``."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._last: KafkaError | None = None
        self._final: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        if is_final(error):
            self._final = error
        # A connection's own error says more than that none is left, or that a call has timed out.
        elif error.code() not in _VAGUE or self._last is None:
            self._last = error

    def listen(self, consumer: Any) -> None:
        """Hear what a consumer that reads nothing has to say: it keeps some errors as messages.

        One is that the user may not use the group. The call that needs the group only runs out of time.
        """
        while (message := consumer.poll(0)) is not None:
            if message.error() is not None:
                self.heard(message.error())

    def forget(self) -> None:
        """Begin anew: the cluster has answered."""
        self._last = self._final = None

    def raise_final(self) -> None:
        """Raise if an error has come that waiting does not mend."""
        if self._final is not None:
            raise refused(self.servers, self._final)

    @property
    def last_code(self) -> int | None:
        """The code of the last error that says something."""
        return None if self._last is None else self._last.code()

    def unavailable(self, waited_s: float) -> BrokerUnavailableError:
        """Return the error to raise when waiting has been in vain."""
        reason = NOTHING if self._last is None else _reason(self._last)
        return BrokerUnavailableError(
            f"no Kafka broker answers at {self.servers} ({reason}), after {waited_s:.0f} s: check the "
            "address, and that a broker runs there and can be reached from this machine",
            self.servers,
        )

    def not_taken(self, topic: str, error: KafkaError) -> BrokerUnavailableError:
        """Return the error to raise for a message that no broker has taken in its time."""
        self.heard(error)
        return BrokerUnavailableError(
            f"no broker of {self.servers} has taken a message for topic {topic} in time ({self.reason}): "
            "check that brokers run there and can be reached. No row is lost: the batch runs again when "
            "the query is started",
            self.servers,
        )

    @property
    def reason(self) -> str:
        return NOTHING if self._last is None else _reason(self._last)


def refused(servers: str, error: KafkaError, what: str = "") -> BrokerRefusedError:
    """Return the error to raise; ``what`` is what could not be used, where that is known."""
    used = f" for {what}" if what else ""
    why = _FINAL.get(error.code(), "it refused the certificate of this client, or missed one")
    return BrokerRefusedError(
        f"the Kafka cluster at {servers} cannot be used{used}: {why} ({_reason(error)})",
        servers,
    )


def is_final(error: KafkaError) -> bool:
    return error.code() in _FINAL or _REFUSED_CERTIFICATE.search(error.str()) is not None


# What is there and cannot be read. A reader that went on would leave it out without a word.
_UNREADABLE = (
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.INVALID_MSG,
    KafkaError.MSG_SIZE_TOO_LARGE,
)


def is_unreadable(error: KafkaError) -> bool:
    """Say whether a message that a consumer has returned stands for others that cannot be read."""
    return error.code() in _UNREADABLE


def unreadable(where: object, offset: int, error: KafkaError) -> DamagedRecordError:
    """Return the error to raise for messages of a partition, the first of them at ``offset``."""
    return DamagedRecordError(
        f"the message at offset {offset} of {where}, or one that the broker keeps together with it, cannot "
        f"be read: {error.str()}. Nothing is skipped. If another replica has it undamaged, let that one lead "
        "the partition; if nobody has it, delete the records up to it (kafka-delete-records), which a reader "
        "then treats as a loss",
        str(where),
        offset,
    )


def _reason(error: KafkaError) -> str:
    """Return what librdkafka says without its name for the connection and without timings."""
    text: str = error.str()
    for mark in (": Connect to ", ": Failed to resolve "):
        if mark in text:
            text = text[text.index(mark) + 2 :]
    return text.split(" (after ")[0]


def made(client: type[Any], settings: dict[str, Any], owner: str) -> Any:
    """Make a client. A setting that librdkafka refuses is an error of the program's."""
    try:
        return client({**settings, "logger": quiet_logger})
    except KafkaException as error:
        text = error.args[0].str() if error.args else str(error)
        raise OptionError(f"{owner} has a setting that Kafka's client refuses: {text}") from None
