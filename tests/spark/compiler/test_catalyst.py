"""Every call into Spark's internals that the compiler depends on: a new Spark that changes one fails here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemill.spark.compiler.catalyst import Catalyst
from tidemill.spark.compiler.event_time import (
    EventTimes,
    WatermarkSpec,
    delay_ms_of,
    event_time_column,
    observed,
)
from tidemill.spark.compiler.placeholder import source_id_of
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.spark.compiler.stateful.aggregation import (
    AGGREGATES,
    exchange,
    is_final_over_partial,
    partition_of,
)
from tidemill.spark.compiler.stream_leaves import (
    LeafBuilder,
    SplitLeaf,
    is_fetch,
    template_file,
)
from tidemill.testing import MemoryStream


@pytest.fixture
def c(spark: SparkSession) -> Catalyst:
    return Catalyst(spark)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    data = [("a", 1), ("b", 2), ("a", 3), (None, 4)]
    return spark.createDataFrame(data, "k string, n int").coalesce(1)


@pytest.fixture(scope="module")
def stream() -> Iterator[MemoryStream]:
    made = MemoryStream("t timestamp, k string, n int", name="catalyst-stream")
    yield made
    made.close()


@pytest.fixture
def streaming(stream: MemoryStream, spark: SparkSession) -> DataFrame:
    return spark.readStream.format(stream.name).load()


def analyzed(df: DataFrame) -> Any:
    return df._jdf.queryExecution().analyzed()


def found(c: Catalyst, plan: Any, name: str) -> Any:
    return next(node for node in c.walk(plan) if c.name(node) == name)


# -- trees -------------------------------------------------------------------------------------------


def test_sequences_go_over_and_come_back(c: Catalyst) -> None:
    assert c.items(c.seq([1, "b", None])) == [1, "b", None]
    assert c.items(c.seq([])) == []
    assert c.some(3).get() == 3
    assert c.none.isEmpty()


def test_a_plan_is_walked_children_first(c: Catalyst, rows: DataFrame) -> None:
    names = [c.name(node) for node in c.walk(analyzed(rows.filter("n > 1").select("k")))]
    assert names[-2:] == ["Filter", "Project"]


def test_a_node_is_copied_with_other_parameters(c: Catalyst, rows: DataFrame) -> None:
    limited = found(c, analyzed(rows.limit(2)), "GlobalLimit")
    one = c.module("org.apache.spark.sql.catalyst.expressions.Literal").apply(1)
    copied = c.copy(limited, {0: one})
    assert c.dataframe(copied).count() == 1
    assert c.dataframe(limited).count() == 2


def test_children_are_exchanged(c: Catalyst, rows: DataFrame) -> None:
    filtered = analyzed(rows.filter("n > 1"))
    project = c.with_children(analyzed(rows.select("k")), [filtered])
    assert sorted(row.k or "" for row in c.dataframe(project).collect()) == ["", "a", "b"]


def test_expressions_are_transformed(c: Catalyst, rows: DataFrame) -> None:
    literal = c.module("org.apache.spark.sql.catalyst.expressions.Literal")

    def change(expression: Any) -> Any:
        return literal.apply(3) if c.name(expression) == "Literal" else None

    plan = c.transform_expressions(analyzed(rows.filter("n > 1")), change)
    assert c.dataframe(plan).count() == 1


def test_another_session_is_active_for_a_while(c: Catalyst, spark: SparkSession) -> None:
    sessions = c.jvm.org.apache.spark.sql.classic.SparkSession
    other = c.jsession.cloneSession()
    sessions.setActiveSession(c.jsession)
    with c.active(other):
        assert sessions.getActiveSession().get().equals(other)
    assert sessions.getActiveSession().get().equals(c.jsession)


def test_the_schema_of_attributes(c: Catalyst, rows: DataFrame) -> None:
    assert c.schema_of(c.items(analyzed(rows).output())).simpleString() == (
        "struct<k:string,n:int>"
    )


def test_a_python_function_is_a_node(c: Catalyst, rows: DataFrame, spark: SparkSession) -> None:
    child = analyzed(rows)
    output = analyzed(spark.createDataFrame([], "l string, m int")).output()
    columns = c.items(output), c.items(child.output())
    function = c.python_function(lambda batches: batches, *columns, "unchanged")
    plan = c.logical.MapInArrow(function, output, child, False, c.none)
    assert c.dataframe(plan).count() == 4
    physical = c.dataset(plan).queryExecution().sparkPlan()
    assert found(c, physical, "MapInArrowExec").func().name() == "unchanged"


# -- the stream's leaf -------------------------------------------------------------------------------


def test_a_placeholder_says_which_source_it_stands_for(c: Catalyst, streaming: DataFrame) -> None:
    leaf = found(c, analyzed(streaming), "StreamingRelation")
    assert source_id_of(leaf)
    assert leaf.isStreaming()


def test_ctes_are_put_in_place(streaming: DataFrame, spark: SparkSession) -> None:
    streaming.createOrReplaceTempView("catalyst_rows")
    df = spark.sql(
        "WITH a AS (SELECT k FROM catalyst_rows) SELECT * FROM a UNION ALL SELECT * FROM a"
    )
    assert len(QueryCompiler(df, "append").outline().source_ids) == 1


def test_asking_for_the_time_is_found(streaming: DataFrame) -> None:
    assert not QueryCompiler(streaming, "append").outline().reads_the_clock
    for function in (F.current_timestamp(), F.current_date(), F.localtimestamp(), F.now()):
        df = streaming.select(F.upper("k"), function)
        assert QueryCompiler(df, "append").outline().reads_the_clock


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_split_leaf_runs_its_function_in_tasks(
    tasks: int, c: Catalyst, streaming: DataFrame
) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int32())])

    def fetch(batches: Any) -> Any:
        for batch in batches:
            numbers = batch.column(0).cast(pa.int32())
            nothing = [None] * len(numbers)
            yield pa.record_batch([pa.array(nothing, schema.field(0).type), pa.array(nothing, pa.string()),
                                   numbers], schema=schema)  # fmt: skip

    placeholder = found(c, analyzed(streaming), "StreamingRelation")
    leaf = LeafBuilder(c, c.jsession, tasks).build(placeholder, "x", SplitLeaf(fetch))
    assert sorted(row.n for row in c.dataframe(leaf).collect()) == list(range(tasks))
    physical = c.dataset(leaf).queryExecution().executedPlan()
    leaves = [node for node in c.walk(physical) if is_fetch(c, node)]
    assert len(leaves) == 1
    # Spark must not think that the stream is small enough to be broadcast.
    assert c.dataset(leaf).queryExecution().optimizedPlan().stats().sizeInBytes() > 1 << 40


def test_a_template_file_takes_no_room() -> None:
    path = template_file("catalyst-test").removeprefix("file://")
    assert os.stat(path).st_size == 1 << 40
    assert os.stat(path).st_blocks == 0
    os.unlink(path)


# -- aggregation -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "node"),
    [
        ("sum(n)", "HashAggregateExec"),
        ("collect_list(n)", "ObjectHashAggregateExec"),
        ("max(k)", "SortAggregateExec"),
    ],
)
def test_a_final_aggregation_stands_over_a_partial_one(
    function: str, node: str, c: Catalyst, rows: DataFrame, spark: SparkSession
) -> None:
    df = rows.groupBy("n").agg(F.expr(function))
    plan = df._jdf.queryExecution().sparkPlan()
    final = next(inner for inner in c.walk(plan) if is_final_over_partial(c, inner))
    assert c.name(final) == node
    partial = final.child()
    chain = c.execution.aggregate.AggUtils.planStreamingAggregation(
        partial.groupingExpressions(),
        partial.aggregateExpressions(),
        final.resultExpressions(),
        2,
        partial.child(),
    ).head()
    save = chain.child()
    merge_all = save.child()
    restore = merge_all.child()
    merge_new = restore.child()
    names = [c.name(part) for part in (save, restore)]
    assert names == ["StateStoreSaveExec", "StateStoreRestoreExec"]
    for part in (chain, merge_all, merge_new, merge_new.child()):
        assert c.name(part) in AGGREGATES
        # Positions that are changed in copies of them.
        assert part.productElement(1) in (True, False)
        assert part.productElement(7).equals(part.resultExpressions())
        assert part.productElement(8).equals(part.child())
        assert part.productArity() == 9


def test_state_is_placed_as_an_exchange_places_rows(
    c: Catalyst, rows: DataFrame, spark: SparkSession
) -> None:
    keys = c.items(analyzed(rows.select("k")).output())
    place = c.alias(partition_of(c, keys, 5), "p")
    projected = c.dataframe(c.logical.Project(c.seq([*keys, place]), analyzed(rows)))
    places = {row.k: row.p for row in projected.collect()}
    for partition, part in enumerate(rows.repartition(5, "k").rdd.glom().collect()):
        assert {places[row.k] for row in part} <= {partition}
    assert c.name(exchange(c, rows._jdf.queryExecution().sparkPlan(), keys, 5)) == (
        "ShuffleExchangeExec"
    )


# -- event time --------------------------------------------------------------------------------------


def test_a_watermark_is_observed(c: Catalyst, streaming: DataFrame, spark: SparkSession) -> None:
    node = found(c, analyzed(streaming.withWatermark("t", "90 seconds")), "EventTimeWatermark")
    assert delay_ms_of(c, node) == 90_000
    table = spark.sql("SELECT timestamp'1970-01-01 00:00:02' t UNION ALL SELECT null")
    column = c.items(analyzed(table).output())[0]
    plan, spec = observed(c, _Watermark(node, column), analyzed(table), 0)
    assert spec == WatermarkSpec("tidemill.watermark.0", "t", 90_000)
    execution = c.dataset(plan).queryExecution()
    physical = execution.executedPlan()
    physical.executeCollectPublic()
    collect = c.module("org.apache.spark.sql.execution.CollectMetricsExec").collect(physical)
    row = collect.get(spec.metric).get()
    assert [row.get(index) for index in range(3)] == [1, 2_000_000, 2_000_000]
    assert EventTimes(0).count == 0


class _Watermark:
    """A watermark node, with its column in another table."""

    def __init__(self, node: Any, column: Any) -> None:
        self._node, self._column = node, column

    def eventTime(self) -> Any:
        return self._column

    def delay(self) -> Any:
        return self._node.delay()


def test_columns_know_that_they_have_a_watermark(c: Catalyst, streaming: DataFrame) -> None:
    timed = streaming.withWatermark("t", "1 minute")
    windows = timed.groupBy(F.window("t", "1 minute"), "k").count()
    assert event_time_column(c, c.items(analyzed(streaming).output())) is None
    plain = event_time_column(c, c.items(analyzed(timed).output()))
    assert plain is not None
    assert (plain.index, plain.of_window) == (0, False)
    window = event_time_column(c, c.items(analyzed(windows).output()))
    assert window is not None
    assert (window.index, window.of_window) == (0, True)
