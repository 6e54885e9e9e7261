"""Kafka receivers in a group of a real broker. Their driver is the test."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark import StorageLevel

from tests.kafka.broker import KafkaBroker, open_transaction
from tests.ports import free_port
from tests.receivers.executor.receiver_world import FakeDriver, Supervised
from tests.waiting import wait_for
from tidemill.kafka.consumer_params import ConsumerParams
from tidemill.kafka.group import ConsumerGroup
from tidemill.kafka.partitions import TopicPartition
from tidemill.receivers.connectors.kafka import commits
from tidemill.receivers.connectors.kafka.receiver import KafkaReceiver
from tidemill.receivers.connectors.kafka.session import KafkaSession

Topics = Callable[..., str]


@pytest.fixture
def topic(broker: KafkaBroker) -> Topics:
    return lambda partitions=1: broker.create(f"r-{uuid.uuid4().hex[:8]}", partitions)


@pytest.fixture
def running() -> Iterator[Callable[..., Supervised]]:
    with ExitStack() as stack:

        def start(receiver: KafkaReceiver, driver: FakeDriver | None = None) -> Supervised:
            world = Supervised(receiver, driver)
            stack.enter_context(world)
            return world

        yield start


def receiver_of(address: str, *topics: str, group: str = "", **params: Any) -> KafkaReceiver:
    given = {"bootstrap.servers": address, "auto.offset.reset": "smallest"}
    group = group or f"g-{topics[0]}"
    read = ConsumerParams.of({**given, **params}, "createStream", **{"group.id": group})
    return KafkaReceiver(read, topics, StorageLevel.MEMORY_AND_DISK_2)


def numbers(driver: FakeDriver) -> Counter[int]:
    return Counter(int(value) for _, value in driver.safe)


def wait_for_numbers(driver: FakeDriver, count: int) -> None:
    wait_for(lambda: len(numbers(driver)) >= count, f"{count} messages; errors: {driver.errors}")


def texts(start: int, end: int) -> list[str]:
    return [str(number) for number in range(start, end)]


def committed(broker: KafkaBroker, topic: str, partitions: int = 1) -> list[int | None]:
    group = ConsumerGroup({"bootstrap.servers": broker.address}, f"g-{topic}", "the test", 60)
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    found = group.committed(parts)
    group.close()
    return [found.get(part) for part in parts]


def test_messages_are_pairs_of_bytes_and_offsets_follow(
    broker: KafkaBroker, topic: Topics, running: Any
) -> None:
    name = topic()
    broker.send(name, [b"\xff", None, b""], key="k")
    broker.send(name, ["x"])
    driver = running(receiver_of(broker.address, name)).driver
    wait_for(lambda: len(driver.safe) == 4, "the messages")
    assert driver.safe == [(b"k", b"\xff"), (b"k", None), (b"k", b""), (None, b"x")]
    wait_for(lambda: committed(broker, name) == [4], "the commit")
    assert driver.errors == []


def test_a_damaged_message_is_named_and_never_skipped_and_those_before_it_are_stored(
    broker: KafkaBroker, topic: Topics, running: Any
) -> None:
    name = topic()
    for first in (0, 5, 10):
        broker.send(name, texts(100 + first, 105 + first))
    broker.damage(name, b"107")
    driver = running(receiver_of(broker.address, name)).driver
    driver.wait_for_error(f"offset 5 of partition 0 of topic {name}")
    # What comes before it is safe, although it has come at the same moment.
    assert numbers(driver) == Counter(range(100, 105))


def test_a_group_behind_an_open_transaction_has_lost_nothing(
    broker: KafkaBroker, topic: Topics, running: Any
) -> None:
    """It was read with another isolation level until now."""
    name = topic()
    producer = open_transaction(broker, name, "0")
    broker.send(name, ["1"])
    first = running(receiver_of(broker.address, name))
    wait_for_numbers(first.driver, 2)
    wait_for(lambda: committed(broker, name) == [2], "the commit")
    first.stop()
    later = receiver_of(broker.address, name, **{"isolation.level": "READ_COMMITTED"})
    driver = running(later).driver
    producer.commit_transaction(60)
    broker.send(name, ["2"])
    wait_for_numbers(driver, 1)
    assert numbers(driver) == Counter([2])
    assert driver.errors == []


def test_offsets_are_committed_only_when_messages_are_safe(
    broker: KafkaBroker, topic: Topics
) -> None:
    name = topic()
    broker.send(name, texts(0, 5))
    world = Supervised(receiver_of(broker.address, name))
    with world as driver:
        driver.hold_back()
        wait_for(lambda: driver.offered, "a block")
        assert committed(broker, name) == [0]
        driver.let_go()
        wait_for(lambda: committed(broker, name) == [5], "the commit")


def test_a_new_group_begins_where_it_first_looked(broker: KafkaBroker, topic: Topics) -> None:
    name = topic()
    broker.send(name, texts(0, 5))

    def receiver() -> KafkaReceiver:
        return receiver_of(broker.address, name, **{"auto.offset.reset": "largest"})

    with Supervised(receiver()):
        wait_for(lambda: committed(broker, name) == [5], "the beginning")
    broker.send(name, texts(5, 8))  # while nobody looks
    with Supervised(receiver()) as driver:
        wait_for_numbers(driver, 3)
    assert numbers(driver) == Counter(range(5, 8))


def test_a_partition_that_comes_while_it_runs_is_read_from_its_beginning(
    broker: KafkaBroker, topic: Topics
) -> None:
    name = topic()
    settings = {"auto.offset.reset": "latest", "topic.metadata.refresh.interval.ms": 3000}
    broker.send(name, texts(0, 5))
    with Supervised(receiver_of(broker.address, name, **settings)) as driver:
        wait_for(lambda: committed(broker, name) == [5], "the beginning")
        broker.add_partitions(name, 2)
        broker.send(name, texts(5, 9), 1)  # before the receiver knows of it
        wait_for_numbers(driver, 4)
    assert numbers(driver) == Counter(range(5, 9))


def test_lost_commits_repeat_nothing(
    broker: KafkaBroker, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(2)
    driver = FakeDriver()
    with monkeypatch.context() as patch:
        patch.setattr(KafkaSession, "_commit", lambda self: None)
        patch.setattr(KafkaSession, "_commit_last", lambda self: None)
        for number in range(4):
            broker.send(name, texts(number * 20, number * 20 + 20), number % 2)
            with Supervised(receiver_of(broker.address, name), driver):
                wait_for_numbers(driver, number * 20 + 20)
        assert committed(broker, name, 2) == [0, 0]
    broker.send(name, texts(80, 90), 0)
    with Supervised(receiver_of(broker.address, name), driver):
        wait_for_numbers(driver, 90)
        wait_for(lambda: committed(broker, name, 2) == [50, 40], "the commits")
    assert numbers(driver) == Counter(range(90))


def test_partitions_change_hands_and_nothing_is_lost_or_repeated(
    broker: KafkaBroker, topic: Topics
) -> None:
    name = topic(4)
    driver = FakeDriver()
    sent = 0

    def send_more() -> None:
        nonlocal sent
        for part in range(4):
            broker.send(name, texts(sent, sent + 25), part)
            sent += 25

    worlds: list[Supervised] = []
    for _ in range(3):
        world = Supervised(receiver_of(broker.address, name), driver)
        world.supervisor.start()
        worlds.append(world)
        send_more()
        wait_for_numbers(driver, sent)
    for world in worlds[:2]:
        send_more()
        world.stop()
    wait_for_numbers(driver, sent)
    worlds[2].stop()
    assert numbers(driver) == Counter(range(sent))
    assert committed(broker, name, 4) == [sent // 4] * 4


def test_a_block_that_cannot_be_stored_is_read_again(broker: KafkaBroker, topic: Topics) -> None:
    name = topic()
    broker.send(name, texts(0, 10))
    world = Supervised(receiver_of(broker.address, name))
    world.driver.is_broken = True
    with world as driver:
        driver.wait_for_error("the disk is full")
        driver.is_broken = False
        wait_for_numbers(driver, 10)
        broker.send(name, texts(10, 20))
        wait_for_numbers(driver, 20)
    assert numbers(driver) == Counter(range(20))


def test_a_broker_that_dies_before_it_has_taken_a_commit_and_comes_back(
    broker: KafkaBroker, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    broker.send(name, texts(0, 10))
    killed = threading.Event()
    kept = KafkaReceiver.store_pieces

    def store_and_kill(self: KafkaReceiver, *pieces: Any) -> Any:
        known = kept(self, *pieces)
        if not killed.is_set():
            broker.kill()
            killed.set()
        return known

    monkeypatch.setattr(KafkaReceiver, "store_pieces", store_and_kill)
    with Supervised(receiver_of(broker.address, name)) as driver:
        try:
            driver.wait_for_error("the receiver waits for it")
        finally:
            killed.wait()
            broker.start()
        broker.send(name, texts(10, 20))
        wait_for_numbers(driver, 20)
        wait_for(lambda: committed(broker, name) == [20], "the commit")
    assert numbers(driver) == Counter(range(20))


def test_no_more_is_stored_than_the_driver_remembers_while_commits_are_not_taken(
    broker: KafkaBroker, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MOST_UNCOMMITTED", 2)
    takes = threading.Event()
    waits = threading.Event()
    kept = KafkaSession._commit

    def commit_if_taken(self: KafkaSession) -> None:
        if takes.is_set():
            kept(self)
        elif self._commits.must_wait:
            waits.set()

    monkeypatch.setattr(KafkaSession, "_commit", commit_if_taken)
    name = topic()
    with Supervised(receiver_of(broker.address, name)) as driver:
        for number in range(2):
            broker.send(name, texts(number, number + 1))
            wait_for_numbers(driver, number + 1)
        assert waits.wait(60)
        broker.send(name, texts(2, 30))
        takes.set()
        wait_for_numbers(driver, 30)
        wait_for(lambda: committed(broker, name) == [30], "the commit")
    assert numbers(driver) == Counter(range(30))


def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    broker: KafkaBroker, topic: Topics
) -> None:
    name = topic()
    driver = FakeDriver()
    broker.send(name, texts(0, 10))
    with Supervised(receiver_of(broker.address, name), driver):
        wait_for_numbers(driver, 10)
    broker.delete(name)
    broker.create(name)
    broker.send(name, texts(100, 130))
    with Supervised(receiver_of(broker.address, name), driver):
        wait_for_numbers(driver, 40)
    assert numbers(driver) == Counter([*range(10), *range(100, 130)])


def test_a_topic_that_is_made_again_while_it_runs(broker: KafkaBroker, topic: Topics) -> None:
    name = topic()
    receiver = receiver_of(broker.address, name, **{"auto.offset.reset": "latest"})
    with Supervised(receiver) as driver:
        wait_for(lambda: committed(broker, name) == [0], "the beginning")
        broker.send(name, texts(0, 10))
        wait_for_numbers(driver, 10)
        broker.delete(name)
        driver.wait_for_error(f"no topic {name}")
        broker.create(name)
        broker.send(name, texts(100, 130))
        wait_for_numbers(driver, 40)
        driver.wait_for_error(f"topic {name} was deleted and made again")
    assert numbers(driver) == Counter([*range(10), *range(100, 130)])


def test_expired_messages_are_reported(broker: KafkaBroker, topic: Topics) -> None:
    name = topic()
    broker.send(name, texts(0, 5))
    with Supervised(receiver_of(broker.address, name)) as driver:
        wait_for_numbers(driver, 5)
    broker.send(name, texts(5, 20))
    broker.truncate(name, 0, 12)
    with Supervised(receiver_of(broker.address, name)) as driver:
        wait_for_numbers(driver, 8)
    assert numbers(driver) == Counter(range(12, 20))
    assert any(
        f"messages of partition 0 of topic {name} are gone: the group g-{name} is at offset 5, and the "
        "partition has offsets 12 to before 20" in error
        for error in driver.errors
    )


def test_what_is_wrong_is_reported(broker: KafkaBroker, running: Any) -> None:
    unknown = running(receiver_of(broker.address, "no-such-topic")).driver
    nowhere = f"127.0.0.1:{free_port()}"
    away = running(receiver_of(nowhere, "t")).driver
    unknown.wait_for_error("there is no topic no-such-topic at")
    away.wait_for_error(f"no Kafka broker answers at {nowhere}")
