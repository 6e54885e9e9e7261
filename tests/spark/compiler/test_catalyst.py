"""Every call into Spark's internals that the compiler depends on: a new Spark that changes one fails here."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tidemill.errors import UnsupportedError
from tidemill.spark.compiler.batch_output import ComputedOutput
from tidemill.spark.compiler.batch_time import BatchTime
from tidemill.spark.compiler.catalyst import Catalyst
from tidemill.spark.compiler.compiled_plan import CompiledPlan
from tidemill.spark.compiler.computing.row_counter import RowCounter
from tidemill.spark.compiler.event_time import (
    EventTimes,
    WatermarkSpec,
    delay_ms_below,
    delay_ms_of,
    event_time_column,
    event_times,
    is_watermark_metric,
    observed,
)
from tidemill.spark.compiler.placeholder import source_id_of, streaming_leaves
from tidemill.spark.compiler.plan_rewriting import StateSteps
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.spark.compiler.stateful.aggregation import (
    AGGREGATES,
    AggregateSpec,
    StatefulAggregation,
    exchange,
    is_final_over_partial,
    partition_of,
)
from tidemill.spark.compiler.stateful.deduplication import StatefulDeduplication
from tidemill.spark.compiler.stateful.distinct_aggregates import with_sets
from tidemill.spark.compiler.stateful.key_types import require_keys
from tidemill.spark.compiler.stateful.state_layout import written_aggregation
from tidemill.spark.compiler.stateful.state_steps import is_state_step
from tidemill.spark.compiler.stream_leaves import (
    FileLeaf,
    LeafBuilder,
    PartitioningChangedError,
    SplitLeaf,
    is_fetch,
    template_file,
)
from tidemill.spark.session.settings import EXCLUDED_RULES, lasting_plan_settings
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.state_layout import KeptFunction, StateLayout
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


def no_step(spec: Any) -> Any:
    raise AssertionError(f"a query without state has no step for {spec}")


NO_STEPS = StateSteps(no_step, no_step)


def lasting_session(c: Catalyst) -> Any:
    jsession = c.jsession.cloneSession()
    for key, value in lasting_plan_settings(2, 2).items():
        jsession.conf().set(key, value)
    return jsession


def test_spark_warns_of_no_setting_that_every_query_has(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    known = getattr(jvm.org.apache.spark.sql.internal, "SQLConf$")
    deprecated = getattr(known, "MODULE$").deprecatedSQLConfigs()
    assert deprecated.contains("spark.sql.optimizer.metadataOnly")
    settings = lasting_plan_settings(2, 2)
    assert not [key for key in settings if deprecated.contains(key)]
    for rule in settings[EXCLUDED_RULES].split(","):
        assert jvm.org.apache.spark.util.Utils.classIsLoadable(rule), rule


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


def test_expressions_in_a_list_are_transformed(c: Catalyst, rows: DataFrame) -> None:
    literal = c.module("org.apache.spark.sql.catalyst.expressions.Literal")

    def change(expression: Any) -> Any:
        return literal.apply(7) if c.name(expression) == "Literal" else None

    plan = c.transform_expressions(
        analyzed(rows.select("k", (F.lit(1) + F.lit(2)).alias("n"))), change
    )
    assert c.dataframe(plan).first() == Row(k="a", n=14)


def test_another_session_is_active_for_a_while(c: Catalyst, spark: SparkSession) -> None:
    sessions = c.jvm.org.apache.spark.sql.classic.SparkSession
    other = c.jsession.cloneSession()
    sessions.setActiveSession(c.jsession)
    with c.active(other):
        assert sessions.getActiveSession().get().equals(other)
    assert sessions.getActiveSession().get().equals(c.jsession)
    sessions.clearActiveSession()
    with c.active(other):
        assert sessions.getActiveSession().get().equals(other)
    assert sessions.getActiveSession().isEmpty()
    sessions.setActiveSession(c.jsession)


def test_the_schema_of_attributes(c: Catalyst, rows: DataFrame) -> None:
    assert c.schema_of(c.items(analyzed(rows).output())).simpleString() == (
        "struct<k:string,n:int>"
    )


def test_equal_columns_of_a_join_are_found(c: Catalyst, rows: DataFrame) -> None:
    def join(condition: Any) -> Any:
        return found(c, analyzed(rows.alias("a").join(rows.alias("b"), condition)), "Join")

    assert c.join_keys(join(F.expr("a.k = b.k"))) is not None
    assert c.join_keys(join(F.expr("a.n < b.n"))) is None


def test_a_plan_with_new_names_is_analyzed(c: Catalyst, rows: DataFrame) -> None:
    parsed = c.module("org.apache.spark.sql.catalyst.parser.CatalystSqlParser").parseExpression(
        "n + 1 as m"
    )
    project = c.logical.Project(c.seq([parsed]), analyzed(rows))
    assert not project.resolved()
    assert [row.m for row in c.dataframe(c.analyzed(project)).collect()] == [2, 3, 4, 5]


def test_rows_of_the_jvm_are_rows_of_pyspark(c: Catalyst, rows: DataFrame) -> None:
    collected = rows._jdf.queryExecution().executedPlan().executeCollectPublic()
    assert [c.python_row(row) for row in collected] == rows.collect()


def test_the_rows_of_an_rdd_are_counted_again_and_again(c: Catalyst, rows: DataFrame) -> None:
    counter = RowCounter(c, rows._jdf.queryExecution().executedPlan().execute())
    assert [counter.count(), counter.count()] == [4, 4]


def test_types_whose_equal_values_are_equal_bytes(c: Catalyst, spark: SparkSession) -> None:
    table = spark.sql("SELECT 'a' a, 'a' collate UTF8_LCASE b, map(1, 2) c, array(map(1, 2)) d")
    plain, *others = c.items(analyzed(table).output())
    require_keys(c, "groupBy", [plain])
    for key in others:
        with pytest.raises(UnsupportedError, match="groupBy over a stream by"):
            require_keys(c, "groupBy", [key])


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


def test_the_time_of_the_batch_is_put_in_place(c: Catalyst, rows: DataFrame) -> None:
    functions = ("current_timestamp()", "now()", "current_date()", "localtimestamp()")
    asking = rows.limit(1).selectExpr(*(f"string({each}) c{n}" for n, each in enumerate(functions)))
    batch_time = BatchTime(c)
    assert batch_time.is_asked_by(analyzed(asking))
    plan = batch_time.in_plan(analyzed(asking), 86_400_000)
    moment = "1970-01-02 00:00:00"
    assert tuple(c.dataframe(plan).first() or ()) == (moment, moment, moment[:10], moment)


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


def test_the_leaves_of_a_dataframe(streaming: DataFrame, spark: SparkSession) -> None:
    streaming.createOrReplaceTempView("catalyst_leaves")
    df = spark.sql("WITH a AS (SELECT k FROM catalyst_leaves) SELECT * FROM a UNION ALL SELECT 'x'")
    (leaf,) = streaming_leaves(df)
    assert leaf.source_id == source_id_of(analyzed(streaming))
    assert leaf.description.startswith("StreamingRelation")


def test_a_file_leaf_scans_the_files_of_each_batch(
    c: Catalyst, spark: SparkSession, tmp_path: Path
) -> None:
    for day, lines in ((1, 2), (2, 3)):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "rows.json").write_text('{"n": 1}\n' * lines)
    df = spark.readStream.schema("n int, day int").json(str(tmp_path))
    compiler = QueryCompiler(df.where("n = 1"), "append")
    (source_id,) = compiler.outline().source_ids
    compiled = compiler.compile({source_id: FileLeaf()}, NO_STEPS, 1, single=True)
    for day, lines in ((1, 2), (2, 3)):
        batch = compiled.for_batch({source_id: [f"file://{tmp_path}/day={day}/rows.json"]})
        assert [tuple(c.python_row(row)) for row in batch.collect()] == [(1, day)] * lines
        assert batch.rows_scanned(source_id) == lines
    unpartitioned = compiler.compile({source_id: FileLeaf(())}, NO_STEPS, 1, single=True)
    with pytest.raises(PartitioningChangedError) as error:
        unpartitioned.for_batch({source_id: [f"file://{tmp_path}/day=1/rows.json"]})
    assert error.value.partition_columns == ("day",)


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
        # The positions of the parameters that a copy changes.
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


@pytest.mark.parametrize("single", [False, True])
def test_state_steps_stand_around_the_merge(single: bool, c: Catalyst, rows: DataFrame) -> None:
    names: list[str] = []

    def pass_on(batches: Any) -> Any:
        return batches

    def without_partition(batches: Any) -> Any:
        for batch in batches:
            yield batch.select(names)

    def steps(spec: AggregateSpec) -> Any:
        names.extend(spec.schema.names)
        return pass_on, without_partition

    execution = rows.groupBy("k").agg(F.sum("n").alias("n"))._jdf.queryExecution()
    plan, analyzed = execution.sparkPlan(), execution.analyzed()
    final = next(inner for inner in c.walk(plan) if is_final_over_partial(c, inner))
    aggregation = StatefulAggregation(c, steps, 2, single)
    written = written_aggregation(c, analyzed, analyzed)
    rebuilt, spec = aggregation.rebuild("0", final, final.child().child(), written)
    # A function has the same result id in both plans.
    kept = (KeptFunction("sum(n)", ("int",), ("bigint",)),)
    assert spec.layout == StateLayout(("string",), kept)
    assert (spec.key_count, spec.schema.simpleString()) == (1, "struct<k0:string,b0:bigint>")
    found_steps = [node for node in c.walk(rebuilt) if is_state_step(c, node)]
    assert len(found_steps) == 2
    preparing = c.module("org.apache.spark.sql.execution.QueryExecution")
    executed = preparing.prepareExecutedPlan(lasting_session(c), rebuilt)
    results = [tuple(c.python_row(row)) for row in executed.executeCollectPublic()]
    assert sorted(results, key=repr) == [("a", 4), ("b", 2), (None, 4)]


@pytest.mark.parametrize("single", [False, True])
def test_a_state_step_takes_the_place_of_a_deduplication(
    single: bool, c: Catalyst, rows: DataFrame
) -> None:
    def step(batches: Any) -> Any:
        for batch in batches:
            yield batch.select(["c0", "c1"])

    child = analyzed(rows)
    keys = c.items(child.output())[:1]
    deduplication = StatefulDeduplication(c, lambda spec: step, 2, single)
    plan, spec = deduplication.rebuild("0", keys, child, None, None)
    assert (spec.key_indexes, spec.keys) == ((0,), ("k string",))
    df = c.dataframe(plan)
    assert df.columns == ["k", "n"]
    assert df.rdd.getNumPartitions() == (1 if single else 2)
    assert df.count() == 4


def test_distinct_aggregates_are_computed_from_sets(c: Catalyst, spark: SparkSession) -> None:
    table = spark.sql(
        "SELECT * FROM VALUES (1, 0.0D, 1.5BD), (1, -0.0D, 2.5BD), (2, null, 2.5BD) AS t(a, b, d)"
    )
    functions = (
        "count(DISTINCT a)",
        "count(DISTINCT b)",
        "count(DISTINCT a, b)",
        "sum(DISTINCT d)",
        "avg(DISTINCT d)",
        "max(DISTINCT a)",
        "count(DISTINCT a) FILTER (WHERE a > 1)",
    )
    df = table.agg(*(F.expr(function) for function in functions))
    rewritten = with_sets(c, found(c, analyzed(df), "Aggregate"))
    assert rewritten.resolved()
    assert not any(
        part.isDistinct()
        for expression in c.expressions_of(rewritten)
        for part in c.parts(expression)
        if c.name(part) == "AggregateExpression"
    )
    assert tuple(c.dataframe(rewritten).first() or ()) == tuple(df.first() or ())


# -- the compiled plan -------------------------------------------------------------------------------


class RandomNumbers:
    """Gives one row in each task, never the same row twice; for a batch it is bound to, the batch's id."""

    batch_id: int | None = None

    def bound_to(self, context: BatchContext) -> RandomNumbers:
        bound = RandomNumbers()
        bound.batch_id = context.batch_id
        return bound

    def __call__(self, batches: Any) -> Any:
        for _ in batches:
            pass
        number = random.SystemRandom().getrandbits(30) if self.batch_id is None else self.batch_id
        columns = [pa.array([None], pa.timestamp("us", "UTC")), pa.array(["a"]),
                   pa.array([number], pa.int32())]  # fmt: skip
        yield pa.RecordBatch.from_arrays(columns, names=["t", "k", "n"])


