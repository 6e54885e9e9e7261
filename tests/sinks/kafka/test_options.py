from __future__ import annotations

import pytest

from tidemill.errors import OptionError
from tidemill.sinks.kafka.options import KafkaWriteOptions

SERVERS = {"kafka.bootstrap.servers": "a:1"}


def test_defaults() -> None:
    read = KafkaWriteOptions.of_stream({**SERVERS, "TOPIC": "t", "kafka.linger.ms": "3"})
    assert (read.topic, read.header, read.exactly_once) == ("t", "tidemill-batch", False)
    assert read.client["linger.ms"] == "3"
    assert read.patience_s == 120
    assert "transaction.timeout.ms" not in read.client
    once = KafkaWriteOptions.of_stream({**SERVERS, "exactlyOnce": "TRUE"})
    assert (once.header, once.tasks, once.marker_topic) == (None, 1, "tidemill-markers")
    assert once.client["transaction.timeout.ms"] == "300000"


def test_a_transaction_lives_as_long_as_its_messages() -> None:
    patient = {**SERVERS, "exactlyOnce": "true", "kafka.delivery.timeout.ms": "600000"}
    assert KafkaWriteOptions.of_stream(patient).client["transaction.timeout.ms"] == "600000"


def test_a_secret_is_not_shown() -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    read = KafkaWriteOptions.of_stream(
        {**SERVERS, "kafka.sasl.jaas.config": f'{login} username="u" password="sesame";'}
    )
    assert read.client["sasl.password"] == "sesame"
    assert "sesame" not in repr(read)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the address of a broker"),
        ({**SERVERS, "exactlyonce": "yes"}, "true or false"),
        ({**SERVERS, "batchHeader": ""}, "a text that is not empty"),
        ({**SERVERS, "markerTopic": "x"}, "exactlyOnce=true only"),
        ({**SERVERS, "exactlyOnce": "true", "exactlyOnceTasks": "0"}, "at least 1"),
        ({**SERVERS, "exactlyOnce": "true", "unknownMarker": "guess"}, "fail or write or skip"),
        ({**SERVERS, "exactlyOnce": "true", "kafka.enable.idempotence": "false"}, "needs enable."),
        ({**SERVERS, "kafka.partitioner.class": "x.Y"}, "write a column partition"),
        ({**SERVERS, "kafka.key.serializer": "x.Y"}, "column key"),
        ({**SERVERS, "kafka.delivery.timeout.ms": "soon"}, "expected milliseconds"),
        (
            {
                **SERVERS,
                "exactlyOnce": "true",
                "kafka.delivery.timeout.ms": "9000",
                "kafka.transaction.timeout.ms": "8000",
            },
            "may not live longer than its transaction",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KafkaWriteOptions.of_stream(options)
