"""Settings of Kafka's Java clients, as librdkafka has them."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from tidemill.errors import OptionError
from tidemill.kafka.clients.options import bootstrap_servers, client_settings, translated

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_options_of_a_reader_lose_their_prefix() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "Kafka.Client.Id": "me", "subscribe": "t"}
    assert client_settings(options, "x") == {"bootstrap.servers": "a:1", "client.id": "me"}


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        ({"fetch.max.wait.ms": "9"}, {"fetch.wait.max.ms": "9"}),
        ({"ssl.truststore.location": "/ca.pem"}, {"ssl.ca.location": "/ca.pem"}),
        ({"ssl.truststore.type": "PEM"}, {}),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        ({"receive.buffer.bytes": "4096"}, {"socket.receive.buffer.bytes": "4096"}),
        ({"security.protocol": "SASL_SSL"}, {"security.protocol": "SASL_SSL"}),
        ({"max.poll.records": "500", "default.api.timeout.ms": "60000"}, {}),
        ({"receive.buffer.bytes": "-1"}, {"socket.receive.buffer.bytes": "0"}),
        ({"isolation.level": " read_committed "}, {"isolation.level": "read_committed"}),
        ({"sasl.login.refresh.window.factor": "0.8", "metadata.max.idle.ms": "1"}, {}),
        ({"buffer.memory": "2048000"}, {"queue.buffering.max.kbytes": "2000"}),
    ],
)
def test_names_that_librdkafka_spells_otherwise(
    java: dict[str, str], librdkafka: dict[str, str]
) -> None:
    found = translated(java, "x")
    assert found == librdkafka
    if "queue.buffering.max.kbytes" not in found:  # a setting of producers
        Consumer({**found, "group.id": "g", "security.protocol": "plaintext"})


def test_how_long_a_message_may_take_wins_over_how_long_a_call_may() -> None:
    both = {"delivery.timeout.ms": "9", "max.block.ms": "5"}
    for names in (list(both), reversed(both)):
        assert translated({name: both[name] for name in names}, "x") == {"delivery.timeout.ms": "9"}
    assert translated({"max.block.ms": "5"}, "x") == {"delivery.timeout.ms": "5"}
    assert translated({"compression.gzip.level": "5"}, "x") == {"compression.level": "5"}


@pytest.mark.parametrize(
    ("jaas", "user", "password"),
    [
        (f'{PLAIN} required username="u" password="p";', "u", "p"),
        (f"{PLAIN} required username='u' password='p w';", "u", "p w"),
        (f"{SCRAM} required\n  username=u\n  password=p;", "u", "p"),
        (f'kafkashaded.{PLAIN} required username="u\\"x" password="a=b;c";', 'u"x', "a=b;c"),
    ],
)
def test_a_login(jaas: str, user: str, password: str) -> None:
    found = translated({"sasl.jaas.config": jaas}, "x")
    assert found == {"sasl.username": user, "sasl.password": password}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sasl.jaas.config": "secret nonsense"}, "cannot be read"),
        ({"sasl.jaas.config": 'com.sun.Krb5LoginModule required keyTab="k";'}, "Krb5LoginModule"),
        ({"sasl.jaas.config": f'{PLAIN} required username="u";'}, "has no password"),
        (
            {
                "sasl.jaas.config": f'{PLAIN} required username="u" password="p";',
                "sasl.mechanism": "SCRAM-SHA-256",
            },
            "sasl.mechanism",
        ),
        ({"ssl.keystore.type": "JKS"}, "PEM only"),
        ({"ssl.truststore.password": "secret"}, "PEM files"),
        ({"value.deserializer": "x"}, "DataFrame operations"),
        ({"auto.offset.reset": "latest"}, "startingOffsets"),
        ({"sasl.kerberos.service.name": "kafka"}, "Kerberos"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, "newest version"),
        ({"partitioner.ignore.keys": "true"}, "column key"),
        ({"buffer.memory": "much"}, "expected bytes"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(settings: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        translated(settings, "the kafka source", "kafka.")
    assert "secret" not in str(refused.value)
    assert refused.value.option.startswith("kafka.")


def test_a_broker_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        bootstrap_servers({}, "the kafka source")
