"""Every aggregate function of Spark gives the same result over a stream as over a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from tests.sql.streams import FedQuery, plans
from tidemill.errors import TidemillError

COLUMNS = (
    "k string, i int, l long, d double, f float, m decimal(12,3), s string, b boolean, x binary, "
    "t timestamp, u date, v array<float>, n int"
)

# Buffers of fixed width.
PLAIN = {
    "any": "any(b)",
    "any_value": "any_value(7)",
    "approx_count_distinct": "approx_count_distinct(i)",
    "avg": "avg(d)",
    "bit_and": "bit_and(i)",
    "bit_or": "bit_or(i)",
    "bit_xor": "bit_xor(i)",
    "bool_and": "bool_and(b)",
    "bool_or": "bool_or(b)",
    "corr": "corr(i, f)",
    "count": "count(i)",
    "count_if": "count_if(b)",
    "covar_pop": "covar_pop(i, f)",
    "covar_samp": "covar_samp(i, f)",
    "every": "every(b)",
    "first": "first(n, true)",
    "first_value": "first_value(n)",
    "kurtosis": "round(kurtosis(i), 9)",
    "last": "last(n)",
    "last_value": "last_value(i, true)",
    "max": "max(u)",
    "mean": "mean(m)",
    "min": "min(t)",
    "regr_avgx": "regr_avgx(i, f)",
    "regr_avgy": "regr_avgy(i, f)",
    "regr_count": "regr_count(i, f)",
    "regr_intercept": "regr_intercept(i, f)",
    "regr_r2": "regr_r2(i, f)",
    "regr_slope": "regr_slope(i, f)",
    "regr_sxx": "regr_sxx(i, f)",
    "regr_sxy": "regr_sxy(i, f)",
    "regr_syy": "regr_syy(i, f)",
    "skewness": "round(skewness(i), 9)",
    "some": "some(b)",
    "std": "std(i)",
    "stddev": "stddev(m)",
    "stddev_pop": "stddev_pop(i)",
    "stddev_samp": "stddev_samp(i)",
    "sum": "sum(m)",
    "try_avg": "try_avg(i)",
    "try_sum": "try_sum(l)",
    "var_pop": "var_pop(i)",
    "var_samp": "var_samp(i)",
    "variance": "variance(f)",
}
# Buffers that are objects or grow.
OBJECTS = {
    "approx_percentile": "approx_percentile(i, 0.5)",
    "array_agg": "sort_array(array_agg(i))",
    "bitmap_and_agg": "bitmap_and_agg(x)",
    "bitmap_construct_agg": "bitmap_construct_agg(abs(i))",
    "bitmap_or_agg": "bitmap_or_agg(x)",
    "collect_list": "sort_array(collect_list(n))",
    "collect_set": "sort_array(collect_set(i))",
    "collect_union": "sort_array(collect_union(array(i, 1)))",
    # Which bins are joined depends on how the rows are spread over tasks, also in a batch query.
    "histogram_numeric": "aggregate(histogram_numeric(i, 5), 0d, (a, bin) -> a + bin.y)",
    "listagg": "listagg(s, ',') within group (order by s)",
    "max_by": "max_by(s, n)",
    "median": "median(i)",
    "min_by": "min_by(s, n)",
    "mode": "mode() within group (order by i)",
    "percentile": "percentile(i, array(0.1, 0.7))",
    "percentile_approx": "percentile_approx(l, array(0.2, 0.9))",
    "percentile_cont": "percentile_cont(0.3) within group (order by i)",
    "percentile_disc": "percentile_disc(0.3) within group (order by i desc)",
    "schema_of_variant_agg": "schema_of_variant_agg(parse_json(concat('{\"a\":', n, '}')))",
    "string_agg": "string_agg(s, '-') within group (order by s)",
    "vector_avg": "transform(vector_avg(v), x -> round(x, 4))",
    "vector_sum": "vector_sum(v)",
}
# Functions that make sketches; those in MERGED join the sketches of rows.
SKETCHES = {
    "approx_top_k": "approx_top_k(i, 3)",
    "approx_top_k_accumulate": "approx_top_k_estimate(approx_top_k_accumulate(i), 2)",
    "count_min_sketch": "count_min_sketch(i, 0.5d, 0.5d, 1)",
    "hll_sketch_agg": "hll_sketch_estimate(hll_sketch_agg(i))",
    "kll_sketch_agg_bigint": "kll_sketch_get_quantile_bigint(kll_sketch_agg_bigint(l), 0.5)",
    "kll_sketch_agg_double": "kll_sketch_get_quantile_double(kll_sketch_agg_double(d), 0.5)",
    "kll_sketch_agg_float": "kll_sketch_get_quantile_float(kll_sketch_agg_float(f), 0.5)",
    "theta_sketch_agg": "theta_sketch_estimate(theta_sketch_agg(i))",
    "tuple_sketch_agg_double": "tuple_sketch_estimate_double(tuple_sketch_agg_double(i, d))",
    "tuple_sketch_agg_integer": "tuple_sketch_estimate_integer(tuple_sketch_agg_integer(i, n))",
}
MERGED = {
    "approx_top_k_combine": "sort_array(approx_top_k_estimate(approx_top_k_combine(top), 90))",
    "hll_union_agg": "hll_sketch_estimate(hll_union_agg(hll))",
    "kll_merge_agg_bigint": "kll_sketch_get_n_bigint(kll_merge_agg_bigint(kll_b))",
    "kll_merge_agg_double": "kll_sketch_get_n_double(kll_merge_agg_double(kll_d))",
    "kll_merge_agg_float": "kll_sketch_get_n_float(kll_merge_agg_float(kll_f))",
    "theta_intersection_agg": "theta_sketch_estimate(theta_intersection_agg(theta))",
    "theta_union_agg": "theta_sketch_estimate(theta_union_agg(theta))",
    "tuple_intersection_agg_double": "tuple_sketch_estimate_double(tuple_intersection_agg_double(tuple_d))",
    "tuple_intersection_agg_integer": "tuple_sketch_estimate_integer("
    "tuple_intersection_agg_integer(tuple_i))",
    "tuple_union_agg_double": "tuple_sketch_estimate_double(tuple_union_agg_double(tuple_d))",
    "tuple_union_agg_integer": "tuple_sketch_estimate_integer(tuple_union_agg_integer(tuple_i))",
}
SKETCH_COLUMNS = {
    "top": "approx_top_k_accumulate(cast(id * id / 8 as int))",
    "hll": "hll_sketch_agg(cast(id as int))",
    "kll_b": "kll_sketch_agg_bigint(id)",
    "kll_d": "kll_sketch_agg_double(cast(id as double))",
    "kll_f": "kll_sketch_agg_float(cast(id as float))",
    "theta": "theta_sketch_agg(id)",
    "tuple_d": "tuple_sketch_agg_double(id, cast(id as double))",
    "tuple_i": "tuple_sketch_agg_integer(id, cast(id as int))",
}
# Functions that are not functions of the rows of a group.
OTHERS = {
    "grouping": "of a grouping set: see the cube of test_stream_equals_batch.py",
    "grouping_id": "of a grouping set: see the cube of test_stream_equals_batch.py",
    "measure": "of a metric view",
}
WINDOW_FUNCTIONS = {
    "cume_dist", "dense_rank", "nth_value", "ntile", "percent_rank", "rank", "row_number",
}  # fmt: skip


def aggregate_functions(spark: SparkSession) -> set[str]:
    """Return all aggregate functions of Spark's registry, found by their classes."""
    jvm: Any = spark.sparkContext._jvm
    # A new session does not have the functions that other tests have registered.
    registry = spark.newSession()._jsparkSession.sessionState().functionRegistry()
    aggregate = "org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction"
    kind = jvm.java.lang.Class.forName(aggregate)
    listed = registry.listFunction()
    found = set()
    for index in range(listed.size()):
        name = listed.apply(index)
        info = registry.lookupFunction(name).get()
        function = jvm.java.lang.Class.forName(info.getClassName())
        if kind.isAssignableFrom(function) or info.getGroup() == "agg_funcs":
            found.add(str(name.funcName()))
    return found


