"""Whatever kills a stream, its outputs and its state are those of a stream that nothing has happened to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import BATCHES, Planned, Program


def test_the_undisturbed_run_is_what_it_is_meant_to_be(undisturbed: Program) -> None:
    outputs = undisturbed.outputs()
    assert len(outputs) == 3 * BATCHES + 2
    assert outputs["state-totals.json"] == outputs[f"totals-{BATCHES:03d}.json"]
    assert any(b'"idle"' in data for data in outputs.values())
    files = [path.name for path in undisturbed.checkpoint.rglob("*.snapshot")]
    assert files, "no snapshot was taken"
    assert len(list((undisturbed.checkpoint / "offsets").iterdir())) < BATCHES


SHORT = [
    # One point after the other, each in a batch of its own, in two programs that run to their end.
    [
        Planned("start.after-program", 1),
        Planned("batch.before-offsets", 3),
        Planned("program.in-job", 14),
        Planned("state.after-version", 22),
        Planned("batch.before-commit", 7),
    ],
    [
        Planned("batch.after-offsets", 2),
        Planned("state.before-snapshot", 2),
        Planned("batch.after-outputs", 6, "driver"),
        Planned("batch.after-commit", 7),
        Planned("batch.purge", 2),
    ],
]


@pytest.mark.parametrize("faults", SHORT, ids=lambda faults: faults[0].point)
def test_killed_now_and_then(undisturbed: Program, tmp_path: Path, faults: list[Planned]) -> None:
    program = Program(tmp_path / "run")
    outcome = program.run(faults, undisturbed.states_by_batch())
    assert outcome.kills == len(faults)
    assert outcome.states_seen > 10
    assert program.outputs() == undisturbed.outputs()


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
