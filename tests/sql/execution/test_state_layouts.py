"""A query that starts again with other types, functions or windows uses its state rightly, or is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.checkpoint.drawings import write_unchecked
from tests.sql.streams import settings_of
from tidemill.errors import CheckpointError
from tidemill.sql.execution.checkpoint import query_plan
from tidemill.sql.execution.checkpoint.layout_changes import change_of_layout
from tidemill.sql.execution.checkpoint.query_plan import QueryPlan
from tidemill.tasks.state_layout import KeptFunction, StateLayout

Operation = Callable[[DataFrame], DataFrame]


class Restarts:
    """A query over JSON files whose program is another one at each start."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.input = root / "in"
        self.input.mkdir()
        self.checkpoint = root / "checkpoint"
        self.files = 0

    def run(
        self, schema: str, operation: Operation, *rows: dict[str, Any], mode: str = "update"
    ) -> list[Any]:
        """Add rows, start the query, let it read them, and return what it has written."""
        self.files += 1
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.input / f"{self.files}.json").write_text(text)
        written: list[Any] = []
        df = operation(self.spark.readStream.schema(schema).json(str(self.input)))
        writer = df.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(lambda out, _: written.extend(out.collect())).start()
        query.awaitTermination()
        return sorted(tuple(row) for row in written)

    def refusal(self, schema: str, operation: Operation) -> str:
        """Return why the query is refused, which has changed nothing in its checkpoint."""
        before = self.content()
        with pytest.raises(CheckpointError) as error:
            self.run(schema, operation)
        assert self.content() == before
        return str(error.value)

    def content(self) -> dict[Path, bytes]:
        # Without the files that say who uses the directory.
        return {p: p.read_bytes() for p in self.checkpoint.rglob("[!.o]*") if p.is_file()}

    @property
    def plan(self) -> Path:
        return self.checkpoint / "plan"


@pytest.fixture
def restarts(spark: SparkSession, tmp_path: Path) -> Restarts:
    return Restarts(spark, tmp_path)


def by_key(*functions: str) -> Operation:
    return lambda df: df.groupBy("k").agg(*(F.expr(function) for function in functions))


def test_another_type_of_an_argument_is_refused_by_name_or_means_the_same(
    restarts: Restarts,
) -> None:
    assert restarts.run("k string, v int", by_key("sum(v)"), {"k": "a", "v": 1000}) == [("a", 1000)]
    assert restarts.refusal("k string, v double", by_key("sum(v)")) == (
        f"{restarts.checkpoint} has state that this query cannot use. Operator 0, aggregation by k string of "
        "sum(v): sum(v) was computed of int, and is now of double. Cast the column to what it was, or give "
        "the changed query a new checkpointLocation, to read its input from the beginning. Nothing has been "
        "changed."
    )
    # Sums of ints are kept as bigints: the state is one of both.
    row = {"k": "a", "v": 5}
    assert restarts.run("k string, v bigint", by_key("sum(v)"), row) == [("a", 1005)]
    cast: Operation = lambda df: by_key("sum(v)")(df.withColumn("v", df.v.cast("int")))  # noqa: E731
    assert restarts.run("k string, v double", cast, row) == [("a", 1010)]


def test_functions_are_known_by_their_names_not_by_their_places(restarts: Restarts) -> None:
    schema = "k string, v int not null"
    first = by_key("sum(v)", "max(v)", "count(v)", "avg(DISTINCT v)")
    rows = [{"k": "a", "v": 10}, {"k": "a", "v": 5}]
    assert restarts.run(schema, first, *rows) == [("a", 15, 10, 2, 7.5)]
    # Spark keeps count(1) for a column without nulls, and count(v) for one with them.
    turned = by_key("avg(DISTINCT v)", "count(v)", "max(v)", "sum(v)")
    rows = [{"k": "a", "v": 3}, {"k": "a", "v": None}]
    assert restarts.run("k string, v int", turned, *rows) == [("a", 6.0, 3, 10, 18)]
    assert restarts.run(schema, first, {"k": "a", "v": 2}) == [("a", 20, 10, 4, 5.0)]
    assert "Operator 0 was\n    aggregation by k string of sum(v), max(v)" in restarts.refusal(
        schema, by_key("sum(v)", "min(v)", "count(v)", "avg(DISTINCT v)")
    )