def compiled_from(df: DataFrame) -> CompiledPlan:
    compiler = QueryCompiler(df, "append")
    (source_id,) = compiler.outline().source_ids
    return compiler.compile({source_id: SplitLeaf(RandomNumbers())}, NO_STEPS, 2, False, tasks=2)


@pytest.mark.parametrize("joins", [False, True])
def test_an_exchange_of_the_stream_is_computed_for_every_batch(
    joins: bool, c: Catalyst, streaming: DataFrame, rows: DataFrame
) -> None:
    df = streaming.join(rows.select("k").distinct(), "k") if joins else streaming
    compiled = compiled_from(df.repartition(2, "n").select("n"))
    assert compiled.lasting() is None
    seen = [c.python_row(row).n for _ in range(2) for row in compiled.for_batch({}).collect()]
    assert len(seen) == len(set(seen)) == 4


def test_a_plan_without_an_exchange_runs_for_every_batch(streaming: DataFrame) -> None:
    compiled = compiled_from(streaming.observe("seen", F.count("n").alias("rows")))
    for _ in range(2):
        batch = compiled.for_batch({})
        assert batch.count() == 2
        assert batch.metrics() == ([], {"seen": Row(rows=2)})
    plan, _ = compiled.lasting() or (None, None)
    assert plan is (compiled.lasting() or (None, None))[0]


