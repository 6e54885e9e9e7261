"""Two queries killed at every point that they pass, early and late. Run by ``make test-faults``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned, packed
from tests.faults.queries import QueryProgram, check

# How often an undisturbed run is sure to pass a point.
DRIVER_POINTS = {
    "query.before-plan": 2,
    "query.started": 2,
    "source.before-log": 12,
    "source.after-log": 12,
    "source.before-cleanup": 2,
    "batch.before-offsets": 18,
    "batch.after-offsets": 18,
    "batch.before-run": 18,
    "program.in-function": 6,
    "program.after-function": 6,
    "sink.begun": 12,
    "sink.staged": 12,
    "sink.journaled": 12,
    "sink.move": 16,
    "sink.moved": 12,
    "sink.before-commit": 12,
    "sink.committed": 12,
    "sink.before-claim": 1,
    "sink.before-cleanup": 2,
    "batch.after-run": 18,
    "batch.after-sink": 18,
    "batch.before-commit": 18,
    "batch.after-commit": 18,
    "batch.after-sources": 18,
    "batch.purge": 10,
    "batch.over": 18,
    "state.before-cleanup": 10,
    "storage.write": 120,
}
TASK_POINTS = {
    "program.in-task": 70,
    "state.step": 80,
    "state.before-version": 40,
    "state.after-version": 40,
    "state.before-snapshot": 10,
    "state.after-snapshot": 10,
}
# A task that fails, or whose Python worker dies, is run again by Spark: the queries go on.
SURVIVED = ("process", "error")


def all_plans() -> list[list[Planned]]:
    """Each point early, in the middle and late, in programs with five faults each."""
    chance = random.Random(20261116)
    faults = []
    for point, passes in {**DRIVER_POINTS, **TASK_POINTS}.items():
        for occurrence in sorted({1, (passes + 1) // 2, passes}):
            faults.append(Planned(point, occurrence, "kill"))
    for point, passes in TASK_POINTS.items():
        for action in SURVIVED:
            faults.append(Planned(point, chance.randint(1, passes), action))
    chance.shuffle(faults)
    return packed(faults)


PLANS = all_plans()


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_killed_everywhere(
    undisturbed_queries: QueryProgram, tmp_path: Path, spark: SparkSession, number: int
) -> None:
    program = QueryProgram(tmp_path / "run", spark)
    outcome = program.run(PLANS[number], undisturbed_queries.rows())
    kills = [fault for fault in PLANS[number] if fault.action == "kill"]
    # Two threads or tasks may come to their points at the same time: then one death does for both.
    assert len(kills) - 1 <= outcome.kills <= len(kills)
    assert outcome.failures == []
    check(program, undisturbed_queries)


@pytest.mark.parametrize(
    "step", ["sink.journaled", "sink.move", "sink.moved", "sink.before-commit"]
)
def test_killed_while_an_attempt_is_undone(
    undisturbed_queries: QueryProgram, tmp_path: Path, spark: SparkSession, step: str
) -> None:
    program = QueryProgram(tmp_path / "run", spark)
    faults = [Planned(step, 6), Planned("sink.undone", 1), Planned("sink.undone", 2)]
    assert program.run(faults, undisturbed_queries.rows()).kills == 3
    check(program, undisturbed_queries)


def test_a_full_disk_ends_the_query_with_a_clear_word_and_loses_nothing(
    undisturbed_queries: QueryProgram, tmp_path: Path, spark: SparkSession
) -> None:
    program = QueryProgram(tmp_path / "run", spark)
    faults = [Planned("storage.write", occurrence, "enospc") for occurrence in (31, 64, 97)]
    outcome = program.run(faults, undisturbed_queries.rows())
    assert outcome.kills == 0
    for errors in outcome.failures:
        assert "could not be written: No space left on device" in errors
    check(program, undisturbed_queries)