def test_a_function_that_the_result_does_not_use_has_no_state(restarts: Restarts) -> None:
    schema = "k string, a int, b int"

    def only(column: str) -> Operation:
        return lambda df: by_key("sum(a) AS x", "sum(b) AS y")(df).select("k", column)

    assert restarts.run(schema, only("x"), {"k": "a", "a": 100, "b": 1}) == [("a", 100)]
    assert "the state has sum(a), and the result of this query needs sum(b)." in restarts.refusal(
        schema, only("y")
    )
    # A function that was never computed may go.
    assert restarts.run(schema, by_key("sum(a)"), {"k": "a", "a": 1, "b": 1}) == [("a", 101)]


@pytest.mark.parametrize(
    ("window", "now"),
    [
        (["5 minutes"], "window of 300 s"),
        (["10 minutes", "5 minutes"], "window of 300 s, 600 s"),
        (["10 minutes", "10 minutes", "3 minutes"], "window of 180 s, 600 s"),
    ],
)
def test_another_window_is_refused(restarts: Restarts, window: list[str], now: str) -> None:
    def grouped(*lengths: str) -> Operation:
        return lambda df: df.groupBy(F.window("t", *lengths)).count().select("count")

    row = {"t": "2020-01-01T00:01:00Z"}
    assert restarts.run("t timestamp", grouped("10 minutes"), row) == [(1,)]
    assert f"it was grouped by window of 600 s, and is now by {now}." in restarts.refusal(
        "t timestamp", grouped(*window)
    )
    assert restarts.run("t timestamp", grouped("10 minutes"), row) == [(2,)]


def test_a_rule_of_the_optimizer_that_changes_the_buffers_is_named(restarts: Restarts) -> None:
    rules = "org.apache.spark.sql.catalyst.optimizer.DecimalAggregates"
    schema = "k string, v decimal(8,2)"
    restarts.run(schema, by_key("sum(v)"), {"k": "a", "v": 1.5})
    with settings_of(restarts.spark, spark__sql__optimizer__excludedRules=rules):
        assert (
            "sum(v) was kept as bigint, and would now be kept as decimal(18,2), boolean. Settings of the "
            "session (spark.sql.optimizer.excludedRules"
            in restarts.refusal(schema, by_key("sum(v)"))
        )


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").count()


def without_matches(df: DataFrame) -> DataFrame:
    return df.join(df.sparkSession.createDataFrame([], "k string"), "k")


# A query with a part that never has rows; what has to come of the same row, read once by that query and
# twice by the one without that part; the output mode.
NEVER_ANY_ROWS: dict[str, tuple[Operation, Operation, list[Any], str]] = {
    "below": (lambda df: counted(df.filter("false")), counted, [("a", 2)], "update"),
    "below, complete": (lambda df: counted(df.filter("false")), counted, [("a", 2)], "complete"),
    "null": (lambda df: counted(df.filter("k = null")), counted, [("a", 2)], "update"),
    "above": (lambda df: counted(df).filter("1 = 0"), counted, [("a", 3)], "update"),
    "limit": (lambda df: counted(df).limit(0), counted, [("a", 3)], "complete"),
    "join below": (lambda df: counted(without_matches(df)), counted, [("a", 2)], "update"),
    "join above": (lambda df: without_matches(counted(df)), counted, [("a", 3)], "update"),
    "duplicates above": (
        lambda df: df.dropDuplicates(["k"]).filter("false"),
        lambda df: df.dropDuplicates(["k"]),
        [],
        "append",
    ),
    "duplicates below": (
        lambda df: df.filter("false").dropDuplicates(["k"]),
        lambda df: df.dropDuplicates(["k"]),
        [("a",)],
        "append",
    ),
}


