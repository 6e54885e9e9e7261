"""Queries that nobody has thought of: operations in any order, each compared with Spark's own batch answer.

Every operation takes and gives the columns ``k int, g string, n bigint``, so that any may follow any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tests.sql.streams import LONG, FedQuery, plans, settings_of

SCHEMA = "k int, g string, n bigint"
COLUMNS = ["k", "g", "n"]
EXAMPLES = 150 if LONG else 40


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Views of tables: some keys with several rows, one without a row, one that is computed."""
    path = str(tmp_path_factory.mktemp("tables") / "few")
    rows = [(1, "one"), (2, "two"), (2, "deux"), (4, "four"), (None, "none")]
    spark.createDataFrame(rows, "k int, name string").repartition(3).write.parquet(path)
    few = spark.read.parquet(path)
    few.createOrReplaceTempView("generated_few")
    few.filter("name = ''").createOrReplaceTempView("generated_empty")
    few.groupBy("k").agg(F.max("name").alias("name")).createOrReplaceTempView("generated_computed")
    yield
    for name in ("few", "empty", "computed"):
        spark.catalog.dropTempView(f"generated_{name}")


def columns(df: DataFrame) -> DataFrame:
    return df.select(F.col("k").cast("int"), F.col("g").cast("string"), F.col("n").cast("bigint"))


@F.udf(StringType())
def turned(text):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
    return None if text is None else text[::-1]


def not_three(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pa.array(value != 3 for value in batch["k"].to_pylist()))


def by_text(df: DataFrame) -> DataFrame:
    view = f"generated_{id(df)}"
    df.createOrReplaceTempView(view)
    rows = df.sparkSession.sql(
        f"""
        WITH even AS (SELECT k, g, n FROM {view} WHERE n % 2 = 0)
        SELECT k, g, n FROM even WHERE k IN (SELECT k FROM generated_few WHERE k IS NOT NULL)
        UNION ALL SELECT k, upper(g), n FROM {view} WHERE n % 2 = 1
        """
    )
    df.sparkSession.catalog.dropTempView(view)
    return rows


Operation = Callable[[DataFrame], DataFrame]

ROW_BY_ROW: dict[str, Operation] = {
    "filter": lambda df: df.filter("n % 3 <> 0 OR g IS NULL"),
    "project": lambda df: df.select((F.col("k") + 1).alias("k"), "g", (F.col("n") * 2).alias("n")),
    "explode": lambda df: df.withColumn("n", F.explode(F.array("n", F.col("n") + 1))),
    "python": lambda df: df.withColumn("g", turned("g")),
    "map in arrow": lambda df: df.mapInArrow(not_three, df.schema),
    "repartition": lambda df: df.repartition(3),
    "repartition by": lambda df: df.repartition(2, "g"),
    "coalesce": lambda df: df.coalesce(1),
    "cross join": lambda df: df.crossJoin(df.sparkSession.range(2).toDF("c")),
    "union": lambda df: df.filter("k > 1").union(df.filter("g = 'a'")),
    "text": by_text,
    "observe": lambda df: df.observe(f"seen {id(df)}", F.count("*").alias("rows")),
}
for table in ("few", "empty", "computed"):
    for kind in ("inner", "left_outer", "left_semi", "left_anti"):
        for hint in ("broadcast", "merge", "shuffle_hash"):

            def joined(
                df: DataFrame, table: str = table, kind: str = kind, hint: str = hint
            ) -> DataFrame:
                other = df.sparkSession.table(f"generated_{table}").hint(hint)
                rows = df.join(other, "k", kind)
                if "name" in rows.columns:
                    rows = rows.withColumn("n", F.col("n") + F.coalesce(F.length("name"), F.lit(0)))
                return rows

            ROW_BY_ROW[f"{kind} join, {table}, {hint}"] = joined

DEDUPLICATIONS: dict[str, Operation] = {
    "distinct": lambda df: df.distinct(),
    "dropDuplicates": lambda df: df.dropDuplicates(["k", "g"]).withColumn("n", F.lit(1)),
}
AGGREGATIONS: dict[str, Operation] = {
    "by k": lambda df: df.groupBy("k").agg(F.max("g").alias("g"), F.sum("n").alias("n")),
    "by g": lambda df: df.groupBy("g").agg(F.min("k").alias("k"), F.count("*").alias("n")),
    "by both": lambda df: df.groupBy("k", "g").agg(F.countDistinct("n").alias("n")),
    "of all": lambda df: df.agg(
        F.min("k").alias("k"), F.max("g").alias("g"), F.sum("n").alias("n")
    ),
    "objects": lambda df: df.groupBy("k").agg(
        F.concat_ws(",", F.sort_array(F.collect_set("g"))).alias("g"), F.count("*").alias("n")
    ),
    "rollup": lambda df: df.rollup("k", "g").agg(F.sum("n").alias("n")),
}
AT_THE_END: dict[str, Operation] = {
    "sort": lambda df: df.orderBy("n", "k", "g"),
    "sort and limit": lambda df: df.orderBy(*COLUMNS).limit(3),
}
ALL = {**ROW_BY_ROW, **DEDUPLICATIONS, **AGGREGATIONS, **AT_THE_END}


@dataclass(frozen=True)
class Generated:
    operations: tuple[str, ...]
    mode: str

    def __call__(self, df: DataFrame) -> DataFrame:
        for name in self.operations:
            df = columns(ALL[name](df))
        return df


@st.composite
def queries(draw: st.DrawFn) -> Generated:
    def some(of: dict[str, Operation], most: int) -> list[str]:
        return draw(st.lists(st.sampled_from(sorted(of)), max_size=most))

    before = some(ROW_BY_ROW, 2) + some(DEDUPLICATIONS, 1) + some(ROW_BY_ROW, 2)
    if draw(st.integers(0, 3)) == 0:
        return Generated(tuple(before), "append")
    aggregation = draw(st.sampled_from(sorted(AGGREGATIONS)))
    after = some(ROW_BY_ROW, 2) + some(AT_THE_END, 1)
    return Generated((*before, aggregation, *after), "complete")


ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 5), st.none() | st.sampled_from("ab"), st.integers(-3, 12)
    ),
    max_size=12,
)


@dataclass(frozen=True)
class Run:
    batches: tuple[list[Any], ...]
    restart: int
    parallel: int  # a bit for each batch
    partitions: int


RUNS = st.builds(
    Run,
    st.tuples(ROWS, ROWS, ROWS),
    st.integers(0, 3),
    st.integers(0, 7),
    st.sampled_from([2, 1, 5]),
)


@pytest.mark.usefixtures("tables")
def test_the_stream_equals_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    numbers = iter(range(1_000_000))

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate, Phase.shrink])
    @given(query=queries(), run=RUNS)
    def check(query: Generated, run: Run) -> None:
        checkpoint = tmp_path / str(next(numbers))
        with (
            settings_of(spark, **{"spark.sql.shuffle.partitions": run.partitions}),
            plans(lambda batch_id: bool(run.parallel >> batch_id % 3 & 1)),
            FedQuery(spark, SCHEMA, query, query.mode, checkpoint) as fed,
        ):
            for number, rows in enumerate(run.batches):
                if number and number == run.restart:
                    fed.restart()
                fed.feed(rows)
                assert fed.result() == fed.expected()

    check()
