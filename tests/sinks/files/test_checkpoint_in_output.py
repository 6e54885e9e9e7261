"""A checkpoint inside the output folder of its query, as many programs of Spark have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.sql.batches import stopped_at_end

LAYOUTS = ["checkpoint", "_checkpoint", "run/checkpoint", "."]
"""Where the checkpoint is, seen from the output folder."""


def copy_lines(session: SparkSession, folder: Path, layout: str, out: str = "out") -> None:
    """Run a query over all files of the input, once."""
    query = (
        session.readStream.text(str(folder / "in"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / out / layout))
        .trigger(availableNow=True)
        .start(str(folder / out))
    )
    query.awaitTermination()


def put(folder: Path, name: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text(f"{name}\n")


def values(session: SparkSession, path: Path) -> list[str]:
    rows = session.read.schema("value string").parquet(str(path)).collect()
    return sorted(row.value for row in rows)


def streamed(session: SparkSession, path: Path, name: str) -> list[str]:
    """Return what a stream over the output folder reads."""
    reader: Any = session.readStream.schema("value string").parquet(str(path))
    query = reader.writeStream.format("memory").queryName(name).start()
    with stopped_at_end(query):
        query.processAllAvailable()
        return sorted(row.value for row in session.table(name).collect())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_query_starts_and_goes_on(
    spark: SparkSession, other_session: SparkSession, tmp_path: Path, layout: str
) -> None:
    """Readers see its rows and nothing of the checkpoint: batches, our streams and Spark's own."""
    written = []
    for name in ("a", "b", "c"):
        put(tmp_path, name)
        copy_lines(spark, tmp_path, layout)
        written.append(name)
        assert values(spark, tmp_path / "out") == written
    assert streamed(spark, tmp_path / "out", "own_stream") == written
    assert streamed(other_session, tmp_path / "out", "sparks_stream") == written


@pytest.mark.parametrize("layout", LAYOUTS)
def test_spark_accepts_what_we_accept(
    other_session: SparkSession, tmp_path: Path, layout: str
) -> None:
    for name in ("a", "b"):
        put(tmp_path, name)
        copy_lines(other_session, tmp_path, layout)
    assert values(other_session, tmp_path / "out") == ["a", "b"]


def test_a_start_before_any_batch_does_not_stand_in_the_way_of_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    copy_lines(spark, tmp_path, "checkpoint")  # nothing to do: no batch, and no manifest
    assert (tmp_path / "out" / "checkpoint" / "metadata").exists()
    put(tmp_path, "a")
    copy_lines(spark, tmp_path, "checkpoint")
    assert values(spark, tmp_path / "out") == ["a"]


def test_the_checkpoints_of_other_queries_are_no_foreign_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, "a")
    copy_lines(spark, tmp_path, str(tmp_path / "out" / "checkpoints" / "other"), out="elsewhere")
    copy_lines(spark, tmp_path, "checkpoints/own")
    assert values(spark, tmp_path / "out") == ["a"]


def test_somebody_elses_files_are_refused_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "a")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs.parquet").write_text("not ours")
    for layout in LAYOUTS:
        with pytest.raises(Exception, match=r"such as theirs\.parquet"):
            copy_lines(spark, tmp_path, layout)
        assert [path.name for path in (tmp_path / "out").rglob("*")] == ["theirs.parquet"]
