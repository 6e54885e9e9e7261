"""A broker that asks who writes: a wrong password, and users without the rights that they need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from tests.kafka.broker import PASSWORD, USER, KafkaBroker, done, quiet
from tests.ports import free_port
from tests.sinks.kafka.reading import values_of
from tests.sinks.kafka.writing import Writing
from tests.waiting import wait_for

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class GuardedBroker(KafkaBroker):
    """A broker whose second address asks for a user, who is called ``writer`` and may do nothing at first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.guarded = f"127.0.0.1:{free_port()}"
        self._settings = {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{self._controller_port},"
            f"SASL://{self.guarded}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{LOGIN} user_writer="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _acl(self, kind: ResourceType, name: str, operation: AclOperation) -> list[Any]:
        return [
            kind,
            name,
            ResourcePatternType.LITERAL
            if kind is ResourceType.TOPIC
            else ResourcePatternType.PREFIXED,
            "User:writer",
            "*",
            operation,
            AclPermissionType.ALLOW,
        ]

    def allow(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        done(self.admin().create_acls([AclBinding(*self._acl(kind, name, operation))]))

    def make_internal_topics(self) -> None:
        """Use transactions once, as somebody who may create the topics that brokers keep them in."""
        settings = {"bootstrap.servers": self.address, "logger": quiet()}
        Producer({**settings, "transactional.id": "first"}).init_transactions(120)
        consumer = Consumer({**settings, "group.id": "first"})

        def commits() -> bool:
            try:
                consumer.commit(
                    offsets=[KafkaPartition("tidemill-markers", 0, 0)], asynchronous=False
                )
            except KafkaException:  # the coordinator is loading
                return False
            return True

        wait_for(commits, "the coordinator of consumer groups")
        consumer.close()

    def forbid(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        done(self.admin().delete_acls([AclBindingFilter(*self._acl(kind, name, operation))]))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded")) as running:
        yield running  # type: ignore[misc]


@pytest.fixture
def writing(spark: SparkSession, guarded: GuardedBroker, tmp_path: Path) -> Callable[..., Writing]:
    def make(topic: str, password: str = PASSWORD, **options: Any) -> Writing:
        guarded.create(topic)
        it = Writing(spark, guarded, tmp_path / "checkpoint", topic=topic, **options)
        it.options |= {
            "kafka.bootstrap.servers": guarded.guarded,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{LOGIN} username="writer" password="{password}";',
        }
        return it

    return make


def refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence) as failure:
        call()
    text = str(failure.value)
    assert text.startswith(("the ", "BrokerRefusedError: the "))
    assert PASSWORD not in text


def test_a_wrong_password(writing: Any) -> None:
    it = writing("wrong-password", password="guessed")
    refused(it.start, "refused the user or the password")


def test_rights_one_after_the_other(
    guarded: GuardedBroker, writing: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG, "tidemill")
    it = writing("secret", exactlyOnce=True)
    refused(it.start, "for topic secret: this user may not use the topic")
    guarded.allow(ResourceType.TOPIC, "secret", AclOperation.WRITE)
    refused(
        it.start, "needs the topic tidemill-markers, which is not there and which it may not cr"
    )
    guarded.create("tidemill-markers")
    guarded.allow(ResourceType.TOPIC, "tidemill-markers", AclOperation.READ)
    refused(it.start, "this user may not use the transactional id")
    guarded.make_internal_topics()
    guarded.allow(ResourceType.TRANSACTIONAL_ID, "tidemill-", AclOperation.WRITE)
    refused(it.start, "this user may not use the consumer group")
    guarded.allow(ResourceType.GROUP, "tidemill-", AclOperation.READ)
    with it:
        it.add(1)
    assert values_of(guarded, "secret") == ["1"]
    it.start()
    guarded.forbid(ResourceType.TOPIC, "secret", AclOperation.WRITE)
    refused(lambda: it.add(2), "for topic secret: this user may not use the topic")
    guarded.allow(ResourceType.TOPIC, "secret", AclOperation.WRITE)
    with it:
        it.query.processAllAvailable()
        progress = it.query.lastProgress.json
    assert values_of(guarded, "secret") == ["1", "2"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    assert PASSWORD not in caplog.text + progress


def test_rights_at_least_once(guarded: GuardedBroker, writing: Any) -> None:
    it = writing("secret-too")
    refused(it.start, "for topic secret-too: this user may not use the topic")
    guarded.allow(ResourceType.TOPIC, "secret-too", AclOperation.WRITE)
    it.start()
    it.add(1)
    guarded.forbid(ResourceType.TOPIC, "secret-too", AclOperation.WRITE)
    refused(lambda: it.add(2), "for topic secret-too: this user may not use the topic")
    guarded.allow(ResourceType.TOPIC, "secret-too", AclOperation.WRITE)
    with it:
        it.query.processAllAvailable()
    assert values_of(guarded, "secret-too") == ["1", "2"]


@pytest.mark.parametrize("once", [False, True])
def test_a_password_is_in_no_file_and_no_text(
    spark: SparkSession,
    broker: KafkaBroker,
    topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    once: bool,
) -> None:
    caplog.set_level(logging.DEBUG, "tidemill")
    name = topic()
    it = Writing(spark, broker, tmp_path / "checkpoint", topic=name, exactlyOnce=once)
    it.options |= {
        "kafka.bootstrap.servers": broker.secure_address,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{LOGIN} username="{USER}" password="{PASSWORD}";',
    }
    with it:
        it.add(1)
        it.restart()
        it.add(2)
        told = [it.query.lastProgress.json, str(it.query.status), repr(it.query), caplog.text]
    assert values_of(broker, name) == ["1", "2"]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []
    assert not any(PASSWORD in text for text in told)
