"""Several sinks of one query: each has every batch, once, and all have the very same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned, Program

BATCHES = 4


class TwoSinks(Program):
    module = "tests.faults.two_sinks_program"

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder, BATCHES)
        self._spark = spark

    def rows(self, sink: str) -> list[tuple[Any, ...]]:
        """What a reader of the manifest sees."""
        df = self._spark.read.schema("k long, v string, random double").json(
            str(self.folder / sink)
        )
        return sorted(tuple(row) for row in df.collect())

    def shown_batches(self, sink: str) -> set[str]:
        manifest = self.folder / sink / "_spark_metadata"
        return {path.name for path in manifest.iterdir() if path.name.isdigit()}


@pytest.fixture
def program(spark: SparkSession, tmp_path: Path) -> TwoSinks:
    return TwoSinks(tmp_path / "run", spark)


def keys(rows: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]


EXPECTED = list(range((BATCHES - 1) * 2 + 4))


def test_killed_between_the_commits_of_two_sinks(program: TwoSinks) -> None:
    """The third commit of a sink is that of batch 1 in the first one."""
    fault = [Planned("batch.after-sink", 3)]
    code, _ = program.run_once(fault)
    assert code == -9
    assert (program.shown_batches("first"), program.shown_batches("second")) == ({"0", "1"}, {"0"})
    seen = program.rows("first")
    assert not (program.checkpoint / "commits" / "1").exists()

    code, errors = program.run_once(fault)
    assert code == 0, errors
    first, second = program.rows("first"), program.rows("second")
    assert keys(first) == keys(second) == EXPECTED
    assert set(seen) <= set(first), "what was visible stays as it was"
    # The batch that one sink had was computed again for the other; all others are of one computation.
    differing = {one[0] for one, other in zip(first, second, strict=True) if one != other}
    assert differing <= {4, 5}


@pytest.mark.parametrize("point", ["batch.after-run", "batch.before-commit", "sink.moved"])
def test_killed_elsewhere(program: TwoSinks, point: str) -> None:
    program.run([Planned(point, 3)])
    assert keys(program.rows("first")) == keys(program.rows("second")) == EXPECTED
