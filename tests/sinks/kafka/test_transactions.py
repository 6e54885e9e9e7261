"""One sink task and a real broker: whatever happens at whatever step, a batch is there once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic

from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.reading import values_of
from tests.sinks.kafka.writer import MARKERS, messages_of, rows_of, writer
from tests.waiting import wait_for
from tidemill.errors import BrokerRefusedError, SinkError
from tidemill.kafka import cluster
from tidemill.kafka.clients.pool import ClientPool
from tidemill.kafka.cluster import KafkaCluster
from tidemill.sinks.kafka import transactions
from tidemill.sinks.kafka.transactions import TransactionalWriter

STEPS = ["begun", "fenced", "marker-read", "sent", "marked", "committed", "written"]

Task = Callable[..., TransactionalWriter]


@pytest.fixture
def task(broker: KafkaBroker, topic: Callable[..., str]) -> Iterator[Task]:
    """Make a writer to ``task.topic``, whose first batch is 0."""
    if MARKERS not in broker.admin().list_topics(timeout=10).topics:
        broker.create(MARKERS)
    name, identity = topic(), f"test-{uuid.uuid4()}"

    def make(run: str = "", **options: int) -> TransactionalWriter:
        return writer(broker.address, name, identity, run=run, **options)

    make("start").on_driver(lambda producer: producer.commit((), None, 0))
    yield make
    transactions._pool.close()


def written(broker: KafkaBroker, task: Task) -> list[str]:
    topic = task().topic
    assert topic is not None
    return values_of(broker, topic)


def test_each_batch_is_written_once(broker: KafkaBroker, task: Task) -> None:
    assert task().write(0, messages_of(0))
    assert not task().write(0, messages_of(0))
    assert task().write(1, messages_of(1))
    assert not task("another run").write(1, messages_of(1))
    assert task("another run").write(2, [])
    assert not task().write(2, messages_of(2))
    assert written(broker, task) == [*rows_of(0), *rows_of(1)]


def test_a_task_that_has_been_replaced_writes_nothing(broker: KafkaBroker, task: Task) -> None:
    for batch in range(3):
        task().write(batch, messages_of(batch))
    for batch in (0, 1, 3 + 1):
        with pytest.raises(SinkError, match=f"batch {batch} is not written.* batch 3 is next"):
            task("zombie").write(batch, messages_of(batch))
    assert task().write(3, messages_of(3))
    assert written(broker, task) == [row for batch in range(4) for row in rows_of(batch)]


def test_a_worker_comes_back_after_others_have_written(
    broker: KafkaBroker, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it remembers is old: it neither refuses the next batch nor writes an old one."""
    workers = [ClientPool(8) for _ in range(2)]
    for batch, worker in enumerate([0, 1, 1, 0, 1, 0]):
        monkeypatch.setattr(transactions, "_pool", workers[worker])
        assert task().write(batch, messages_of(batch))
        if batch in (1, 4):  # the other worker finds that it is written, and remembers that
            monkeypatch.setattr(transactions, "_pool", workers[0])
            assert not task().write(batch, messages_of(batch))
    monkeypatch.setattr(transactions, "_pool", workers[1])
    with pytest.raises(SinkError, match="batch 6 is next"):
        task().write(3, messages_of(3))
    for each in workers:
        each.close()
    assert written(broker, task) == [row for batch in range(6) for row in rows_of(batch)]


@pytest.mark.parametrize("step", STEPS)
def test_an_exception_at_any_step(
    broker: KafkaBroker, task: Task, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task().write(0, messages_of(0))
    if step in ("fenced", "marker-read"):
        transactions._pool.close()

    def fail(point: str) -> None:
        if point == f"kafka.{step}":
            raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(transactions, "fault_point", fail)
        with pytest.raises(RuntimeError):
            task().write(1, messages_of(1))
    assert task().write(1, messages_of(1)) == (step not in ("committed", "written"))
    assert task().write(2, messages_of(2))
    assert written(broker, task) == [row for batch in range(3) for row in rows_of(batch)]


@pytest.mark.parametrize("step", ["sent", "marked"])
def test_a_task_that_was_fenced_in_the_middle_starts_anew(
    broker: KafkaBroker, task: Task, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one with its name writes the batch, or only looks, while this one is in its transaction."""
    for batch, other in enumerate(
        [
            lambda: task("other").write(0, messages_of(0)),
            lambda: task("other").on_driver(lambda producer: producer.marker),
        ]
    ):
        calls: list[str] = []

        def disturb(
            point: str, other: Callable[[], object] = other, calls: list[str] = calls
        ) -> None:
            if point == f"kafka.{step}" and not calls:
                calls.append(point)
                other()

        with monkeypatch.context() as patched:
            patched.setattr(transactions, "fault_point", disturb)
            assert task().write(batch, messages_of(batch)) == (batch == 1)
        assert calls
    assert written(broker, task) == [*rows_of(0), *rows_of(1)]


def test_a_kept_producer_that_was_fenced_between_two_batches(
    broker: KafkaBroker, task: Task
) -> None:
    """Also with more rows than one request takes: many messages fail at once."""
    many = pa.record_batch({"value": pa.array([b"x" * 1000] * 5000, pa.binary())})
    for batch in range(3):
        task().on_driver(lambda producer: None)
        assert task().write(batch, [many] if batch == 1 else messages_of(batch))
    found = written(broker, task)
    assert [value for value in found if value[0] != "x"] == [*rows_of(0), *rows_of(2)]
    assert len(found) == 5000 + 2 * len(rows_of(0))


def test_a_transaction_that_took_too_long_is_made_again(
    broker: KafkaBroker, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []
    name = task().topic
    assert name is not None

    def wait(point: str) -> None:
        if point == "kafka.sent":
            attempts.append(broker.latest(name))
            if len(attempts) == 1:
                wait_for(lambda: broker.committed(name) > len(rows_of(0)), "the coordinator")

    monkeypatch.setattr(transactions, "fault_point", wait)
    assert task("short", transaction_ms=1000).write(0, messages_of(0))
    assert len(attempts) == 2
    assert written(broker, task) == rows_of(0)


def test_a_topic_of_markers_that_the_cluster_does_not_make(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default is to keep more replicas than it has brokers, or it has a policy for new topics."""
    monkeypatch.setattr(cluster, "NewTopic", lambda name, *_: NewTopic(name, 1, 3))
    asked = KafkaCluster({"bootstrap.servers": broker.address}, "the kafka sink")
    asked.partitions(())
    name = f"m-{uuid.uuid4().hex[:8]}"
    with pytest.raises(BrokerRefusedError, match=f"needs the topic {name}.*only 1 broker"):
        asked.create(name)
    asked.close()


def test_a_topic_of_markers_that_is_gone(broker: KafkaBroker, task: Task) -> None:
    other = replace(task(), place=replace(task().place, topic=f"gone-{uuid.uuid4().hex[:8]}"))
    with pytest.raises(
        SinkError, match=r"cannot keep the marker .* in topic gone-.*: there is no such"
    ):
        other.on_driver(lambda producer: producer.commit((), None, 1))
    assert task().write(0, messages_of(0))
