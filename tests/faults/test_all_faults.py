"""Every fault point, at many moments: more than a hundred kills. Run by ``make test-faults``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.harness import DRIVER_POINTS, POINTS, Planned, Program, packed

# How often a run of ten batches is sure to pass a point; the others are passed eight times at least.
RARE = {"start.before-program": 1, "start.after-program": 1, "batch.purge": 5}


def all_plans() -> list[list[Planned]]:
    """Each point at each occurrence, in programs that are killed five times."""
    chance = random.Random(20260301)
    kills = []
    for point in POINTS:
        for occurrence in range(1, RARE.get(point, 8) + 1):
            of_driver_only = point in DRIVER_POINTS and chance.random() < 0.25
            kills.append(Planned(point, occurrence, "driver" if of_driver_only else "kill"))
    chance.shuffle(kills)
    return packed(kills)


PLANS = all_plans()
KILLS: dict[int, int] = {}


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_killed_everywhere(undisturbed: Program, tmp_path: Path, number: int) -> None:
    program = Program(tmp_path / "run")
    outcome = program.run(PLANS[number], undisturbed.states_by_batch())
    # Two tasks may come to their points at the same time: then one death does for both.
    assert len(PLANS[number]) - 1 <= outcome.kills <= len(PLANS[number])
    KILLS[number] = outcome.kills
    assert program.outputs() == undisturbed.outputs()
    assert program.printed() == undisturbed.printed()


def test_there_are_a_hundred_kills_and_every_point_has_some() -> None:
    assert {kill.point for plan in PLANS for kill in plan} == set(POINTS)
    assert sum(map(len, PLANS)) > 100
    if len(KILLS) == len(PLANS):  # all of them have been run
        assert sum(KILLS.values()) >= 100


def test_a_full_disk_stops_the_program_with_a_clear_word_and_loses_nothing(
    undisturbed: Program, tmp_path: Path
) -> None:
    program = Program(tmp_path / "run")
    faults = [Planned("storage.write", occurrence, "enospc") for occurrence in (22, 41)]
    outcome = program.run(faults, undisturbed.states_by_batch())
    assert outcome.kills == 0
    assert (
        outcome.failures
    )  # a snapshot that cannot be written is no failure, but these are not all
    for errors in outcome.failures:
        assert "could not be written: No space left on device" in errors
        assert "Nothing that was written before is lost" in errors
    assert program.outputs() == undisturbed.outputs()


def test_torn_state_is_ignored_before_its_commit_and_refused_after(
    undisturbed: Program, tmp_path: Path
) -> None:
    program = Program(tmp_path / "run")
    code, _ = program.run_once([Planned("batch.before-commit", 6)])
    assert code < 0
    totals = program.checkpoint / "state" / "totals"
    for version in totals.rglob("5.*.changes"):
        version.write_bytes(version.read_bytes()[:100])
    committed = next(totals.rglob("4.*.changes"))
    whole = committed.read_bytes()
    committed.write_bytes(whole[: len(whole) // 2])
    code, errors = program.run_once([])
    assert code == 1
    assert str(committed) in errors
    assert "its end is missing" in errors
    committed.write_bytes(whole)
    program.run([])
    assert program.outputs() == undisturbed.outputs()


def test_a_torn_last_record_is_refused_by_name_and_the_remedy_helps(
    undisturbed: Program, tmp_path: Path
) -> None:
    program = Program(tmp_path / "run")
    code, _ = program.run_once([Planned("batch.after-offsets", 6)])
    assert code < 0
    torn = program.checkpoint / "offsets" / "5"
    torn.write_bytes(torn.read_bytes()[:40])
    before = {p: p.read_bytes() for p in program.checkpoint.rglob("*") if p.is_file()}
    code, errors = program.run_once([])
    assert code == 1
    assert f"DamagedCheckpointError: {torn}: cannot be read" in errors
    assert "delete the files of this batch and of all later ones" in errors
    assert {p: p.read_bytes() for p in program.checkpoint.rglob("*") if p.is_file()} == before
    torn.unlink()
    program.run([])
    assert program.outputs() == undisturbed.outputs()
