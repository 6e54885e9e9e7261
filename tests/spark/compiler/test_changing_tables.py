"""A stream joined with tables that change between its batches: each batch sees what Spark would show."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.compiler.changing_tables import TABLES, Place
from tests.sql.batches import Batches
from tests.sql.spark_streams import write_rows
from tests.sql.streams import FedQuery, plans, settings_of
from tidemill.sources.memory_stream import MemoryStream
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.sql.query_errors import StreamingQueryException

THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


@pytest.fixture(scope="module")
def spark_sees(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """The price of each table in three batches, by Spark's own engine: all tables in one query."""
    folder = tmp_path_factory.mktemp("spark")
    place = Place(spark.newSession(), folder, "spark")
    tables = {name: make(place) for name, (make, _) in TABLES.items()}
    scalar = place.csv("scalar")
    scalar.createOrReplaceTempView("spark_scalar")
    (folder / "input").mkdir()
    df = place.session.readStream.schema("id int").parquet(str(folder / "input"))
    for name, table in tables.items():
        df = df.join(table.withColumnRenamed("price", name), "id")
    df = df.withColumn("subquery", F.expr("(SELECT max(price) FROM spark_scalar)"))
    seen: list[Any] = []
    query = df.writeStream.foreachBatch(lambda batch, _: seen.append(batch.collect())).start()
    try:
        for number in range(3):
            if number == 1:
                for _, change in TABLES.values():
                    change(place)
                place.write("scalar/0.csv", "1,20\n")
            if number == 2:
                tables["cached"].unpersist()
            write_rows([(1,)], "id int", folder / "input")
            query.processAllAvailable()
    finally:
        query.stop()
    return {name: [rows[0][name] for rows in seen] for name in (*TABLES, "subquery")}


def prices(
    spark: SparkSession,
    join: Callable[[DataFrame], DataFrame],
    change: Callable[[], Any],
    later: Callable[[], Any],
    folder: Path,
) -> list[int]:
    """Return the price in three batches, of which the second runs the parallel plan."""
    with (
        plans(lambda batch_id: batch_id == 1),
        FedQuery(spark, "id int", join, "append", folder) as query,
    ):
        query.feed([(1,)])
        change()
        query.feed([(1,)])
        later()
        query.feed([(1,)])
    return [row.price for number in range(3) for row in query.outputs[number]]


@pytest.mark.parametrize("name", TABLES)
def test_a_batch_sees_what_spark_shows(
    name: str, spark: SparkSession, spark_sees: dict[str, list[int]], tmp_path: Path
) -> None:
    make, change = TABLES[name]
    place = Place(spark, tmp_path, "tidemill")
    table = make(place)
    seen = prices(
        spark,
        lambda df: df.join(table, "id"),
        lambda: change(place),
        table.unpersist,
        tmp_path / "checkpoint",
    )
    assert seen == spark_sees[name]
    assert seen == sorted(seen)


def test_the_tables_do_change(spark_sees: dict[str, list[int]]) -> None:
    assert spark_sees == {
        "csv": [10, 20, 20],
        "appended": [10, 10, 10],
        "view": [10, 20, 20],
        "cached": [10, 10, 20],
        "table": [10, 20, 20],
        "partitions": [10, 20, 20],
        "python": [10, 20, 20],
        "jdbc": [10, 20, 20],
        "rdd": [10, 20, 20],
        "function": [10, 20, 20],
        "list": [10, 10, 10],
        "subquery": [10, 20, 20],
    }


def test_a_subquery_is_computed_again(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path, "tidemill")
    place.csv("scalar").createOrReplaceTempView("tidemill_scalar")
    seen = prices(
        spark,
        lambda df: df.withColumn("price", F.expr("(SELECT max(price) FROM tidemill_scalar)")),
        lambda: place.write("scalar/0.csv", "1,20\n"),
        lambda: None,
        tmp_path / "checkpoint",
    )
    assert seen == [10, 20, 20]


def test_a_shuffled_table_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(spark, tmp_path, "tidemill")
    table = place.csv("shuffled")
    with settings_of(spark, **{THRESHOLD: -1}):
        seen = prices(
            spark,
            lambda df: df.join(table, "id"),
            lambda: place.write("shuffled/0.csv", "1,20\n"),
            lambda: None,
            tmp_path / "checkpoint",
        )
    assert seen == [10, 20, 20]


def test_tables_that_cannot_change_are_read_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the query itself, a checkpoint, and files that nobody touches are planned and read once."""
    place = Place(spark, tmp_path, "tidemill")
    old = place.csv("old")
    os.utime(tmp_path / "old" / "0.csv", (1, 1))
    old = spark.read.schema("id int, price int").csv(str(tmp_path / "old"))
    listed = spark.createDataFrame([(1, "a")] * 3000, "id int, name string").distinct()
    checkpointed = spark.range(3).selectExpr("int(id) as id", "id * 2 AS double").localCheckpoint()
    values = spark.sql("SELECT * FROM VALUES (1, 'x') AS t(id, x)")
    compiled: list[int] = []
    compile_plan = QueryCompiler.compile

    def counted(self: QueryCompiler, *args: Any) -> Any:
        compiled.append(args[4])
        return compile_plan(self, *args)

    monkeypatch.setattr(QueryCompiler, "compile", counted)

    def join(df: DataFrame) -> DataFrame:
        for table in (old, listed, checkpointed, values):
            df = df.join(table, "id")
        return df

    assert prices(spark, join, lambda: None, lambda: None, tmp_path / "checkpoint") == [10] * 3
    assert compiled == [1, 2]  # one plan for one task, and one for two


def test_a_batch_that_runs_again_warns_of_tables_that_may_have_changed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(spark, tmp_path, "tidemill")
    table = place.csv("prices")
    fixed = spark.createDataFrame([(1, "a")], "id int, name string")
    for number, (joined, warnings) in enumerate(((table, 1), (fixed, 0))):
        stream = MemoryStream("id int", keep=True)
        df = spark.readStream.format(stream.name).load().join(joined, "id")
        batches = Batches(on_batch=_fail_once())
        stream.add([(1,)])
        for expected in (0, warnings, 0):  # the batch fails, runs again, and is committed
            caplog.clear()
            with caplog.at_level(logging.WARNING, "tidemill"):
                query = batches.start(df, tmp_path / f"checkpoint-{number}")
                with suppress(StreamingQueryException):
                    query.processAllAvailable()
                query.stop()
            said = [each.getMessage() for each in caplog.records if "runs again" in each.message]
            assert len(said) == expected
            assert all("/prices" in each and "batch 0" in each for each in said)
        assert batches.runs == [0, 0]
        stream.close()


def _fail_once() -> Callable[[DataFrame, int], None]:
    failed: list[int] = []

    def fail(df: DataFrame, batch_id: int) -> None:
        if not failed:
            failed.append(batch_id)
            raise OSError("the disk is full")

    return fail


def test_settings_are_those_of_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """A plan that is first needed later has the settings of the first one."""

    def operation(df: DataFrame) -> DataFrame:
        return df.select(F.expr("string(timestamp_millis(0))").alias("at"))

    with (
        settings_of(spark, spark__sql__session__timeZone="UTC"),
        plans(lambda batch_id: batch_id == 1),
        FedQuery(spark, "id int", operation, "append", tmp_path) as query,
    ):
        query.feed([(1,)])
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        query.feed([(1,)])
    assert query.outputs[0] == query.outputs[1] == [("1970-01-01 00:00:00",)]
