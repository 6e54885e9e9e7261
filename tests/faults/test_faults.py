"""Whatever kills a stream, its outputs and state equal those of an undisturbed stream."""

from __future__ import annotations

from pathlib import Path

from tests.faults.harness import BATCHES, Planned, Program
from tests.faults.program import words_of


def test_the_undisturbed_run_is_what_it_is_meant_to_be(undisturbed: Program) -> None:
    outputs = undisturbed.outputs()
    assert sum("/" not in name for name in outputs) == 3 * BATCHES + 2
    assert len(undisturbed.printed()) == BATCHES
    for batch in range(1, BATCHES + 1):
        rows = "".join(f"('{word}', 1)\n" for word in words_of(batch)).encode()
        assert rows == b"".join(
            data for name, data in outputs.items() if name.startswith(f"text-{batch}000/")
        )
        assert rows == b"".join(
            data for name, data in outputs.items() if name.startswith(f"rdd-{batch:03d}/")
        )
    assert outputs["state-totals.json"] == outputs[f"totals-{BATCHES:03d}.json"]
    assert any(b'"idle"' in data for data in outputs.values())
    files = [path.name for path in undisturbed.checkpoint.rglob("*.snapshot")]
    assert files, "no snapshot was taken"
    assert len(list((undisturbed.checkpoint / "offsets").glob("[0-9]*"))) < BATCHES


# One point after the other, each in a batch of its own, in one program that runs to its end.
SHORT = [
    Planned("batch.after-offsets", 2),
    Planned("state.after-version", 14),
    Planned("batch.before-commit", 4),
    Planned("state.before-snapshot", 2),
    Planned("output.after-rename", 6),
    Planned("batch.after-run", 7, "driver"),
    Planned("program.in-output", 45),
]


def test_killed_now_and_then(undisturbed: Program, tmp_path: Path) -> None:
    program = Program(tmp_path / "run")
    outcome = program.run(SHORT, undisturbed.states_by_batch())
    assert outcome.kills == len(SHORT)
    assert outcome.states_seen > 10
    assert program.outputs() == undisturbed.outputs()
    assert program.printed() == undisturbed.printed()
