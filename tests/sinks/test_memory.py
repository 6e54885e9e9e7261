from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.output import FakeQuery, sorted_rows
from tidemill.common.output_modes import COMPLETE, UPDATE
from tidemill.errors import CheckpointError, UsageError
from tidemill.sinks.memory import MemorySink


def test_the_view_is_live(spark: SparkSession, tmp_path: Path) -> None:
    query = FakeQuery(spark, tmp_path)
    sink = MemorySink("live_view")
    query.start(sink)
    assert spark.table("live_view").collect() == []
    assert query.write(0, [(1, "a"), (2, "b")]) == 2
    assert sorted_rows(spark.table("live_view")) == [(1, "a"), (2, "b")]
    assert query.write(1, [(3, None)]) == 1
    assert sorted_rows(spark.table("live_view").where("k > 1")) == [(2, "b"), (3, None)]
    assert sorted_rows(sink.table()) == [(1, "a"), (2, "b"), (3, None)]
    sink.stop()
    assert spark.table("live_view").count() == 3
    assert spark.sql("select count(*) from live_view").first() == (3,)


def test_complete_mode_replaces(spark: SparkSession, tmp_path: Path) -> None:
    query = FakeQuery(spark, tmp_path, mode=COMPLETE)
    query.start(MemorySink("replaced"))
    query.write(0, [(1, "a")])
    query.write(1, [(2, "b"), (3, "c")])
    assert sorted_rows(spark.table("replaced")) == [(2, "b"), (3, "c")]


@pytest.mark.parametrize("mode", ["append", UPDATE])
def test_rows_in_memory_cannot_be_continued(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    query = FakeQuery(spark, tmp_path, mode=mode)
    query.start(MemorySink("gone"))
    query.write(0, [(1, "a")])
    with pytest.raises(CheckpointError, match=rf"checkpoint {tmp_path} in {mode} mode.*'complete'"):
        query.start(MemorySink("gone"))


def test_complete_mode_can_be_continued(spark: SparkSession, tmp_path: Path) -> None:
    query = FakeQuery(spark, tmp_path, mode=COMPLETE)
    query.start(MemorySink("back_again"))
    query.write(0, [(1, "a")])
    query.start(MemorySink("back_again"))
    query.write(1, [(1, "a"), (2, "b")])
    assert sorted_rows(spark.table("back_again")) == [(1, "a"), (2, "b")]


def test_it_needs_a_name() -> None:
    with pytest.raises(UsageError, match="queryName"):
        MemorySink(None)
