"""Whatever kills queries, their output and state equal those of undisturbed queries."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.faults.harness import Planned
from tests.faults.queries import STEPS, QueryProgram, check, prefixes


def test_the_undisturbed_run_is_what_it_is_meant_to_be(undisturbed_queries: QueryProgram) -> None:
    rows = undisturbed_queries.rows()
    assert rows is not None
    # Every step but the last has its windows closed, in one batch, by several files.
    assert len(prefixes(rows)) == STEPS
    assert all(
        len(after) - len(before) >= 4
        for before, after in zip(prefixes(rows), prefixes(rows)[1:], strict=False)
    )
    assert len(undisturbed_queries.data_files()) >= 3 * (STEPS - 1)
    assert len(list((undisturbed_queries.folder / "counts").glob("batch-*"))) == STEPS
    manifest = {
        path.name
        for path in (undisturbed_queries.folder / "windows" / "_spark_metadata").glob("[!.]*")
    }
    assert any(name.endswith(".compact") for name in manifest)
    assert "0" not in manifest
    for name in ("windows", "counts"):
        checkpoint = undisturbed_queries.folder / "checkpoints" / name
        assert list(checkpoint.rglob("*.snapshot")), "no snapshot was taken"
        assert not (checkpoint / "offsets" / "0").exists()
        assert list((checkpoint / "sources" / "0").glob("*.compact"))


# One after the other, in one program that runs to its end.
SHORT = [
    Planned("sink.move", 3),
    Planned("batch.before-commit", 8),
    Planned("state.before-version", 40, "process"),
]


def test_killed_now_and_then(
    undisturbed_queries: QueryProgram, tmp_path: Path, spark: SparkSession
) -> None:
    program = QueryProgram(tmp_path / "run", spark)
    outcome = program.run(SHORT, undisturbed_queries.rows())
    assert outcome.kills == len(SHORT) - 1  # the Python worker's task was tried again
    assert outcome.states_seen > 3
    check(program, undisturbed_queries)
