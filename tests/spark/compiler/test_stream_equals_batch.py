"""After every batch the result table is Spark's own batch answer over the same prefix of the input.

Whatever the rows are, however they are cut into batches, wherever the query is started again, with one and
with several partitions of state, and whether a batch runs as one task or in parallel.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType

from tests.sql.streams import LONG, FedQuery, Operation, plans, settings_of
from tidemill.testing import MemoryStream

SCHEMA = (
    "k string, d double, f float, m decimal(10,2), t timestamp, u date, i int, s string, "
    "a array<int>, r struct<x:int,y:string>, b boolean"
)
MOMENTS = [datetime(1, 1, 2, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
MOMENTS += [datetime(2024, 2, 29, 12, minute, tzinfo=UTC) for minute in (0, 4, 5, 31)]


# Few values for each column, so that keys are equal often.
VALUES: list[list[Any]] = [
    ["", "a", "A", "ä", "日本", "a\0b", None],
    [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 1e-310, None],
    [0.0, -0.0, math.nan, 0.25, None],
    [*map(Decimal, ("0.00", "-0.01", "99999999.99", "1.10")), None],
    [*MOMENTS, None],
    [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), None],
    [0, 1, -1, 2**31 - 1, -(2**31), None],
    ["", " ", "x", "xyz", "É", None],
    [[], [1, None], [1, 2], [2, 1], None],
    [{"x": 1, "y": None}, {"x": None, "y": ""}, {"x": 1, "y": "é"}, None],
    [True, False, None],
]


@dataclass(frozen=True)
class Run:
    """How a query runs: which plan each batch takes, as a repeated pattern, and after which it restarts."""

    batches: list[list[Any]]
    parallel: tuple[bool, ...]
    restarts: tuple[int, ...]
    partitions: int


PLANS = [(False, True), (True, False, True), (True,), (True, True, False), (False,)]
RESTARTS = [(2,), (1, 3), (3,), ()]
PARTITIONS = [2, 1, 5]


def rich_run(number: int) -> Run:
    """Always different, never trivial."""
    random = Random(number)
    rows = [
        [tuple(random.choice(values) for values in VALUES) for _ in range(random.choice(sizes))]
        for sizes in ([9, 12], [0, 5], [7, 11], [3, 8])
    ]
    return Run(rows, random.choice(PLANS[:4]), random.choice(RESTARTS[:3]), random.choice([2, 5]))


ANY_ROW = st.tuples(*(st.sampled_from(values) for values in VALUES))
ANY_RUN = st.builds(
    Run,
    st.lists(st.lists(ANY_ROW, max_size=12), min_size=3, max_size=6),
    st.sampled_from(PLANS),
    st.sampled_from(RESTARTS),
    st.sampled_from(PARTITIONS),
)


@dataclass(frozen=True)
class Case:
    name: str
    operation: Operation
    mode: str
    keys: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


def aggregates(df: DataFrame, *keys: Any) -> DataFrame:
    return df.groupBy(*keys).agg(
        F.count("*").alias("n"),
        F.sum("i").alias("sum_i"),
        F.sum("m").alias("sum_m"),
        F.avg("m").alias("avg_m"),
        F.min("d").alias("min_d"),
        F.max("s").alias("max_s"),
        F.min("t").alias("min_t"),
        F.max("u").alias("max_u"),
        F.max("r").alias("max_r"),
        F.count(F.when(F.col("b"), 1)).alias("n_b"),
        F.expr("count(*) filter (where b and i > 0)").alias("filtered"),
    )


def distinct_aggregates(df: DataFrame, *keys: Any) -> DataFrame:
    return df.groupBy(*keys).agg(
        F.countDistinct("s").alias("n_s"),
        F.countDistinct("d").alias("n_d"),
        F.countDistinct("f", "m").alias("n_fm"),
        F.countDistinct("r").alias("n_r"),
        F.countDistinct("a").alias("n_a"),
        F.sum_distinct("i").alias("sum_i"),
        F.sum_distinct("m").alias("sum_m"),
        F.expr("avg(distinct m)").alias("avg_m"),
        F.expr("avg(distinct i)").alias("avg_i"),
        F.expr("sum(distinct f)").alias("sum_f"),
        F.expr("avg(distinct d)").alias("avg_d"),
        F.expr("count(distinct s) filter (where b)").alias("n_filtered"),
        F.expr("max(distinct i)").alias("max_i"),
        F.count("*").alias("n"),
    )


@F.udf(StringType())
def doubled(text: str | None) -> str | None:
    return None if text is None else text * 2


@F.pandas_udf(LongType())
def text_length(texts: pd.Series) -> pd.Series:
    return texts.str.len()


@F.arrow_udf(LongType())
def plus_one(numbers: pa.Array) -> pa.Array:
    return pc.add(pc.cast(numbers, pa.int64()), 1)


def in_pandas(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame[frame["k"] != "a"]


def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.is_valid(batch["n"]))


def functions_of_the_user(df: DataFrame) -> DataFrame:
    rows = (
        df.select("k", "s", "i", doubled("s").alias("ss"))
        .withColumn("length", text_length(F.coalesce("ss", F.lit(""))))
        .withColumn("next", plus_one("i"))
    )
    counted = (
        rows.mapInPandas(in_pandas, rows.schema)
        .groupBy("k", doubled("k").alias("kk"))
        .agg(F.sum("length").alias("n"), F.sum(plus_one("next")).alias("m"))
    )
    return counted.mapInArrow(in_arrow, counted.schema).withColumn("after", doubled("kk"))


def sql_text(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("tidemill_rows")
    return df.sparkSession.sql(
        """
        WITH positive AS (SELECT * FROM tidemill_rows WHERE i > 0 OR i IS NULL),
             words AS (SELECT k, w, pos FROM positive LATERAL VIEW posexplode(split(s, '')) AS pos, w)
        SELECT k, w, count(*) AS n, max(pos) AS last FROM words GROUP BY k, w HAVING count(*) > 0
        """
    )


def stateless(df: DataFrame) -> DataFrame:
    json = F.from_json(F.concat(F.lit('{"i":'), "i", F.lit("}")), "i int")
    return (
        df.filter("b is null or b")
        .withColumn("e", F.explode_outer("a"))
        .withColumn("j", json["i"].cast("long") + 1)
        .select("k", "e", "j", "m", "t", "u", "d", F.col("r.y").alias("y"), doubled("s").alias("z"))
    )


def spread(df: DataFrame) -> DataFrame:
    """However the user repartitions the rows, state stays in its partitions."""
    table = df.sparkSession.range(3).repartition(3)
    rows = df.repartition(3).dropDuplicates(["k", "i"]).coalesce(1).crossJoin(table)
    counted = rows.repartitionByRange(3, "i").groupBy("k").agg(F.sum("i").alias("n"))
    return counted.crossJoin(table).coalesce(1)


def pipe_text(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("tidemill_pipe")
    return df.sparkSession.sql(
        "TABLE tidemill_pipe |> WHERE i > 0 |> EXTEND length(s) AS l |> WHERE l >= 0 "
        "|> AGGREGATE count(*) AS n, sum(l) AS l GROUP BY k |> WHERE n > 1 |> ORDER BY n, k |> LIMIT 3"
    )


def union_text(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("tidemill_rows")
    return df.sparkSession.sql(
        "SELECT k, d FROM tidemill_rows UNION SELECT s, f FROM tidemill_rows"
    )


def two_aggregations(df: DataFrame) -> DataFrame:
    by_text = df.groupBy(F.lit("text").alias("what"), F.col("s").alias("key")).count()
    of_all = (
        df.groupBy().count().select(F.lit("all").alias("what"), F.lit("").alias("key"), "count")
    )
    return by_text.unionByName(of_all)


NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": -1}
STRUCTURED_KEYS = ["r", "a", "d", "m", "t"]

CASES = [
    Case("by text, complete", lambda df: aggregates(df, "k"), "complete"),
    Case("by structs and arrays, update", lambda df: aggregates(df, *STRUCTURED_KEYS), "update",
         STRUCTURED_KEYS),
    Case("by an expression, update", lambda df: aggregates(df, F.upper("k").alias("key"),
         (F.col("d") * 0).alias("zero")), "update", ["key", "zero"]),
    Case("of all rows, update", lambda df: aggregates(df).withColumn("key", F.lit(1)), "update",
         ["key"]),
    Case("distinct by number, complete", lambda df: distinct_aggregates(df, "f"), "complete"),
    Case("distinct of all rows, complete", lambda df: distinct_aggregates(df), "complete"),
    Case("cube, complete", lambda df: df.cube("k", "b").agg(
        F.count("*").alias("n"), F.grouping_id().alias("g"), F.countDistinct("i").alias("c")),
        "complete"),
    Case("stateless, append", stateless, "append"),
    Case("functions of the user, complete", functions_of_the_user, "complete"),
    Case("SQL text, update", sql_text, "update", ["k", "w"]),
    Case("distinct, append", lambda df: df.select("k", "d", "f", "r", "a").distinct(), "append"),
    Case("dropDuplicates, update", lambda df: df.dropDuplicates(["d", "k"]).select("d", "k"),
         "update"),
    Case("dropDuplicates, then aggregate", lambda df: df.dropDuplicates(["k", "i"]).groupBy("k")
         .agg(F.sum("i").alias("n"), F.count("*").alias("c")), "complete"),
    Case("sort and limit, complete", lambda df: df.groupBy("k").agg(F.count("*").alias("n"))
         .orderBy(F.desc("n"), "k").limit(3), "complete"),
    Case("spread over tasks, complete", spread, "complete", [], NO_BROADCAST),
    Case("UNION, complete", union_text, "complete"),
    Case("pipe, complete", pipe_text, "complete"),
    Case("two aggregations, update", two_aggregations, "update", ["what", "key"]),
    Case("union of itself, complete", lambda df: df.filter("b").select("k", "i").unionByName(
         df.filter("not b").select("k", "i")).groupBy("k").agg(F.sum("i").alias("n")), "complete"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stream_equals_the_batch(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    numbers = iter(range(1_000_000))
    own = zlib.crc32(case.name.encode())
    rich = st.integers(0, 2**32 - 1).map(lambda number: rich_run(own ^ number))

    @settings(max_examples=40 if LONG else 1, phases=[Phase.explicit, Phase.generate])
    @given(run=rich | ANY_RUN)
    def check(run: Run) -> None:
        check_run(case, run, spark, tmp_path / str(next(numbers)))

    check()


def test_rows_come_in_the_order_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    def operation(df: DataFrame) -> DataFrame:
        return df.groupBy("k").agg(F.sum("i").alias("n")).orderBy(F.desc("n"), "k")

    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(spark, "k string, i int", operation, "complete", tmp_path) as query,
    ):
        for batch in range(3):
            query.feed([(key, ord(key) * 37 % 7 - batch) for key in "abcdefgh"])
            (df,) = query.batch_inputs()
            assert query.outputs[batch] == operation(df).collect()


class Died(Exception):
    pass


@pytest.mark.parametrize("parallel", [False, True], ids=["one task", "parallel"])
def test_a_batch_has_one_time(parallel: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Rows that ask for the time get that of the batch, from its log, also when the batch runs again."""

    def operation(df: DataFrame) -> DataFrame:
        return df.select(
            F.current_timestamp().alias("at"),
            F.now().alias("now"),
            F.current_date().alias("today"),
            F.localtimestamp().alias("local"),
            F.expr("unix_millis(current_timestamp())").alias("ms"),
            "k",
        )

    seen: dict[int, list[list[Any]]] = {}

    def keep(df: DataFrame, batch_id: int) -> None:
        seen.setdefault(batch_id, []).append(df.collect())
        if batch_id == 1 and len(seen[batch_id]) == 1:
            raise Died

    stream = MemoryStream("k string", keep=True)
    df = operation(spark.readStream.format(stream.name).load())
    writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    with plans(lambda batch_id: parallel):
        for rows in ([("a",), ("b",)], [("c",), ("d",)]):
            stream.add(rows)
            query = writer.start()
            with suppress(StreamingQueryException):
                query.processAllAvailable()
            query.stop()
        query = writer.start()
        query.processAllAvailable()
        query.stop()
        stream.close()
    first, again = seen[1]
    assert first == again
    log = [json.loads((tmp_path / "offsets" / str(n)).read_text().splitlines()[1]) for n in (0, 1)]
    for number, rows in ((0, seen[0][0]), (1, first)):
        assert {row.ms for row in rows} == {log[number]["batchTimestampMs"]}
        for row in rows:
            assert row["at"] == row.now == row.local
            assert row["at"].date() == row.today
            assert row["at"].timestamp() * 1000 == pytest.approx(row.ms, abs=1)


def check_run(case: Case, run: Run, spark: SparkSession, checkpoint: Path) -> None:
    with ExitStack() as around:
        around.enter_context(
            settings_of(spark, **{"spark.sql.shuffle.partitions": run.partitions}, **case.settings)
        )
        around.enter_context(plans(lambda batch_id: run.parallel[batch_id % len(run.parallel)]))
        query = around.enter_context(
            FedQuery(spark, SCHEMA, case.operation, case.mode, checkpoint, case.keys)
        )
        for number, rows in enumerate(run.batches):
            if number in run.restarts:
                query.restart()
            query.feed(rows)
            assert query.result() == query.expected()