@pytest.mark.parametrize("case", NEVER_ANY_ROWS)
def test_an_operator_keeps_its_state_where_the_optimizer_proves_that_no_row_comes(
    restarts: Restarts, case: str
) -> None:
    empty, full, result, mode = NEVER_ANY_ROWS[case]
    row = {"k": "a"}
    assert restarts.run("k string", empty, row, mode=mode) == []
    assert restarts.run("k string", full, row, row, mode=mode) == result
    # The state stays, and in complete mode it is the result.
    whole = result if case == "below, complete" else []
    assert restarts.run("k string", empty, mode=mode) == whole
    assert restarts.run("k string", empty, row, mode=mode) == whole


def test_a_checkpoint_that_does_not_say_its_types_gets_them_at_the_next_start(
    restarts: Restarts, caplog: pytest.LogCaptureFixture
) -> None:
    restarts.run("k string, v int", by_key("sum(v)"), {"k": "a", "v": 1000})
    written = restarts.plan.read_bytes()
    version, line = restarts.plan.read_text().split("\n")
    value = json.loads(line)
    del value["operators"][0]["layout"]
    write_unchecked(restarts.plan, f"{version}\n{json.dumps(value)}")
    with caplog.at_level(logging.INFO, query_plan.__name__):
        row = {"k": "a", "v": 5}
        assert restarts.run("k string, v int", by_key("sum(v)"), row) == [("a", 1005)]
    (said,) = [each.getMessage() for each in caplog.records if each.name == query_plan.__name__]
    assert said == (
        f"{restarts.checkpoint} does not say yet which types the state of operator 0 has. They are taken to "
        "be those of the query as it is now, and a later start with others is refused: sum(v) of int"
    )
    assert restarts.plan.read_bytes() == written
    assert "was computed of int" in restarts.refusal("k string, v double", by_key("sum(v)"))


def test_the_drawing_of_the_file_can_be_parsed() -> None:
    drawing = (query_plan.__doc__ or "").split("::\n\n")[1].split("\n\n")[0]
    version, *lines = (line.strip() for line in drawing.splitlines())
    text = f"{version}\n{''.join(lines)}"
    plan = QueryPlan.parse(text)
    assert plan.operators[0].layout == StateLayout(
        ("string",), (KeptFunction("sum(n)", ("int",), ("bigint",)),)
    )
    assert plan.to_text() == text


@pytest.mark.parametrize(
    ("function", "before", "now", "is_same"),
    [
        ("sum(v)", "tinyint", "bigint", True),
        ("sum(v)", "float", "double", True),
        ("sum(v)", "bigint", "double", False),
        # Small decimals are added up without their point.
        ("sum(v)", "decimal(8,2)", "bigint", False),
        ("sum(v)", "decimal(8,2)", "decimal(8,3)", False),
        ("avg(v)", "int", "double", True),
        ("avg(v)", "int", "decimal(8,2)", False),
        ("count(v)", "int", "string", True),
        ("count(DISTINCT v)", "int", "bigint", False),
        ("max(v)", "timestamp", "timestamp_ntz", False),
        ("max(v)", "int", "bigint", False),
        # Its buffers have hashes, and an int has another hash than a bigint.
        ("approx_count_distinct(v)", "int", "bigint", False),
        ("collect_list(v)", "int", "bigint", False),
    ],
)
def test_types_among_which_buffers_mean_the_same(
    function: str, before: str, now: str, is_same: bool
) -> None:
    def layout(kind: str) -> StateLayout:
        return StateLayout(("string",), (KeptFunction(function, (kind,), ("bigint",)),))

    assert change_of_layout(layout(before), layout(before)) is None
    for pair in [(before, now), (now, before)]:
        assert (change_of_layout(*map(layout, pair)) is None) == is_same
