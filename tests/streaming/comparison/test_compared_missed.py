"""A stretch of missed batches that is one step gives what a program gives when each of them runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.streaming.comparison.comparing import differences
from tests.streaming.comparison.engines import TIMEOUT_S, Record, feed, input_folders, kept_in
from tests.streaming.comparison.feeding import BASE_MS, BATCH_MS
from tests.streaming.comparison.generating import generate_durable
from tests.streaming.comparison.programs import Program
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.streaming.scheduling import missed_batches
from tidemill.testing import BatchDriver, ManualClock

RESTING = 12
"""How many batches pass, at least, between the last input and those that the present looks back at."""

AFTER = 3
"""How many batches come after the stretch, with input of their own."""

ONE_SEED = 34
"""A program with a sliding window over state, and a count."""


def generated(seed: int, lines: int, batches: int) -> Program:
    """Make the program of a seed. A queue with a default has no empty batches: here none has one."""
    program = generate_durable(seed, lines, batches)
    inputs = tuple(replace(each, default=False, batches=batches) for each in program.inputs)
    return replace(program, inputs=inputs)


def run(program: Program, sc: SparkContext, folder: Path) -> Record:
    """Run the program with input, then with a stretch without any, then with input again."""
    record: Record = {}
    clock = ManualClock(BASE_MS)
    ssc = StreamingContext(sc, BATCH_MS // 1000, clock=clock)
    try:
        ssc.checkpoint(str(folder / "checkpoint"))
        folders = input_folders(program, folder)
        inputs = [each.open(ssc, path) for each, path in zip(program.inputs, folders, strict=True)]
        program.build(ssc, inputs, kept_in(record), {"StateSpec": StateSpec})
        ssc.start()
        driver = BatchDriver(ssc, clock)
        for number in range(program.batches):
            feed(program, folders, number)
            driver.run(1, TIMEOUT_S)
        stretch = RESTING + 2 * ssc._graph.looks_back_ms() // BATCH_MS
        driver.run(stretch, 10 * TIMEOUT_S)
        for number in range(AFTER):
            feed(program, folders, program.batches + stretch + number)
            driver.run(1, TIMEOUT_S)
    finally:
        ssc.stop(stopSparkContext=False)
    return record


def compare(
    program: Program, sc: SparkContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Assert that each batch of a run with a step is as if each had run. Return how many were left out."""
    monkeypatch.setattr(missed_batches, "MADE_UP_FOR", 1_000_000)
    each = run(program, sc, folder / "each")
    monkeypatch.setattr(missed_batches, "MADE_UP_FOR", 1)
    stepped = run(program, sc, folder / "stepped")
    same_times = {
        name: {time: rows for time, rows in batches.items() if time in stepped[name]}
        for name, batches in each.items()
    }
    found = differences(program, ("each batch", "one step"), same_times, stepped)
    assert not found, "\n".join(["", *found])
    return sum(len(each[name]) - len(stepped[name]) for name in each)


def test_one(sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(generated(ONE_SEED, 5, 3), sc, tmp_path, monkeypatch) > 0


@pytest.mark.only_in("test-long")
@pytest.mark.parametrize("seed", range(60))
def test_generated(
    seed: int, sc: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(generated(seed, 6, 4), sc, tmp_path, monkeypatch)
