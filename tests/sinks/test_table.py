from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

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
    query.start(TableSink(NAME, "orc"))
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


QUERY = "k long, v string, s struct<x: long, y: string>"
ROWS = [(1, "a", (10, "q")), (2, "b", None)]


def by_spark(
    spark: SparkSession, folder: Path, format: str, columns: list[str], table: str
) -> list[tuple[Any, ...]]:
    """What Spark's own engine makes of the same rows in the same kind of table."""
    from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

    spark.createDataFrame(ROWS, QUERY).coalesce(1).write.parquet(str(folder / "in"))
    stream = DataStreamReader(spark).schema(QUERY).parquet(str(folder / "in"))
    writer = DataStreamWriter(stream.selectExpr(*columns)).format(format)
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(folder / "c"))
    writer.toTable(table).awaitTermination()
    return sorted_rows(spark.table(table))


@pytest.mark.parametrize(
    ("format", "table", "columns"),
    [
        ("parquet", "v string, k long", ["k", "v"]),
        ("parquet", "k long, z int, V string, d int DEFAULT 5", ["v", "k"]),
        ("parquet", "v string", ["k", "v"]),
        ("parquet", "z string", ["k"]),
        ("parquet", "k long", ["cast(k AS int) AS k"]),
        ("parquet", "s struct<y: string, z: int>, k long", ["k", "s"]),
        ("parquet", "`in ner` struct<`d.t`: long>", ["struct(k AS `d.t`) AS `in ner`"]),
        ("orc", "v string, K string", ["k", "v"]),
        ("json", "v string, z int, k string", ["k", "v", "s"]),
        ("csv", "k long, v string, z int DEFAULT 5", ["k", "v"]),
        ("text", "line string", ["v"]),
    ],
)
def test_a_table_gets_the_rows_that_spark_s_own_engine_gives_it(
    spark: SparkSession, tmp_path: Path, format: str, table: str, columns: list[str]
) -> None:
    names = f"{NAME}_ours", f"{NAME}_theirs"
    try:
        for name in names:
            spark.sql(f"CREATE TABLE {name} ({table}) USING {format}")
        rows = spark.createDataFrame(ROWS, QUERY).selectExpr(*columns)
        query = FakeQuery(spark, tmp_path / "checkpoint", rows.schema)
        query.start(TableSink(names[0], format))
        query.write(0, rows)
        theirs = by_spark(spark, tmp_path, format, columns, names[1])
        assert sorted_rows(spark.table(names[0])) == theirs
        assert len(theirs) == 2
    finally:
        for name in names:
            spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize(
    ("format", "table", "expected"),
    [
        # Where Spark writes by position, or under names that no reader looks for.
        ("csv", "v string, k long", [("a", 1), ("b", 2)]),
        ("csv", "z int, v string, y int", [(None, "a", None), (None, "b", None)]),
        ("csv", "z int, k long", [(None, 1), (None, 2)]),
        ("json", "V string, K long", [("a", 1), ("b", 2)]),
        ("parquet", "K string", [("1",), ("2",)]),
    ],
)
def test_values_are_in_the_columns_of_their_names(
    query: FakeQuery, spark: SparkSession, format: str, table: str, expected: list[Any]
) -> None:
    spark.sql(f"CREATE TABLE {NAME} ({table}) USING {format}")
    query.start(TableSink(NAME, format))
    query.write(0, [(1, "a"), (2, "b")])
    assert sorted_rows(spark.table(NAME)) == expected


def test_a_table_keeps_its_partitions_and_the_options_of_its_files(
    query: FakeQuery, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    spark.sql(
        f"CREATE TABLE {NAME} (p string, k long, v string) USING csv "
        "OPTIONS (sep ';', header 'true') PARTITIONED BY (v, p)"
    )
    with caplog.at_level(logging.WARNING):
        query.start(TableSink(NAME, "csv", partition_by=["k"]))
    assert "partitionBy(k) has no effect" in caplog.text
    query.write(0, [(1, "a;b"), (2, None)])
    assert sorted_rows(spark.table(NAME)) == [(1, "a;b", None), (2, None, None)]
    written = query.sink.table()
    assert written is not None
    assert sorted_rows(written) == [(1, "a;b"), (2, None)]  # the query's columns, in its order


def test_names_of_any_kind_in_a_new_table(spark: SparkSession, tmp_path: Path) -> None:
    rows: DataFrame = spark.sql(
        "SELECT struct(1 AS `in ner`, 2 AS `d.t`, array(struct(3 AS `b``t`)) AS a) AS s, "
        "map('k', struct(4 AS `x y`)) AS `m.m`"
    )
    query = FakeQuery(spark, tmp_path / "checkpoint", rows.schema)
    try:
        query.start(TableSink(NAME))
        query.write(0, rows)
        assert spark.table(NAME).collect() == rows.collect()
        assert StructType.simpleString(spark.table(NAME).schema) == rows.schema.simpleString()
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {NAME}")


def test_what_does_not_fit_the_table_is_refused(
    query: FakeQuery, spark: SparkSession, place: str
) -> None:
    def remade(columns: str, format: str = "parquet") -> None:
        spark.sql(f"DROP TABLE IF EXISTS {NAME}")
        spark.sql(f'CREATE TABLE {NAME} ({columns}) USING {format} LOCATION "{place}"')

    remade("k int, v string")
    with pytest.raises(
        UsageError, match="column k of the table is int, and that of the query is bi"
    ):
        query.start(TableSink(NAME))
    remade("k long, v struct<a: int>")
    with pytest.raises(UsageError, match="column v of the table is struct"):
        query.start(TableSink(NAME))
    remade("z string", "csv")
    with pytest.raises(UsageError, match="query has none of them, but k bigint, v string"):
        query.start(TableSink(NAME, "csv"))
    with pytest.raises(UsageError, match="format csv, and a query that names none writes parquet"):
        query.start(TableSink(NAME))
    remade("k long, v string")
    with pytest.raises(UsageError, match="has the format parquet, and the query asks for csv"):
        query.start(TableSink(NAME, "csv"))
    with pytest.raises(UnsupportedError, match=r"of the format noop cannot be made.*foreachBatch"):
        query.start(TableSink("another_name", "noop"))
    spark.sql(f"INSERT INTO {NAME} VALUES (1, 'a')")
    with pytest.raises(CheckpointError, match="no streaming query has written"):
        query.start(TableSink(NAME))
