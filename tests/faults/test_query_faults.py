"""Whatever kills queries, their output and state are those of queries that nothing has happened to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned
from tests.faults.queries import STEPS, QueryProgram, prefixes


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> QueryProgram:
    """The program that nothing happens to."""
    program = QueryProgram(tmp_path_factory.mktemp("quiet") / "run", spark)
    program.run([])
    return program


def test_the_undisturbed_run_is_what_it_is_meant_to_be(quiet: QueryProgram) -> None:
    rows = quiet.rows()
    assert rows is not None
    # Every step but the last has its windows closed, in one batch, by several files.
    assert len(prefixes(rows)) == STEPS
    assert all(
        len(after) - len(before) >= 4
        for before, after in zip(prefixes(rows), prefixes(rows)[1:], strict=False)
    )
    assert len(quiet.data_files()) >= 3 * (STEPS - 1)
    assert len(list((quiet.folder / "counts").glob("batch-*"))) == STEPS
    manifest = {path.name for path in (quiet.folder / "windows" / "_spark_metadata").glob("[!.]*")}
    assert any(name.endswith(".compact") for name in manifest)
    assert "0" not in manifest
    for name in ("windows", "counts"):
        checkpoint = quiet.folder / "checkpoints" / name
        assert list(checkpoint.rglob("*.snapshot")), "no snapshot was taken"
        assert not (checkpoint / "offsets" / "0").exists()
        assert list((checkpoint / "sources" / "0").glob("*.compact"))


# One point after the other, each in a step of its own, in one program that runs to its end.
SHORT = [
    Planned("sink.move", 3),
    Planned("batch.before-commit", 10),
    Planned("state.before-version", 60, "process"),
    Planned("sink.before-commit", 10),
]


def test_killed_now_and_then(quiet: QueryProgram, tmp_path: Path, spark: SparkSession) -> None:
    program = QueryProgram(tmp_path / "run", spark)
    outcome = program.run(SHORT, quiet.rows())
    assert outcome.kills == len(SHORT) - 1  # the Python worker's task was tried again
    assert outcome.states_seen > 3
    check(program, quiet)


def check(program: QueryProgram, quiet: QueryProgram) -> None:
    assert program.rows() == quiet.rows()
    assert program.outputs() == quiet.outputs()
    assert len(program.data_files()) == len(quiet.data_files()), "files that no manifest lists"
    assert not (program.folder / "windows" / "_tidemill_staging").exists()
