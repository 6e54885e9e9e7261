"""Which operations are refused, in which output mode, with which message; compared with Spark's own rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from tidemill.errors import TidemillError
from tidemill.spark.compiler.catalyst import Catalyst
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.testing import MemoryStream

SCHEMA = "t timestamp, k string, n int"
MODES = ("append", "update", "complete")


@pytest.fixture(scope="module")
def stream() -> Iterator[MemoryStream]:
    made = MemoryStream(SCHEMA, name="checked-stream")
    yield made
    made.close()


@pytest.fixture
def df(stream: MemoryStream, spark: SparkSession) -> DataFrame:
    return spark.readStream.format(stream.name).load()


def timed(df: DataFrame) -> DataFrame:
    return df.withWatermark("t", "1 minute")


def windows(df: DataFrame) -> DataFrame:
    return timed(df).groupBy(F.window("t", "5 minutes"), "k").count()


def table(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame([("a", 1)], "k string, m int")


def same_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def with_state(key: Any, frames: Any, state: Any) -> Any:
    yield pd.DataFrame({"k": [key[0]]})


def sql(text: str) -> Callable[[DataFrame], DataFrame]:
    def operation(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("checked")
        table(df).createOrReplaceTempView("checked_table")
        return df.sparkSession.sql(text)

    return operation


OPERATIONS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "project": lambda df: df.select("k", F.upper("k")).filter("k > 'a'"),
    "explode": lambda df: df.select(F.explode(F.array("n", "n"))),
    "union": lambda df: df.union(df),
    "union with a table": lambda df: df.select("k", "n").union(table(df)),
    "repartition": lambda df: df.repartition(3, "k"),
    "coalesce": lambda df: df.coalesce(1),
    "sample": lambda df: df.sample(0.5, seed=1),
    "sortWithinPartitions": lambda df: df.sortWithinPartitions("k"),
    "mapInPandas": lambda df: df.mapInPandas(lambda frames: frames, SCHEMA),
    "hint": lambda df: df.hint("rebalance"),
    "unpivot": lambda df: df.unpivot("k", ["n"], "name", "value"),
    "groupBy": lambda df: df.groupBy("k").count(),
    "groupBy nothing": lambda df: df.groupBy().count(),
    "groupBy, then project": lambda df: df.groupBy("k").count().filter("count > 1").select("k"),
    "rollup": lambda df: df.rollup("k", "n").count(),
    "pivot": lambda df: df.groupBy("k").pivot("n", [1, 2]).count(),
    "windows": windows,
    "windows without a watermark": lambda df: df.groupBy(F.window("t", "5 minutes")).count(),
    "session windows": lambda df: timed(df).groupBy(F.session_window("t", "5 minutes")).count(),
    "count distinct": lambda df: df.groupBy("k").agg(F.countDistinct("n")),
    "aggregation of an aggregation": lambda df: df.groupBy("k", "n").count().groupBy("k").count(),
    "aggregation of windows": lambda df: (
        windows(df).groupBy(F.window("window", "10 minutes")).count()
    ),
    "HAVING": sql("SELECT k, count(*) c FROM checked GROUP BY k HAVING count(*) > 1"),
    "dropDuplicates": lambda df: df.dropDuplicates(["k"]),
    "dropDuplicates with time": lambda df: timed(df).dropDuplicates(["k", "t"]),
    "dropDuplicatesWithinWatermark": lambda df: timed(df).dropDuplicatesWithinWatermark(["k"]),
    "dropDuplicatesWithinWatermark without": lambda df: df.dropDuplicatesWithinWatermark(["k"]),
    "distinct": lambda df: df.distinct(),
    "dropDuplicates, then groupBy": lambda df: df.dropDuplicates(["n"]).groupBy("k").count(),
    "groupBy, then dropDuplicates": lambda df: df.groupBy("k").count().dropDuplicates(["count"]),
    "windows, then dropDuplicates": lambda df: windows(df).dropDuplicates(["window"]),
    "sort": lambda df: df.sort("k"),
    "groupBy, then sort": lambda df: df.groupBy("k").count().orderBy("count"),
    "limit": lambda df: df.limit(5),
    "groupBy, then limit": lambda df: df.groupBy("k").count().limit(5),
    "offset": lambda df: df.offset(5),
    "groupBy, then offset": lambda df: df.groupBy("k").count().offset(5),
    "window function": lambda df: df.withColumn(
        "r", F.row_number().over(Window.partitionBy("k").orderBy("n"))
    ),
    "join, inner": lambda df: df.join(table(df), "k"),
    "join, left": lambda df: df.join(table(df), "k", "left"),
    "join, right": lambda df: df.join(table(df), "k", "right"),
    "join, full": lambda df: df.join(table(df), "k", "full"),
    "join, semi": lambda df: df.join(table(df), "k", "left_semi"),
    "join, anti": lambda df: df.join(table(df), "k", "left_anti"),
    "join, cross": lambda df: df.crossJoin(table(df).select("m")),
    "join on the right, inner": lambda df: table(df).join(df, "k"),
    "join on the right, left": lambda df: table(df).join(df, "k", "left"),
    "join on the right, right": lambda df: table(df).join(df, "k", "right"),
    "join on the right, semi": lambda df: table(df).join(df, "k", "left_semi"),
    "join on the right, anti": lambda df: table(df).join(df, "k", "left_anti"),
    "join of two streams": lambda df: df.join(df.select("k", F.col("n").alias("m")), "k"),
    "join of two streams, left": lambda df: (
        timed(df).alias("a").join(timed(df).alias("b"), F.expr("a.k = b.k and a.t = b.t"), "left")
    ),
    "groupBy, then join": lambda df: df.groupBy("k").count().join(table(df), "k"),
    "intersect": lambda df: df.select("k").intersect(table(df).select("k")),
    "subtract": lambda df: df.select("k").subtract(table(df).select("k")),
    "exceptAll": lambda df: df.select("k").exceptAll(table(df).select("k")),
    "subtract from a table": lambda df: table(df).select("k").subtract(df.select("k")),
    "IN a table": sql("SELECT * FROM checked WHERE k IN (SELECT k FROM checked_table)"),
    "NOT IN a table": sql("SELECT * FROM checked WHERE k NOT IN (SELECT k FROM checked_table)"),
    "EXISTS in a table": sql(
        "SELECT * FROM checked c WHERE EXISTS (SELECT 1 FROM checked_table t WHERE t.k = c.k)"
    ),
    "scalar subquery": sql("SELECT *, (SELECT max(m) FROM checked_table) x FROM checked"),
    "UNION": sql("SELECT k FROM checked UNION SELECT upper(k) FROM checked"),
    "UNION with a table": sql("SELECT k FROM checked UNION SELECT k FROM checked_table"),
    "SELECT DISTINCT": sql("SELECT DISTINCT k FROM checked"),
    "SELECT DISTINCT, then groupBy": sql(
        "SELECT k, count(*) FROM (SELECT DISTINCT k, n FROM checked) GROUP BY k"
    ),
    "pipe, WHERE": sql("TABLE checked |> WHERE n > 0 |> EXTEND n + 1 AS m |> WHERE m > 2"),
    "pipe, AGGREGATE": sql("TABLE checked |> AGGREGATE count(*) AS c GROUP BY k |> WHERE c > 1"),
    "pipe, ORDER BY": sql(
        "TABLE checked |> AGGREGATE count(*) AS c GROUP BY k |> ORDER BY c |> LIMIT 3"
    ),
    "pipe, TABLESAMPLE": sql("TABLE checked |> TABLESAMPLE (50 PERCENT)"),
    "applyInPandas": lambda df: df.groupBy("k").applyInPandas(same_pandas, SCHEMA),
    "applyInPandasWithState": lambda df: df.groupBy("k").applyInPandasWithState(
        with_state, "k string", "n long", "append", GroupStateTimeout.NoTimeout
    ),
    "cogroup": lambda df: (
        df.groupBy("k").cogroup(table(df).groupBy("k")).applyInPandas(lambda a, b: a, SCHEMA)
    ),
    "monotonically_increasing_id": lambda df: df.select(F.monotonically_increasing_id()),
    "two watermarks in a row": lambda df: timed(df).withWatermark("t", "2 minutes"),
    "groupBy, then watermark": lambda df: df.groupBy("t").count().withWatermark("t", "1 minute"),
    "groupBy a collation": lambda df: df.groupBy(F.expr("k collate UTF8_LCASE")).count(),
    "groupBy a map": lambda df: df.groupBy(F.create_map(F.lit("a"), "n")).count(),
    "dropDuplicates of a collation": lambda df: df.select(
        F.struct(F.expr("k collate UTF8_LCASE").alias("c"))
    ).distinct(),
    "count distinct of a collation": lambda df: df.groupBy().agg(
        F.expr("count(distinct k collate UTF8_LCASE)")
    ),
    "max of a collation": lambda df: df.groupBy("n").agg(F.expr("max(k collate UTF8_LCASE)")),
    "observe": lambda df: df.observe("seen", F.count("*").alias("c")),
    "lateral join": sql("SELECT * FROM checked, LATERAL (SELECT checked.n + 1 AS m)"),
}

# Operations that Spark accepts and we refuse. Once one of them works, take it off the list.
REFUSED_BY_US = {
    "session windows": {"append", "complete"},
    "aggregation of windows": {"append"},
    "groupBy, then dropDuplicates": {"update", "complete"},
    "limit": {"append"},
    "join of two streams": {"append", "update"},
    "join of two streams, left": {"append"},
    "applyInPandasWithState": {"append"},
    # Spark runs these batch by batch: the result is not that of the batch query.
    "subtract": {"append", "update"},
    "exceptAll": {"append", "update"},
    "applyInPandas": {"append", "update"},
    "cogroup": {"append", "update"},
    # Spark's state store refuses the first and the last of these when the first batch runs.
    "groupBy a collation": {"update", "complete"},
    "groupBy a map": {"update", "complete"},
    "dropDuplicates of a collation": {"append", "update"},
}
# Operations that we accept and Spark refuses.
ACCEPTED_BY_US = {
    "count distinct": {"update", "complete"},
    "SELECT DISTINCT": {"append"},
    "UNION": {"append"},
    "SELECT DISTINCT, then groupBy": {"update", "complete"},
}


def accepted_by_spark(df: DataFrame, mode: str) -> bool:
    c = Catalyst(df.sparkSession)
    checker = c.module("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    modes = c.module("org.apache.spark.sql.catalyst.streaming.InternalOutputModes")
    try:
        checker.checkForStreaming(df._jdf.queryExecution().analyzed(), modes.apply(mode))
    except Exception:
        return False
    return True


def refusal(df: DataFrame, mode: str) -> str | None:
    try:
        QueryCompiler(df, mode).outline()
    except TidemillError as error:
        return str(error)
    return None


def test_the_differences_to_spark_are_known(df: DataFrame) -> None:
    refused: dict[str, set[str]] = {}
    accepted: dict[str, set[str]] = {}
    for name, operation in OPERATIONS.items():
        query = operation(df)
        for mode in MODES:
            theirs, ours = accepted_by_spark(query, mode), refusal(query, mode) is None
            if theirs and not ours:
                refused.setdefault(name, set()).add(mode)
            if ours and not theirs:
                accepted.setdefault(name, set()).add(mode)
    assert refused == REFUSED_BY_US
    assert accepted == ACCEPTED_BY_US


# The operation, the mode, its name in the message, and what the message tells to do instead.
REFUSALS = [
    ("project", "complete", r"outputMode\('complete'\)", r"outputMode\('append'\), or aggregate"),
    ("union with a table", "append", "union of a stream and a static", "to the sink before"),
    ("UNION with a table", "append", "union of a stream and a static", "to the sink before"),
    ("sample", "append", r"sample\(\)", "filter"),
    ("sort", "append", "orderBy/sort", "foreachBatch"),
    ("groupBy, then sort", "update", "orderBy/sort", "foreachBatch"),
    ("limit", "append", "limit", "foreachBatch"),
    ("offset", "append", r"offset\(\)", "foreachBatch"),
    ("groupBy", "append", r"outputMode\('append'\)", "withWatermark"),
    ("session windows", "append", "session_window", r"window\(\) with a fixed length"),
    ("aggregation of an aggregation", "complete", "aggregation of an aggregation", "to a sink"),
    ("aggregation of windows", "append", "aggregation of an aggregation", "to a sink"),
    ("dropDuplicatesWithinWatermark without", "append", "dropDuplicatesWithinWatermark",
     "withWatermark"),
    ("groupBy, then dropDuplicates", "update", "dropDuplicates after", "before groupBy"),
    ("window function", "append", "window function", "groupBy\\(window"),
    ("join, right", "append", "right outer join", "left outer join"),
    ("join, full", "append", "full outer join", "left outer join"),
    ("join on the right, left", "append", "left outer join", "right outer join"),
    ("join on the right, anti", "append", "left anti join", "inner join"),
    ("join of two streams", "append", "join of two streams", "static DataFrame"),
    ("intersect", "append", r"intersect\(\)", "join with a static"),
    ("subtract", "append", r"subtract\(\)", "left anti join"),
    ("exceptAll", "append", r"exceptAll\(\)", "left anti join"),
    ("applyInPandas", "append", "applyInPandas", "foreachBatch"),
    ("applyInPandasWithState", "append", "^applyInPandasWithState", "aggregate function"),
    ("cogroup", "append", "cogroup", "foreachBatch"),
    ("groupBy a collation", "update", "groupBy .*collation", "lower"),
    ("groupBy a map", "update", "groupBy .*map", "map_entries"),
    ("dropDuplicates of a collation", "append", "dropDuplicates .*collation", "lower"),
    ("count distinct of a collation", "update", r"count\(DISTINCT .*collation", "lower"),
    ("monotonically_increasing_id", "append", "monotonically_increasing_id", "uuid"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "mode", "name", "instead"), REFUSALS, ids=lambda value: str(value)[:40]
)
def test_a_refusal_says_what_and_how_else(
    operation: str, mode: str, name: str, instead: str, df: DataFrame
) -> None:
    said = refusal(OPERATIONS[operation](df), mode)
    assert said is not None
    assert re.search(name, said)
    assert re.search(instead, said)


def test_it_is_refused_at_start(df: DataFrame, tmp_path: Path) -> None:
    writer = df.sort("k").writeStream.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(TidemillError, match="orderBy/sort"):
        writer.format("noop").start()
    assert not (tmp_path / "c").exists()
