"""Columns of every type: they pass the steps, or the query is refused when it starts, by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.streams import FedQuery, Operation, settings_of
from tidemill.errors import UnsupportedError
from tidemill.testing import MemoryStream

SCHEMA = "k string, n int"
ROWS = [("a", 1), ("b", 2), ("a", 1)]
POINT = "X'0101000000000000000000F03F0000000000000040'"

# An expression, and the type that the refusal names.
REFUSED = {
    "years and months": ("make_ym_interval(n, 1)", "interval year to month"),
    "calendar interval": ("make_interval(n, 1)", "interval"),
    "geometry": (f"st_geomfromwkb({POINT})", "geometry(0)"),
    "geography": (f"st_geogfromwkb({POINT})", "geography(4326)"),
    "two fields of one name": ("named_struct('a', n, 'a', n)", "a struct with two fields called a"),
    "TIME": ("if(n > 1, time'12:00:00', time'13:00:00')", "time(6)"),
    "in a list": ("array(make_ym_interval(n, 1))", "interval year to month"),
    "in a map": ("map(n, make_ym_interval(n, 1))", "interval year to month"),
    "in a struct": ("struct(struct(make_interval(n, 1)))", "interval"),
}


def by_key(expression: str) -> Operation:
    return lambda df: df.groupBy(F.expr(expression).alias("x")).count()


def as_buffer(expression: str) -> Operation:
    return lambda df: df.groupBy("k").agg(F.expr(f"first({expression})").alias("x"))


def without_duplicates(expression: str) -> Operation:
    return lambda df: df.withColumn("x", F.expr(expression)).dropDuplicates(["k"])


def refusal(spark: SparkSession, operation: Operation, folder: Path) -> str:
    with pytest.raises(UnsupportedError) as error:
        FedQuery(spark, SCHEMA, operation, "update", folder)
    return str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_in_state_is_refused_at_start(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    expression, found = REFUSED[name]
    says = f"{found} cannot pass the step that keeps the state."
    said = refusal(spark, without_duplicates(expression), tmp_path / "1")
    assert said.startswith("dropDuplicates over a stream is not supported with x, of the type ")
    assert says in said
    assert says in refusal(spark, as_buffer(expression), tmp_path / "2")
    if name not in ("in a map", "geometry", "geography"):  # no keys anywhere
        assert says in refusal(spark, by_key(expression), tmp_path / "3")


def test_time_is_kept_in_state_once_its_setting_is_on(spark: SparkSession, tmp_path: Path) -> None:
    expression = "make_time(n, 1, 1.5)"

    def all_of_them(df: DataFrame) -> DataFrame:
        counted = df.withColumn("x", F.expr(expression)).dropDuplicates(["x"]).groupBy("x")
        return counted.agg(F.expr(f"first({expression})").alias("y"), F.expr("collect_list(x)"))

    with (
        settings_of(spark, **{"spark.sql.timeType.enabled": "true"}),
        FedQuery(
            spark,
            SCHEMA,
            lambda df: all_of_them(df.withColumn("n", F.expr("n"))),
            "complete",
            tmp_path,
        ) as query,
    ):
        query.feed(ROWS)
        query.restart()
        query.feed(ROWS)
        assert len(query.outputs[1]) == 2


@pytest.mark.parametrize(
    "expression",
    ["make_dt_interval(n)", "parse_json('1')", "cast(k AS binary)", "cast(k AS char(3))", "struct()",
     "named_struct('a', n, 'A', n)", "cast('2020-01-01' AS timestamp_ntz)", "null",
     "collate(k, 'UTF8_LCASE')"],
)  # fmt: skip
def test_other_types_pass_the_steps(expression: str, spark: SparkSession, tmp_path: Path) -> None:
    def operation(df: DataFrame) -> DataFrame:
        df = without_duplicates(expression)(df)
        return df.groupBy("k").agg(F.first("x").alias("x"), F.collect_list("x").alias("xs"))

    with FedQuery(spark, SCHEMA, operation, "complete", tmp_path) as query:
        query.feed(ROWS)
        query.restart()
        query.feed(ROWS)
        assert str(sorted(query.outputs[1], key=lambda row: row.k)) == str(
            operation(query.batch_inputs()[0]).orderBy("k").collect()
        )


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("interval year to month", "interval year to month"),
        ("array<interval>", "interval"),
        ("varchar(3)", r"varchar\(3\)"),
        ("struct<a:int,a:int>", "a struct with two fields called a"),
    ],
)
def test_a_source_that_cannot_give_a_column_is_refused_at_start(
    kind: str, found: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        UnsupportedError, match=f"column x of the stream .* cannot give Spark {found}"
    ):
        FedQuery(spark, f"k string, x {kind}", lambda df: df.select("k"), "append", tmp_path)


@pytest.mark.parametrize(
    "expression", ["make_ym_interval(n, 1)", "array(named_struct('a', n, 'a', n))"]
)
def test_foreach_refuses_what_does_not_reach_python(
    expression: str, spark: SparkSession, tmp_path: Path
) -> None:
    def nothing(row: Any) -> None:
        pass

    stream = MemoryStream(SCHEMA)
    try:
        df = spark.readStream.format(stream.name).load().select(F.expr(expression).alias("x"))
        writer = df.writeStream.option("checkpointLocation", str(tmp_path)).foreach(nothing)
        with pytest.raises(UnsupportedError, match="foreach cannot get column x, of the type"):
            writer.start()
    finally:
        stream.close()
