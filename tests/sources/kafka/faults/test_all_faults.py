"""Driver, worker and broker killed at every point that a query from Kafka passes. ``make test-faults``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned, packed
from tests.kafka.broker import KafkaBroker
from tests.sources.kafka.faults.running import KafkaProgram

# How often a run without faults is sure to pass a point.
DRIVER_POINTS = {
    "batch.before-offsets": 8,
    "batch.after-offsets": 8,
    "batch.before-run": 8,
    "sink.begun": 8,
    "sink.staged": 8,
    "sink.journaled": 4,
    "sink.moved": 4,
    "sink.committed": 8,
    "batch.after-run": 8,
    "batch.before-commit": 8,
    "batch.after-commit": 8,
    "batch.after-sources": 8,
    "batch.over": 8,
    "storage.write": 20,
}
TASK_POINTS = {
    "kafka.before-fetch": 16,
    "kafka.fetched": 16,
    "kafka.range-read": 16,
    "program.in-task": 200,
    "state.before-version": 8,
    "state.after-version": 8,
}


def all_plans() -> list[list[Planned]]:
    """Each point early, in the middle and late; four faults for each program."""
    faults = [
        Planned(point, occurrence, action)
        for point, passes in {**DRIVER_POINTS, **TASK_POINTS}.items()
        for occurrence, action in (
            (1, "kill"),
            (max(2, passes // 2), "hold"),
            (max(3, passes // 2 + 1), "kill"),
            (passes, "hold"),
        )
    ]
    chance = random.Random(20261118)
    for point, passes in TASK_POINTS.items():
        faults.append(Planned(point, chance.randint(2, passes), "process"))
    chance.shuffle(faults)
    return packed(faults, most=4)


PLANS = all_plans()


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_killed_everywhere(
    broker: KafkaBroker, tmp_path: Path, spark: SparkSession, number: int
) -> None:
    kills = [fault for fault in PLANS[number] if fault.action == "kill"]
    found = KafkaProgram(tmp_path / "run", spark, broker).run_and_check(PLANS[number])
    # Two threads or tasks may come to their points at the same time: then one death does for both.
    assert len(kills) - 1 <= found <= len(kills)
