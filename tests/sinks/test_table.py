from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sinks.output import FakeQuery, sorted_rows
from tidemill.common.output_modes import APPEND
from tidemill.errors import CheckpointError, UnsupportedError, UsageError
from tidemill.sinks.table import TableSink

NAME = "tidemill_sink_table"


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[FakeQuery]:
    yield FakeQuery(spark, tmp_path / "checkpoint")
    spark.sql(f"DROP VIEW IF EXISTS {NAME}_view")
    spark.sql(f"DROP TABLE IF EXISTS {NAME}")


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "the table's place")


def test_a_table_is_made_and_grows(query: FakeQuery, place: str) -> None:
    query.start(TableSink(NAME, "orc", place, ["v"], {"compression": "zlib"}))
    assert query.sink.modes == (APPEND,)
    assert query.spark.table(NAME).count() == 0
    query.write(0, [(1, "a")])
    assert sorted_rows(query.spark.table(NAME)) == [(1, "a")]
    query.write(1, [(2, "b")])
    assert sorted_rows(query.spark.table(NAME)) == [(1, "a"), (2, "b")]
    query.start(TableSink(NAME))
    query.write(1, [(2, "again")])
    query.write(2, [(3, None)])
    assert sorted_rows(query.spark.table(NAME)) == [(1, "a"), (2, "b"), (3, None)]
    assert len(list(Path(place).glob("v=a/*.zlib.orc"))) == 1


def test_a_managed_table(query: FakeQuery, spark: SparkSession) -> None:
    query.start(TableSink(NAME))
    query.write(0, [(1, "a")])
    assert sorted_rows(spark.table(NAME)) == [(1, "a")]
    assert spark.catalog.getTable(NAME).tableType == "MANAGED"


def test_the_session_may_go_on_to_another_database(query: FakeQuery, spark: SparkSession) -> None:
    query.start(TableSink(NAME))
    query.write(0, [(1, "a")])
    assert spark.table(NAME).count() == 1
    before = spark.catalog.currentDatabase()
    spark.sql("CREATE DATABASE IF NOT EXISTS another_database")
    try:
        spark.sql("USE another_database")
        query.write(1, [(2, "b")])
        assert sorted_rows(spark.table(f"{before}.{NAME}")) == [(1, "a"), (2, "b")]
        assert query.sink.table().count() == 2  # type: ignore[union-attr]
    finally:
        spark.sql(f"USE {before}")
        spark.sql("DROP DATABASE another_database")


def test_views_are_refused(query: FakeQuery, spark: SparkSession) -> None:
    spark.range(1).createOrReplaceTempView("tidemill_temporary")
    spark.sql(f"CREATE VIEW {NAME}_view AS SELECT 1 AS k")
    for name in ("tidemill_temporary", f"{NAME}_view"):
        with pytest.raises(UsageError, match="this is a view"):
            query.start(TableSink(name))
    spark.catalog.dropTempView("tidemill_temporary")


def test_what_does_not_fit_the_table_is_refused(
    query: FakeQuery, spark: SparkSession, place: str
) -> None:
    spark.sql(f'CREATE TABLE {NAME} (k int, v string) USING parquet LOCATION "{place}"')
    with pytest.raises(
        UsageError, match="table has the columns k int, v string, and the query has k bigint"
    ):
        query.start(TableSink(NAME))
    spark.sql(f"DROP TABLE {NAME}")
    spark.sql(f'CREATE TABLE {NAME} (k long, v string) USING parquet LOCATION "{place}"')
    with pytest.raises(UsageError, match="has the format parquet, and the query asks for csv"):
        query.start(TableSink(NAME, "csv"))
    with pytest.raises(UsageError, match="partitioned by nothing"):
        query.start(TableSink(NAME, partition_by=["v"]))
    with pytest.raises(UnsupportedError, match=r"of the format noop cannot be made.*foreachBatch"):
        query.start(TableSink("another_name", "noop"))
    spark.sql(f"INSERT INTO {NAME} VALUES (1, 'a')")
    with pytest.raises(CheckpointError, match="no streaming query has written"):
        query.start(TableSink(NAME))
