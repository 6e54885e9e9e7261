"""The options of a writer with ``format("kafka")``: Spark's, and those of Tidemill's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidemill.common.config import boolean, one_of, positive_int
from tidemill.common.options import Options, non_empty
from tidemill.errors import OptionError
from tidemill.kafka.clients.options import (
    bootstrap_servers,
    client_settings,
    kafka_options,
)

OWNER = "the kafka sink"

HEADER = "tidemill-batch"
"""The header with the id of the query and the batch, unless the option ``batchHeader`` names another."""
MARKERS = "tidemill-markers"
PREFIX = "tidemill"
FAIL, WRITE, SKIP = "fail", "write", "skip"

_OF_SPARK = ("topic", "includeHeaders")
_OF_TRANSACTIONS = (
    "exactlyOnceTasks",
    "markerTopic",
    "transactionalIdPrefix",
    "unknownMarker",
)
KNOWN = (*_OF_SPARK, "batchHeader", "exactlyOnce", *_OF_TRANSACTIONS)

DEFAULT_PATIENCE_MS = 120_000
DEFAULT_TRANSACTION_MS = 300_000
_OURS = {
    "transactional.id": "the stream itself chooses it, with the option transactionalIdPrefix",
    "partitioner.class": "Java classes cannot be loaded: write a column partition",
}


@dataclass(frozen=True)
class KafkaWriteOptions:
    """Everything that a writer says. ``client`` are librdkafka's settings, which may have secrets.

    ``header`` is the name of the header with the batch id; None: there is none.
    """

    client: dict[str, str] = field(repr=False)
    topic: str | None
    header: str | None
    exactly_once: bool
    tasks: int
    marker_topic: str
    id_prefix: str
    unknown_marker: str
    patience_s: float

    @classmethod
    def of_stream(
        cls, options: Mapping[str, str], of_the_query: Collection[str] = ()
    ) -> KafkaWriteOptions:
        given = Options(options, OWNER)
        own = given.without([*kafka_options(given), *of_the_query])
        own.refuse_unknown(KNOWN)
        once = given.read("exactlyOnce", _lower_boolean, False)
        for name in _OF_TRANSACTIONS:
            if name in given and not once:
                raise OptionError(
                    f"option {name} of {OWNER} has a meaning with exactlyOnce=true only", name
                )
        if once and "batchHeader" in given:
            raise OptionError(
                f"option batchHeader of {OWNER} is for writing at least once: with exactlyOnce=true no "
                "message comes twice, and none has such a header",
                "batchHeader",
            )
        given.read("includeHeaders", _lower_boolean, False)  # as in Spark, the column decides
        client = _client(given, once)
        header = given.read("batchHeader", non_empty, HEADER)
        return cls(
            client,
            given.read("topic", non_empty, None),
            None if once or header.lower() == "false" else header,
            once,
            given.read("exactlyOnceTasks", positive_int, 1),
            given.read("markerTopic", non_empty, MARKERS),
            given.read("transactionalIdPrefix", non_empty, PREFIX),
            given.read("unknownMarker", one_of(FAIL, WRITE, SKIP), FAIL),
            int(client["delivery.timeout.ms"]) / 1000,
        )

    @classmethod
    def of_batch(cls, options: Mapping[str, str]) -> KafkaWriteOptions:
        for name in ("exactlyOnce", "batchHeader", *_OF_TRANSACTIONS):
            if name in Options(options):
                raise OptionError(f"option {name} of {OWNER} is for streams (writeStream)", name)
        return cls.of_stream({**options, "batchHeader": "false"})

    @property
    def servers(self) -> str:
        return self.client["bootstrap.servers"]


def _client(options: Options, once: bool) -> dict[str, str]:
    for name in kafka_options(options):
        setting = name.lower().removeprefix("kafka.")
        if setting in _OURS:
            raise OptionError(f"option {name} of {OWNER} is not possible: {_OURS[setting]}", name)
        value = options[name].strip().lower()
        if once and (
            (setting == "enable.idempotence" and value != "true")
            or (setting == "acks" and value not in ("all", "-1"))
        ):
            raise OptionError(
                f"option {name} of {OWNER} is {value!r}: exactlyOnce=true needs enable.idempotence=true and "
                "acks=all, which are the defaults",
                name,
            )
    client = client_settings(options, OWNER)
    bootstrap_servers(client, OWNER)
    client.pop("group.id", None)
    for name in ("message.timeout.ms",):  # librdkafka's own name of the same setting
        if name in client:
            client["delivery.timeout.ms"] = client.pop(name)
    patience = client.setdefault("delivery.timeout.ms", str(DEFAULT_PATIENCE_MS))
    timeouts = ["delivery.timeout.ms"]
    if once:
        longest = max(DEFAULT_TRANSACTION_MS, int(patience) if patience.isdigit() else 0)
        client.setdefault("transaction.timeout.ms", str(longest))
        timeouts.append("transaction.timeout.ms")
    for name in timeouts:
        if not client[name].isascii() or not client[name].isdigit() or not int(client[name]):
            raise OptionError(
                f"option kafka.{name} of {OWNER} is {client[name]!r}: expected milliseconds",
                f"kafka.{name}",
            )
    if once and int(patience) > int(client["transaction.timeout.ms"]):
        raise OptionError(
            f"option kafka.transaction.timeout.ms of {OWNER} is {client['transaction.timeout.ms']}, less "
            f"than kafka.delivery.timeout.ms, which is {patience}: a message may not live longer than its "
            "transaction",
            "kafka.transaction.timeout.ms",
        )
    return client


def _lower_boolean(text: str) -> bool:
    return boolean(text.lower())