def test_the_rows_of_a_batch_are_a_dataframe_for_its_sink(
    spark: SparkSession, streaming: DataFrame
) -> None:
    compiled = compiled_from(streaming.select("k"))
    context = BatchContext(0, 0)
    output = ComputedOutput(spark, compiled.for_batch({}), context, False, must_run_once=True)
    assert output.collected().collect() == [Row(k="a"), Row(k="a")]
    output = ComputedOutput(spark, compiled.for_batch({}), context, False, must_run_once=True)
    assert output.dataframe().collect() == [Row(k="a"), Row(k="a")]


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("must_run_once", [False, True])
def test_each_dataframe_stays_with_its_batch(
    must_run_once: bool, exchanged: bool, spark: SparkSession, streaming: DataFrame
) -> None:
    rows = streaming.repartition(2, "n") if exchanged else streaming
    compiled = compiled_from(rows.select("n"))
    kept = {
        number: ComputedOutput(
            spark, compiled.for_batch({}), BatchContext(number, 0), False, must_run_once
        ).dataframe()
        for number in (3, 1, 2)
    }
    assert {number: df.collect() for number, df in kept.items()} == {
        number: [Row(n=number), Row(n=number)] for number in kept
    }


# -- event time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time",
    [
        "timestamp'1970-01-01 00:00:02'",
        "struct(timestamp'1970-01-01 00:00:01' AS start, timestamp'1970-01-01 00:00:02' AS end)",
    ],
    ids=["timestamp", "window"],
)
def test_a_watermark_is_observed(
    time: str, c: Catalyst, streaming: DataFrame, spark: SparkSession
) -> None:
    node = found(c, analyzed(streaming.withWatermark("t", "90 seconds")), "EventTimeWatermark")
    assert delay_ms_of(c, node) == 90_000
    table = spark.sql(f"SELECT {time} t UNION ALL SELECT null")
    column = c.items(analyzed(table).output())[0]
    plan, spec = observed(c, _Watermark(node, column), analyzed(table), 0)
    assert spec == WatermarkSpec("tidemill.watermark.0", 90_000)
    execution = c.dataset(plan).queryExecution()
    physical = execution.executedPlan()
    physical.executeCollectPublic()
    collect = c.module("org.apache.spark.sql.execution.CollectMetricsExec").collect(physical)
    times = event_times(collect.get(spec.metric).get())
    assert times == EventTimes(1, 2_000_000, 2_000_000, 2_000_000.0)
    assert times.max_ms == 2_000
    assert is_watermark_metric(spec.metric)


def test_spark_refuses_a_watermark_on_a_time_without_a_zone(streaming: DataFrame) -> None:
    df = streaming.select(F.col("t").cast("timestamp_ntz"))
    with pytest.raises(AnalysisException, match="EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE"):
        df.withWatermark("t", "1 minute")


def test_the_delay_of_a_watermark_below_is_found(c: Catalyst, streaming: DataFrame) -> None:
    df = streaming.withWatermark("t", "2 minutes").dropDuplicatesWithinWatermark(["k"])
    node = found(c, analyzed(df), "DeduplicateWithinWatermark")
    assert [str(key.name()) for key in c.items(node.keys())] == ["k"]
    assert delay_ms_below(c, node.child()) == 120_000


def test_a_session_window_is_marked(c: Catalyst, streaming: DataFrame) -> None:
    df = streaming.groupBy(F.session_window("t", "5 minutes")).count()
    keys = c.items(found(c, analyzed(df), "Aggregate").groupingExpressions())
    assert any(key.toAttribute().metadata().contains("spark.sessionWindow") for key in keys)


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
