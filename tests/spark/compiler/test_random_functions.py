"""``rand()``, ``uuid()`` and the like: other values in every batch, the same when a batch runs again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.sql.streams import FedQuery, plans
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.sources.memory_stream import MemoryStream
from tidemill.spark.compiler.plan_rewriting import StateSteps
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.spark.compiler.stream_leaves import SplitLeaf
from tidemill.sql.query_errors import StreamingQueryException

FUNCTIONS = (
    "rand()",
    "rand(42)",
    "randn()",
    "uuid()",
    "randstr(20)",
    "uniform(0.0D, 1000000.0D)",
    "shuffle(sequence(1, 40))",
    "shuffle(array(rand(), rand()))",
    "transform(array(1), x -> x + rand())[0]",
)


def no_step(spec: Any) -> Any:
    raise AssertionError("the query has no state")


def columns() -> list[str]:
    return [f"string({function}) AS c{number}" for number, function in enumerate(FUNCTIONS)]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1,), (2,)], "id int")


OPERATIONS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "select": lambda df, table: df.selectExpr(*columns()),
    "aggregate": lambda df, table: df.selectExpr("id", "uuid() AS u").groupBy("u").count(),
    "explode": lambda df, table: df.selectExpr("explode(array(uuid(), string(rand()))) AS u"),
    "table": lambda df, table: df.join(table.selectExpr("id", "uuid() AS u"), "id").select("u"),
    "union": lambda df, table: df.selectExpr("uuid() AS u").union(df.selectExpr("uuid() AS u")),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_batch_has_values_of_its_own(
    name: str, spark: SparkSession, table: DataFrame, tmp_path: Path
) -> None:
    mode = "update" if name == "aggregate" else "append"
    with (
        plans(lambda batch_id: batch_id == 1),
        FedQuery(spark, "id int", lambda df: OPERATIONS[name](df, table), mode, tmp_path) as query,
    ):
        for _ in range(3):
            query.feed([(1,), (2,)])
    rows = [row for number in range(3) for row in query.outputs[number]]
    assert len(rows) == (12 if name in ("explode", "union") else 6)
    for column in range(len(rows[0]) - (name == "aggregate")):
        values = [row[column] for row in rows]
        assert len(set(values)) == len(rows), FUNCTIONS[column]


def test_one_value_for_all_uses_within_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A user function that reads its DataFrame twice sees the same rows twice."""
    twice: list[list[Row]] = []
    stream = MemoryStream("id int", keep=True)
    df = spark.readStream.format(stream.name).load().selectExpr("uuid() AS u")
    writer = df.writeStream.foreachBatch(
        lambda rows, _: twice.extend((rows.collect(), rows.collect()))
    )
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    stream.add([(1,), (2,)])
    query.processAllAvailable()
    query.stop()
    stream.close()
    assert twice[0] == twice[1]


def runs_of_second_batch(
    spark: SparkSession, folder: Path, before_restart: Callable[[], None]
) -> list[list[Row]]:
    """Return the rows of batch 1 each time it ran: it fails twice, and each run has a new DataFrame."""
    runs: list[list[Row]] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            runs.append(df.collect())
            if len(runs) < 3:
                raise OSError("the disk is full")

    stream = MemoryStream("id int", keep=True)
    for number in range(4):
        df = spark.readStream.format(stream.name).load()
        table = spark.createDataFrame([(1,), (2,)], "id int").selectExpr("id", "uuid() AS t")
        result = df.join(table, "id").selectExpr("t", *columns())
        writer = result.writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(folder)).start()
        if number < 2:
            stream.add([(1,), (2,), (1,), (2,)])
        with suppress(StreamingQueryException):
            query.processAllAvailable()
        query.stop()
        if number == 1:
            before_restart()
    stream.close()
    return runs


@pytest.mark.parametrize("parallel", [False, True], ids=["one task", "parallel"])
def test_a_batch_that_runs_again_has_the_same_values(
    parallel: bool, spark: SparkSession, tmp_path: Path
) -> None:
    with plans(lambda batch_id: parallel):
        first, *later = runs_of_second_batch(spark, tmp_path, lambda: None)
    assert [sorted(rows) for rows in later] == [sorted(first)] * 2
    log = (tmp_path / "offsets" / "1").read_text().splitlines()
    assert int(json.loads(log[1])["conf"]["tidemill.seed"]) > 0


@pytest.mark.parametrize("lacking", [("seed",), ("seed", "tasks")], ids=["older", "Spark's"])
def test_a_log_without_a_seed_gives_the_same_values_whenever_it_runs(
    lacking: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:

    def without_seed() -> None:
        log = BatchLog(open_storage(str(tmp_path)))
        record = log.load().offsets[1]
        assert record.seed
        log.write_offsets(1, replace(record, **dict.fromkeys(lacking, 0)))

    _, second, third = runs_of_second_batch(spark, tmp_path, without_seed)
    assert second == third


def test_a_query_without_random_functions_has_no_seed_in_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    with FedQuery(spark, "id int", lambda df: df, "append", tmp_path) as query:
        query.feed([(1,)])
    assert "tidemill.seed" not in (tmp_path / "offsets" / "0").read_text()


def test_both_plans_and_later_runs_give_an_expression_the_same_seed(
    spark: SparkSession, table: DataFrame
) -> None:
    stream = MemoryStream("id int")

    def seeds(single: bool) -> list[tuple[str, str]]:
        df = spark.readStream.format(stream.name).load()
        df = df.where("rand() < 0.9").selectExpr("id", "uuid() AS u", "rand(42) AS r")
        df = df.join(table.where("randn() < 9"), "id").selectExpr("u", "r", "randstr(4) AS s")
        compiler = QueryCompiler(df, "append")
        (source_id,) = compiler.outline().source_ids
        leaves = {source_id: SplitLeaf(lambda batches: batches)}
        plan = compiler.compile(leaves, StateSteps(no_step, no_step), 2, single, 1 if single else 2)
        text = plan.for_batch({}, seed=7)._own_plan().treeString()
        found = re.findall(r"\b(rand|randn|uuid|randstr)\([^-\d]*(?:4, )?(-?\d{5,})", text)
        return sorted(set(found))

    found = seeds(single=True)
    assert [name for name, _ in found] == ["rand", "rand", "randn", "randstr", "uuid"]
    assert len({seed for _, seed in found}) == 5
    assert found == seeds(single=True) == seeds(single=False)
    stream.close()


def test_cached_random_values_stay(spark: SparkSession, tmp_path: Path) -> None:
    cached = spark.range(1, 3).selectExpr("int(id) AS id", "uuid() AS u").cache()
    known = sorted(cached.collect())
    try:
        with FedQuery(
            spark, "id int", lambda df: df.join(cached, "id"), "append", tmp_path
        ) as query:
            for _ in range(2):
                query.feed([(1,), (2,)])
        assert [sorted(query.outputs[number]) for number in range(2)] == [known, known]
    finally:
        cached.unpersist()
