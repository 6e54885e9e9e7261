"""A program with a checkpoint directory writes the same, however often it is stopped, fails or is killed."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from pyspark import SparkContext

from tests.streaming.comparison.durable import (
    KILL_POINTS,
    DurableRun,
    Stop,
    compare,
    keep_little,
    planned,
    straight_through,
)
from tests.streaming.comparison.generating import generate_durable
from tidemill.batches import durable
from tidemill.state import operators

LONG = os.environ.get("TIDEMILL_LONG") == "1"
FAULT_POINTS = [point for point in KILL_POINTS if point != "storage.write"]


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((durable, "KEEP"), (operators, "SNAPSHOT_EVERY")):
        monkeypatch.setattr(module, name, getattr(module, name))
    keep_little()


@pytest.mark.parametrize("seed", range(120 if LONG else 1))
def test_stopped_and_failing(seed: int, sc: SparkContext, tmp_path: Path) -> None:
    random = Random(seed)
    program = generate_durable(seed) if LONG else generate_durable(seed, lines=5, batches=6)
    expected = straight_through(program, sc, tmp_path / "straight")
    stops = [
        Stop(batches, random.random() < 0.3)
        for batches in sorted(random.sample(range(1, program.batches), 2))
    ]
    faults = [
        str(planned(point, random.randrange(1, program.batches))).removesuffix("=kill")
        for point in random.sample(FAULT_POINTS, 2)
    ]
    run = DurableRun(program, tmp_path / "interrupted")
    run.run_with_faults(sc, stops, faults)
    compare(program, expected, run, (stops, faults))