def test_no_aggregate_function_of_spark_is_forgotten(spark: SparkSession) -> None:
    tested = {*PLAIN, *OBJECTS, *SKETCHES, *MERGED, *OTHERS, *WINDOW_FUNCTIONS}
    assert aggregate_functions(spark) == tested


def rows_of(batch: int) -> list[Any]:
    """Return six rows, the same every time, with nulls in all columns but the last."""
    rows = []
    for n in range(batch * 6, batch * 6 + 6):
        row = [
            ["a", "", None, "ü"][n % 4],
            (n * 7) % 5 - 2,
            n * 10**9,
            [0.0, -0.0, 1.5, 3.25][n % 4],
            [0.5, 2.0, -0.0][n % 3],
            Decimal(n * 37 % 101) / 8,
            ["x", "", "zz", "é"][n * 3 % 4],
            n % 3 == 0,
            bytes([n * 5 % 256]),
            datetime(1969, 12, 31, n % 24, tzinfo=UTC),
            date(1970, 1, 1 + n % 9),
            [float(n % 4), 2.0],
            n,
        ]
        row[1 + n * 5 % 11] = None
        rows.append(tuple(row))
    return rows


def by_column(rows: Counter[Any]) -> dict[str, list[str]]:
    """Return the values of each column, in the order of the keys."""
    columns: dict[str, list[str]] = {}
    for row in sorted(rows.elements(), key=repr):
        for name, value in row:
            columns.setdefault(name, []).append(repr(value))
    return columns


