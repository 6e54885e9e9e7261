"""A real Kafka broker on the loopback address.

``python -m tests.kafka.broker`` starts one for a person, and says its address.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.ports import free_ports
from tests.waiting import wait_for

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidemill"
# A broker that lives for seconds is better off without the optimizing compiler.
LIGHT = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

USER, PASSWORD = "reader", "not-for-others"
_LOGIN = "org.apache.kafka.common.security"


def jars() -> Path:
    found = [folder for folder in CACHE.glob("kafka-*") if (folder / "complete").exists()]
    assert found, "Kafka is missing: sh tools/get_kafka.sh"
    return max(found)


class KafkaBroker:
    """``with KafkaBroker(folder) as broker:`` gives ``broker.address``. It keeps its port and data when it
    is killed and started again. ``settings`` are added to its ``server.properties``.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._port, self._controller_port, secure_port = free_ports(3)
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: AdminClient | None = None
        self.address = f"127.0.0.1:{self._port}"
        self.secure_address = f"127.0.0.1:{secure_port}"
        """A listener that asks for a user and a password: :data:`USER` and :data:`PASSWORD`."""
        self.log = folder / "broker.log"
        self.data = folder / "data"

    def __enter__(self) -> KafkaBroker:
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.address},SASL://{self.secure_address},"
            f"CONTROLLER://127.0.0.1:{self._controller_port}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl.plain.sasl.jaas.config": f"{_LOGIN}.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}";',
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule "
            "required;",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            "SASL:SASL_PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "5",
            "transaction.state.log.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "1",
            "auto.create.topics.enable": "false",
            "log.retention.ms": "-1",  # records of tests have times of long ago
            "log.cleaner.backoff.ms": "200",
            **self._settings,
        }
        file = self._folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # An id may begin with a dash, which would look like an option.
        identity = f"--cluster-id={cluster_id}"
        user = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        format_ = ("format", identity, "--add-scram", user, "-c", str(file))
        self._java("kafka.tools.StorageTool", *format_).wait()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = shutil.which("java") or "java"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [java, *LIGHT, "-cp", f"{jars()}/*", main, *arguments], stdout=log, stderr=log
            )

    def start(self) -> None:
        self._process = self._java("kafka.Kafka", str(self._folder / "server.properties"))
        wait_for(self._answers, "the Kafka broker", 300)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    # What tests do with it.

    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.address, "logger": quiet()})
        return self._admin

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """Make a topic, and return its name."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        done(self.admin().create_topics([NewTopic(topic, partitions, 1, config=settings)]))
        self._wait_for_partitions(topic, partitions)
        return topic

    def add_partitions(self, topic: str, total: int) -> None:
        done(self.admin().create_partitions([NewPartitions(topic, total)]))
        self._wait_for_partitions(topic, total)

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        def ready() -> bool:
            found = self.admin().list_topics(topic, timeout=10).topics[topic]
            return len(found.partitions) == count and all(
                part.leader >= 0 for part in found.partitions.values()
            )

        wait_for(ready, f"topic {topic}")

    def delete(self, topic: str) -> None:
        done(self.admin().delete_topics([topic]))
        wait_for(lambda: topic not in self.admin().list_topics(timeout=10).topics, "the deletion")

    def truncate(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset, as retention does."""
        done(self.admin().delete_records([KafkaPartition(topic, partition, before)]))

    def damage(self, topic: str, text: bytes, partition: int = 0) -> None:
        """Change the record that has a text, as a failing disk does. The records around it stay."""
        (file,) = (self.data / f"{topic}-{partition}").glob("*.log")
        at = file.read_bytes().index(text)
        with file.open("r+b") as segment:
            segment.seek(at)
            segment.write(bytes([text[0] ^ 1]))

    def latest(self, topic: str, partition: int = 0) -> int:
        where = KafkaPartition(topic, partition)
        found = self.admin().list_offsets({where: OffsetSpec.latest()})
        return int(found[where].result().offset)

    def offsets(self, topic: str, partition: int = 0) -> list[int]:
        """Return the offsets of the records that a partition has."""
        end = self.latest(topic, partition)
        found: list[int] = []
        settings = {"bootstrap.servers": self.address, "group.id": "tests", "logger": quiet()}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        try:
            consumer.assign([KafkaPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(60)
                assert message is not None, "the broker says nothing"
                if message.error() is not None or message.offset() >= end:
                    return found
                found.append(message.offset())
        finally:
            consumer.close()

    def committed(self, topic: str, partition: int = 0) -> int:
        """Return the offset up to which every transaction has come to its end."""
        where = KafkaPartition(topic, partition)
        asked = self.admin().list_offsets(
            {where: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return int(asked[where].result().offset)

    def group_offset(self, group: str, topic: str, partition: int = 0) -> int:
        """Return the offset that a consumer group has committed."""
        where = KafkaPartition(topic, partition)
        asked = self.admin().list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [where])]
        )
        return int(asked[group].result(60).topic_partitions[0].offset)

    def delete_group(self, group: str) -> None:
        """Delete a consumer group and its offsets, as the broker does when they expire."""
        done(self.admin().delete_consumer_groups([group]))

    def send(
        self,
        topic: str,
        values: Iterable[Any],
        partition: int | None = 0,
        *,
        at_once: int = 10_000,
        **fields: Any,
    ) -> None:
        """Send values (bytes, text or None) to a partition, and return when the broker has them all.

        ``at_once`` records are kept together: a consumer fetches all of them or none.
        """
        producer = Producer(
            {
                "bootstrap.servers": self.address,
                "batch.num.messages": at_once,
                "logger": quiet(),
            }
        )
        if partition is not None:
            fields["partition"] = partition
        for value in values:
            producer.produce(topic, value=value, **fields)
            producer.poll(0)
        assert producer.flush(60) == 0


def open_transaction(broker: KafkaBroker, topic: str, *values: str | bytes) -> Producer:
    """Send values in a transaction that stays open, and return its producer."""
    settings = {"bootstrap.servers": broker.address, "logger": quiet()}
    producer = Producer({**settings, "transactional.id": f"open-{topic}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    return producer


def done(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(60)


def quiet() -> Any:
    import logging

    logger = logging.getLogger("tests.kafka")
    logger.setLevel(logging.CRITICAL)
    return logger


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0] if arguments else tempfile.mkdtemp(prefix="tidemill-kafka-"))
    with KafkaBroker(folder, {"auto.create.topics.enable": "true"}) as broker:
        print(f"Kafka listens at {broker.address}, with its data in {folder}. Ctrl-C stops it.")
        assert broker._process is not None
        try:
            broker._process.wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
