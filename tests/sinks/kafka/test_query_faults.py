"""A query from Kafka to Kafka that is killed at every step: each row is there once, at any time."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import Planned, packed
from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.copying import BATCHES, CopyProgram
from tests.sinks.kafka.processes import kill, standing_still, wake
from tests.waiting import wait_for

every_fault = pytest.mark.only_in("test-faults")

# How often a run is sure to pass a point: once in a program, or once a batch. A batch that is killed before
# a point may not come to it any more, because it is done.
DRIVER_POINTS = {
    "kafka.before-tasks": 1,
    "kafka.after-tasks": 1,
    "query.started": 1,
    "batch.before-offsets": BATCHES,
    "batch.after-offsets": BATCHES,
    "batch.before-run": BATCHES,
    "kafka.staged": BATCHES - 3,
    "batch.after-run": BATCHES,
    "batch.after-sink": BATCHES,
    "batch.before-commit": BATCHES,
    "batch.after-commit": BATCHES,
    "batch.over": BATCHES - 2,
}
TASK_POINTS = {
    "program.in-task": BATCHES * 40,
    "kafka.begun": BATCHES - 2,
    "kafka.fenced": 2,
    "kafka.marker-read": 2,
    "kafka.sent": BATCHES,
    "kafka.marked": BATCHES,
    "kafka.committed": BATCHES,
    "kafka.written": BATCHES - 2,
}


def all_plans() -> list[list[Planned]]:
    """Each point early, in the middle and late, in programs with a few faults each."""
    chance = random.Random(20261118)
    faults = []
    for point, passes in {**DRIVER_POINTS, **TASK_POINTS}.items():
        for occurrence in sorted({1, (passes + 1) // 2, passes}):
            faults.append(Planned(point, occurrence))
    for point, passes in TASK_POINTS.items():
        faults.append(Planned(point, chance.randint(1, passes), "process"))
        faults.append(Planned(point, chance.randint(1, passes), "error"))
    for point in ("kafka.sent", "kafka.committed", "batch.before-commit"):
        faults.append(Planned(point, chance.randint(1, BATCHES), "driver"))
    chance.shuffle(faults)
    return packed(faults)


PLANS = all_plans()
SHORT = [
    Planned("kafka.marked", 2),
    Planned("kafka.committed", 4),
    Planned("kafka.sent", 7, "process"),
]

Make = Callable[..., CopyProgram]


@pytest.fixture
def program(broker: KafkaBroker, tmp_path: Path) -> Make:
    return lambda tasks=1: CopyProgram(
        broker, f"copy-{uuid.uuid4().hex[:8]}", tmp_path / "run", tasks
    )


def test_killed_now_and_then(program: Make) -> None:
    copy = program()
    outcome = copy.run(SHORT, "watched")
    assert outcome.kills == len(SHORT) - 1, outcome  # the worker's task was tried again
    assert outcome.states_seen > 0
    copy.check()


@every_fault
@pytest.mark.parametrize(
    ("tasks", "number"),
    [*((1, number) for number in range(len(PLANS))), *((3, n) for n in range(0, len(PLANS), 3))],
)
def test_killed_everywhere(program: Make, tasks: int, number: int) -> None:
    copy = program(tasks)
    copy.run(PLANS[number], "watched")
    copy.check()


@every_fault
@pytest.mark.parametrize("point", ["kafka.sent", "kafka.marked", "kafka.committed"])
def test_a_task_that_slept_while_another_program_took_over(program: Make, point: str) -> None:
    """Everything but its Python worker is killed. It wakes while the next program runs."""
    copy = program()
    process = copy.start([Planned(point, 3, "pause")])
    try:
        wait_for(lambda: standing_still(process.pid) or process.poll() is not None, "the pause")
        zombies = standing_still(process.pid)
        assert zombies, process.communicate()
        kill(process.pid, but=zombies)
        process.communicate()
        successor = copy.start([])
        try:
            wait_for(lambda: (copy.checkpoint / "commits" / "3").exists(), "the next batches")
            wake(copy.counters, *zombies)
            _, errors = successor.communicate(timeout=400)
            assert successor.returncode == 0, errors
        finally:
            kill(successor.pid)
        copy.check()
    finally:
        kill(process.pid)
    copy.check()


@every_fault
@pytest.mark.parametrize(
    "point",
    [
        *("kafka.before-tasks", "batch.before-offsets", "kafka.begun", "kafka.sent"),
        *("kafka.marked", "kafka.committed", "kafka.staged"),
    ],
)
def test_the_broker_dies_in_the_middle(program: Make, point: str) -> None:
    copy = program()
    watcher = copy.watcher("watched")
    passes = {**DRIVER_POINTS, **TASK_POINTS}[point]
    process = copy.start([Planned(point, min(3, passes), "pause")])
    try:
        wait_for(lambda: standing_still(process.pid) or process.poll() is not None, "the pause")
        copy.broker.kill()
        try:
            wake(copy.counters, *standing_still(process.pid))
        finally:
            copy.broker.start()
        _, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors
    finally:
        kill(process.pid)
        watcher.stop()
    assert watcher.problem is None, watcher.problem
    copy.check()
