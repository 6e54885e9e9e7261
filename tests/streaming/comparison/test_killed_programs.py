"""A program with a checkpoint directory writes the same, however often it is killed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark import SparkContext

from tests.faults.harness import Program as KilledProgram
from tests.streaming.comparison.durable import (
    KILL_POINTS,
    DurableRun,
    compare,
    planned,
    straight_through,
    write_program,
)
from tests.streaming.comparison.generating import generate_durable


class Killed(KilledProgram):
    module = "tests.streaming.comparison.durable"


@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_killed(seed: int, sc: SparkContext, tmp_path: Path) -> None:
    random = Random(seed)
    program = generate_durable(seed)
    expected = straight_through(program, sc, tmp_path / "straight")
    faults = [
        planned(point, random.randrange(1, program.batches))
        for point in random.sample(KILL_POINTS, 3)
    ]
    killed = Killed(tmp_path / "killed", program.batches)
    write_program(program, killed.folder)
    outcome = killed.run(faults)
    assert outcome.kills == len(faults)
    compare(program, expected, DurableRun(program, killed.folder), faults)
