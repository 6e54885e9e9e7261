"""One sink task that is killed, paused and doubled at every step, and its broker killed there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.processes import WriterProcess
from tests.sinks.kafka.reading import values_of
from tests.sinks.kafka.writer import MARKERS, rows_of, writer

ALL = os.environ.get("TIDEMILL_ALL_FAULTS") == "1"
STEPS = ["fenced", "marker-read", "sent", "marked", "committed"]
BATCHES = 8


class Task:
    """One identity, and the processes that write under it."""

    def __init__(self, broker: KafkaBroker, topic: str, folder: Path) -> None:
        self.broker, self.topic, self.folder = broker, topic, folder
        self.identity = f"test-{uuid.uuid4()}"
        self._started: list[WriterProcess] = []
        start = writer(broker.address, topic, self.identity)
        start.on_driver(lambda producer: producer.commit((), None, 0))

    def start(
        self, first: int, end: int, faults: str = "", counters: str = "faults"
    ) -> WriterProcess:
        place = self.broker.address, self.topic, self.identity
        process = WriterProcess(self.folder / counters, faults, *place, first, end, 300_000)
        self._started.append(process)
        return process

    def check(self, batches: int) -> None:
        """Each batch is there once, as a whole, in the order of batches."""
        expected = [row for batch in range(batches) for row in rows_of(batch)]
        assert values_of(self.broker, self.topic) == expected
        assert self.broker.committed(self.topic) == self.broker.latest(self.topic)

    def close(self) -> None:
        for each in self._started:
            each.process.kill()
            each.process.communicate()


@pytest.fixture
def task(broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path) -> Iterator[Task]:
    if MARKERS not in broker.admin().list_topics(timeout=10).topics:
        broker.create(MARKERS)
    made = Task(broker, topic(), tmp_path)
    yield made
    made.close()


def test_killed_at_every_step(task: Task) -> None:
    """A process that comes after a killed one begins with the first batch that was not said to be done."""
    points = [
        *("begun@2", "sent@2", "marked@3", "committed@4", "written@6"),
        *("fenced@4", "marker-read@5"),
    ]
    faults = ";".join(f"kafka.{point}=process" for point in points)
    done = kills = 0
    while done < BATCHES:
        code, batches, errors = task.start(done, BATCHES, faults).ended()
        done += len(batches)
        kills += code == -9
        assert code in (0, -9), errors
    assert kills == len(points)
    task.check(BATCHES)


@pytest.mark.parametrize("step", STEPS if ALL else ["sent", "marked"])
def test_a_zombie_writes_nothing(task: Task, step: str) -> None:
    """It stands still in batch 1 while another process writes up to batch 3."""
    occurrence = 1 if step in ("fenced", "marker-read") else 2
    first = 1 if occurrence == 1 else 0
    if first:
        assert task.start(0, 1, counters="before").ended()[0] == 0
    zombie = task.start(first, 4, f"kafka.{step}@{occurrence}=pause", "zombie")
    zombie.wait_until_it_stands_still()
    assert task.start(1, 4).ended()[0] == 0
    task.check(4)
    zombie.wake()
    code, batches, errors = zombie.ended()
    assert (code, batches) == (1, list(range(first, 1 + (step == "committed")))), errors
    assert "is not written to Kafka" in errors
    task.check(4)
    assert task.start(4, 6).ended()[0] == 0
    task.check(6)


@pytest.mark.parametrize("step", STEPS if ALL else ["marked"])
def test_the_broker_is_killed_in_the_middle(task: Task, step: str) -> None:
    occurrence = 1 if step in ("fenced", "marker-read") else 3
    process = task.start(0, BATCHES, f"kafka.{step}@{occurrence}=pause")
    process.wait_until_it_stands_still()
    task.broker.kill()
    process.wake()
    task.broker.start()
    code, batches, errors = process.ended()
    assert (code, batches) == (0, list(range(BATCHES))), errors
    task.check(BATCHES)


def test_two_at_once(task: Task) -> None:
    both = [task.start(0, 30, counters=name) for name in ("one", "other")]
    ended = [each.ended() for each in both]
    assert 0 in [code for code, _, _ in ended], ended
    for code, _, errors in ended:
        assert code == 0 or "is not written to Kafka" in errors
    task.check(30)
