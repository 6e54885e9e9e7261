"""Reading a range as a task does it, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka.broker import KafkaBroker
from tidemill.errors import BrokerUnavailableError, DataLossError
from tidemill.kafka import consumers
from tidemill.kafka.consumers import ConsumerPool, OffsetGoneError, PartitionConsumer, pool
from tidemill.kafka.partitions import TopicPartition
from tidemill.kafka.records import COLUMNS, RangeReader
from tidemill.testing import ManualClock


class Skips:
    def __init__(self) -> None:
        self.found: list[dict[Any, int]] = []

    def add(self, found: dict[Any, int]) -> None:
        self.found.append(found)


@pytest.fixture(autouse=True)
def no_kept_consumers() -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture
def where(broker: KafkaBroker) -> TopicPartition:
    return TopicPartition(broker.create(f"t-{uuid.uuid4().hex[:8]}"), 0)


def reader(broker: KafkaBroker, patience_s: float = 100, may_lose: bool = False) -> RangeReader:
    settings = {
        "bootstrap.servers": broker.address,
        # So little that nothing but the next few messages is there before it is asked for.
        "queued.min.messages": "1",
        "max.partition.fetch.bytes": "2000",
    }
    skips: Any = Skips()
    columns = list(COLUMNS)
    return RangeReader(settings, "x", columns, frozenset(columns), not may_lose, patience_s, skips)


def split(where: TopicPartition, start: int, end: int, id_: str = "") -> dict[str, Any]:
    return {"topic": where.topic, "partition": 0, "from": start, "to": end, "id": id_}


def offsets(batches: Any) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reader take a few messages at once: else it would have them all before the broker dies."""
    monkeypatch.setattr(consumers, "CHUNK", 20)


@pytest.mark.usefixtures("small_pieces")
def test_a_broker_killed_in_the_middle_of_a_fetch(
    broker: KafkaBroker, where: TopicPartition
) -> None:
    broker.send(where.topic, ["x" * 500] * 200, at_once=2)
    reading = reader(broker)(split(where, 3, 190))
    found = offsets([next(reading), next(reading)])
    assert len(found) < 100, "nothing would be left to fetch"
    broker.kill()
    broker.start()
    assert found + offsets(reading) == list(range(3, 190))


@pytest.mark.usefixtures("small_pieces")
def test_a_broker_that_does_not_come_back_is_an_error(
    broker: KafkaBroker, where: TopicPartition
) -> None:
    broker.send(where.topic, ["x" * 500] * 200, at_once=2)
    reading = reader(broker, patience_s=1)(split(where, 0, 200))
    next(reading)
    broker.kill()
    try:
        with pytest.raises(BrokerUnavailableError, match="no Kafka broker answers at 127"):
            list(reading)
    finally:
        broker.start()


def test_what_is_gone(broker: KafkaBroker, where: TopicPartition) -> None:
    broker.send(where.topic, ["x"] * 20)
    broker.truncate(where.topic, 0, 12)
    with pytest.raises(DataLossError, match="at offset 4, its batch ends before 15") as lost:
        list(reader(broker)(split(where, 4, 15)))
    assert (lost.value.expected, lost.value.found) == (4, 12)
    easy = reader(broker, may_lose=True)
    assert offsets(easy(split(where, 4, 15))) == [12, 13, 14]
    assert offsets(easy(split(where, 2, 9))) == []
    assert easy.skipped.found == [{(*where, 4): 8}, {(*where, 2): 7}]  # type: ignore[union-attr]
    # The end of the log is before what the stream has planned: its leader has lost records.
    assert offsets(easy(split(where, 25, 30))) == []
    nowhere = TopicPartition("no-such-topic", 0)
    with pytest.raises(DataLossError, match="it does not exist any more"):
        list(reader(broker)(split(nowhere, 0, 5)))


def test_a_partition_that_ends_before_what_was_planned(
    broker: KafkaBroker, where: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader died, and one that had fewer records was elected."""
    monkeypatch.setattr(consumers, "END_S", 1.0)
    broker.send(where.topic, ["x"] * 10)
    with pytest.raises(DataLossError, match="at offset 10, its batch ends before 15, and it has"):
        list(reader(broker)(split(where, 5, 15)))
    easy = reader(broker, may_lose=True)
    assert offsets(easy(split(where, 5, 15))) == list(range(5, 10))
    assert easy.skipped.found == [{(*where, 10): 5}]  # type: ignore[union-attr]


def test_settings_do_not_show(broker: KafkaBroker) -> None:
    assert broker.address not in repr(reader(broker))


def test_an_offset_that_a_broker_denies_by_mistake(
    broker: KafkaBroker, where: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is new may know less at first. Nothing is lost, and nothing is skipped."""
    broker.send(where.topic, ["x"] * 10)
    known, denials = PartitionConsumer.messages, [True, True]

    def messages(self: Any, start: int, end: int, patience_s: float) -> Any:
        if denials:
            denials.pop()
            raise OffsetGoneError(where, start)
        return known(self, start, end, patience_s)

    monkeypatch.setattr(PartitionConsumer, "messages", messages)
    for may_lose in (False, True):
        denials[:] = [True, True]
        easy = reader(broker, may_lose=may_lose)
        assert offsets(easy(split(where, 2, 9))) == list(range(2, 9))
        assert easy.skipped.found == []  # type: ignore[union-attr]


def test_nothing_of_a_topic_that_was_made_again(broker: KafkaBroker, where: TopicPartition) -> None:
    settings = {"bootstrap.servers": broker.address}
    read = RangeReader(settings, "x", ["value"], frozenset(["value"]), True, 100)

    def values(start: int, end: int, id_: str) -> list[bytes]:
        batches = read(split(where, start, end, id_))
        return [value for batch in batches for value in batch["value"].to_pylist()]

    broker.send(where.topic, ["old"] * 10)
    assert values(0, 5, "first") == [b"old"] * 5  # and has fetched the others with them
    broker.delete(where.topic)
    broker.create(where.topic)
    broker.send(where.topic, ["new"] * 10)
    assert values(5, 10, "second") == [b"new"] * 5


def test_consumers_that_nobody_uses_are_closed(
    broker: KafkaBroker, where: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = PartitionConsumer.close
    monkeypatch.setattr(
        PartitionConsumer,
        "close",
        lambda self: [closed.append(self._where.topic), close(self)],
    )
    monkeypatch.setattr(consumers, "MOST_KEPT", 3)
    clock = ManualClock()
    kept = ConsumerPool(clock)
    settings = {"bootstrap.servers": broker.address}

    def use(topic: str) -> None:
        with kept.consumer(settings, TopicPartition(topic, 0), "x"):
            clock.advance(1000)

    for topic in ("a", "b", "a", "c"):
        use(topic)
    assert closed == []
    use("d")
    assert closed == ["b"]
    clock.advance(consumers.KEPT_MS - 2000)
    use("d")
    assert closed == ["b", "a", "c"]
    with pytest.raises(ZeroDivisionError), kept.consumer(settings, TopicPartition("d", 0), "x"):
        raise ZeroDivisionError
    assert closed == ["b", "a", "c", "d"]
