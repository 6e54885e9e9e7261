"""A query with two sinks, killed at the other steps of its commits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned
from tests.faults.two_sinks import EXPECTED_KEYS, TwoSinks


@pytest.mark.parametrize(
    "point", ["batch.after-run", "sink.moved", "sink.committed", "batch.before-commit"]
)
def test_killed_elsewhere(spark: SparkSession, tmp_path: Path, point: str) -> None:
    program = TwoSinks(tmp_path / "run", spark)
    program.run([Planned(point, 3)])
    assert program.keys("first") == program.keys("second") == EXPECTED_KEYS
