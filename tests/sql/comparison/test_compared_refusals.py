"""A program that Spark refuses is refused at the same moment, and the same ``except`` catches the error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sql.comparison.engines import BUILDING, RUNNING, STARTING
from tests.sql.comparison.refusals import (
    BOTH_REFUSE,
    ONLY_SPARK_REFUSES,
    ONLY_TIDEMILL_REFUSES,
    TIDEMILL_IS_EARLIER,
)
from tests.sql.comparison.refusing import attempt
from tests.sql.streams import LONG


def chosen(programs: dict[str, str], every: int) -> list[str]:
    """Return the names of the programs that this run tries."""
    return [name for number, name in enumerate(programs) if LONG or number % every == 0]


@pytest.mark.parametrize("name", chosen(BOTH_REFUSE, 4))
def test_both_refuse(name: str, sparks: SparkSession, spark: SparkSession, tmp_path: Path) -> None:
    theirs = attempt(sparks, BOTH_REFUSE[name], tmp_path / "spark")
    ours = attempt(spark, BOTH_REFUSE[name], tmp_path / "tidemill")
    assert theirs is not None
    assert ours is not None
    if name in TIDEMILL_IS_EARLIER:
        moments = [BUILDING, STARTING, RUNNING]
        assert moments.index(ours.moment) < moments.index(theirs.moment)
        return
    assert ours.moment == theirs.moment, ours.message
    assert ours.condition == theirs.condition, ours.message
    assert theirs.types <= ours.types


@pytest.mark.parametrize("name", chosen(ONLY_SPARK_REFUSES, 2))
def test_tidemill_accepts_more(
    name: str, sparks: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    assert attempt(sparks, ONLY_SPARK_REFUSES[name], tmp_path / "spark") is not None
    assert attempt(spark, ONLY_SPARK_REFUSES[name], tmp_path / "tidemill") is None


@pytest.mark.parametrize("name", chosen(ONLY_TIDEMILL_REFUSES, 3))
def test_spark_accepts_more(
    name: str, sparks: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    assert attempt(sparks, ONLY_TIDEMILL_REFUSES[name], tmp_path / "spark") is None
    ours = attempt(spark, ONLY_TIDEMILL_REFUSES[name], tmp_path / "tidemill")
    assert ours is not None
    assert ours.moment != RUNNING