def check(
    spark: SparkSession,
    schema: str,
    calls: dict[str, str],
    rows: Callable[[int], list[Any]],
    checkpoint: Path,
    *keys: str,
) -> None:
    def operation(df: DataFrame) -> DataFrame:
        columns = [F.expr(call).alias(f"x_{name}") for name, call in calls.items()]
        return df.groupBy(*keys).agg(*columns)

    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(spark, schema, operation, "complete", checkpoint) as query,
    ):
        for batch in range(4):
            if batch == 2:
                query.restart()
            query.feed(rows(batch))
            ours, expected = (by_column(rows) for rows in (query.result(), query.expected()))
            assert {name for name in ours if ours[name] != expected[name]} == set()
            assert ours == expected


@pytest.mark.parametrize(
    ("calls", "keys"),
    [(PLAIN, ["k"]), ({**PLAIN, **OBJECTS}, ["k"]), (OBJECTS, []), (SKETCHES, ["k"])],
    ids=["plain", "objects", "objects of all rows", "sketches"],
)
def test_equal_to_the_batch(
    calls: dict[str, str], keys: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    check(spark, COLUMNS, calls, rows_of, tmp_path, *keys)


def test_strings_as_buffers(spark: SparkSession, tmp_path: Path) -> None:
    """Spark aggregates them by sorting."""
    calls = {"min": "min(s)", "max": "max(s)", "first": "first(s, true)", "max_x": "max(x)"}
    check(spark, COLUMNS, calls, rows_of, tmp_path, "k")


def test_sketches_of_rows_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    made = [f"{call} AS {name}" for name, call in SKETCH_COLUMNS.items()]
    batches = [
        spark.range(n, n + 5).selectExpr(f"'{n % 2}' AS k", *made).collect() for n in range(8)
    ]
    schema = spark.range(1).selectExpr("'' AS k", *made).schema

    def rows(batch: int) -> list[Any]:
        return [*batches[batch * 2], *batches[batch * 2 + 1]]

    check(spark, schema.simpleString()[7:-1], MERGED, rows, tmp_path, "k")


@pytest.mark.parametrize("digits", ["5,0", "10,2", "12,3", "20,6", "38,10", "38,18"])
def test_distinct_decimals_have_all_their_digits(
    digits: str, spark: SparkSession, tmp_path: Path
) -> None:
    scale = int(digits.split(",")[1])

    def rows(batch: int) -> list[Any]:
        sevenths = [Decimal(n * n % 31) / 7 for n in range(batch * 6, batch * 6 + 6)]
        values = [each.quantize(Decimal(1).scaleb(-scale)) for each in sevenths]
        return [("ab"[n % 2], value) for n, value in enumerate(values)] + [("c", None)]

    functions = ("sum", "avg", "try_sum", "try_avg", "count")
    calls = {name: f"{name}(DISTINCT m)" for name in functions}
    check(spark, f"k string, m decimal({digits})", calls, rows, tmp_path, "k")


# -- refused -----------------------------------------------------------------------------------------


@F.pandas_udf(LongType())
def pandas_total(numbers: pd.Series) -> int:
    return int(numbers.sum())


@F.arrow_udf(LongType())
def arrow_total(numbers: pa.Array) -> int:
    return int(pc.sum(numbers).as_py() or 0)


@pytest.mark.parametrize("function", [pandas_total, arrow_total])
def test_functions_without_partial_results_are_refused(
    function: Any, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError, match=f"{function.__name__}.*aggregate function"):
        FedQuery(
            spark,
            "k string, n int",
            lambda df: df.groupBy("k").agg(function("n")),
            "complete",
            tmp_path,
        )


@pytest.mark.parametrize(
    "call", ["stddev(DISTINCT i)", "collect_list(DISTINCT i)", "percentile(DISTINCT i, 0.5)"]
)
def test_distinct_is_refused_where_values_would_have_to_be_kept_in_order(
    call: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(TidemillError, match=r"\(DISTINCT .*dropDuplicates"):
        FedQuery(spark, COLUMNS, lambda df: df.groupBy("k").agg(F.expr(call)), "complete", tmp_path)


def test_a_measure_is_for_metric_views(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TidemillError, match=r"measure\(\)"):
        FedQuery(
            spark, "k string, n int", lambda df: df.groupBy("k").agg(F.expr("measure(n)")), "complete",
            tmp_path,
        )  # fmt: skip
