"""Whatever is killed, every message of Kafka is in the files and in the state once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import Planned
from tests.kafka.broker import KafkaBroker
from tests.kafka.faults.runs import KafkaProgram

# Each in a batch, or a block, of its own.
DIRECT = [
    Planned("batch.after-offsets", 1),
    Planned("kafka.fetched", 6, "process"),
    Planned("batch.after-commit", 4),
]
RECEIVERS = [
    Planned("kafka.stored", 2, "process"),
    Planned("kafka.stored", 6),
]
DIRECT_STEPS = [
    "start.before-program",
    "start.after-program",
    "batch.before-offsets",
    "batch.after-offsets",
    "batch.before-run",
    "kafka.fetched",
    "program.in-job",
    "state.after-version",
    "program.after-output",
    "batch.after-run",
    "batch.before-commit",
    "batch.after-commit",
    "batch.after-sources",
    "batch.over",
]
RECEIVER_STEPS = [
    "kafka.gathered",
    "block.logged",
    "block.stored",
    "block.before-add",
    "block.after-add",
    "kafka.stored",
    "kafka.committed",
    "batch.after-offsets",
    "program.after-output",
    "batch.before-commit",
]
IN_WORKERS = ("kafka.", "block.logged", "block.stored", "program.in-job", "state.")
everything = pytest.mark.only_in("test-faults")


def test_a_direct_stream_that_is_killed(broker: KafkaBroker, tmp_path: Path) -> None:
    program = KafkaProgram(tmp_path / "run", "direct", broker, 180)
    outcome = program.run_and_check(DIRECT, kill_broker_at=100)
    assert outcome.kills == 2
    assert outcome.failures  # in local mode a worker that is killed fails its batch
    assert outcome.states_seen


def test_receivers_that_are_killed(broker: KafkaBroker, tmp_path: Path) -> None:
    program = KafkaProgram(tmp_path / "run", "receivers", broker, 200)
    outcome = program.run_and_check(RECEIVERS)
    assert outcome.kills == 1
    assert outcome.states_seen


@everything
@pytest.mark.parametrize("point", DIRECT_STEPS)
def test_a_direct_stream_killed_at_every_step(
    broker: KafkaBroker, tmp_path: Path, point: str
) -> None:
    actions = ("kill", "process" if point.startswith(IN_WORKERS) else "driver")
    occurrences = (1,) if point.startswith("start.") else (1, 4)
    faults = [
        Planned(point, occurrence, action)
        for occurrence, action in zip(occurrences, actions, strict=False)
    ]
    program = KafkaProgram(tmp_path / "run", "direct", broker, 240)
    program.run_and_check(faults, kill_broker_at=150)


@everything
@pytest.mark.parametrize("point", RECEIVER_STEPS)
def test_receivers_killed_at_every_step(broker: KafkaBroker, tmp_path: Path, point: str) -> None:
    actions = ("kill", "process" if point.startswith(IN_WORKERS) else "driver")
    faults = [
        Planned(point, occurrence, action)
        for occurrence, action in zip((2, 6), actions, strict=True)
    ]
    program = KafkaProgram(tmp_path / "run", "receivers", broker, 400)
    program.run_and_check(faults, kill_broker_at=250)
