"""``current_timestamp()`` and the like are the time of the batch, wherever a query asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.batches import Batches, stopped_at_end
from tests.sql.streams import plans, settings_of
from tidemill.sources.memory_stream import MemoryStream
from tidemill.spark.compiler.query_compiler import QueryCompiler
from tidemill.testing import ManualClock

TIME_MS = 86_400_000 + 3_723_004
TIME = "1970-01-02 01:02:03.004"
LATER = "TIMESTAMP '1970-01-03 00:00:00'"

QUERIES: dict[str, tuple[str, str, list[tuple[Any, ...]]]] = {
    # A row of a table, by a condition that only holds at the time of the batch.
    "join condition": (
        "append",
        f"SELECT s.id FROM s JOIN t ON s.id = t.id AND current_timestamp() < {LATER}",
        [(1,)],
    ),
    "outer join condition": (
        "append",
        f"SELECT s.id, t.id FROM s LEFT JOIN t ON s.id = t.id AND now() < {LATER}",
        [(1, 1)],
    ),
    "grouping sets": (
        "complete",
        "SELECT string(current_timestamp()) d, count(*) FROM s GROUP BY CUBE(current_timestamp())",
        [(None, 1), (TIME, 1)],
    ),
    "rollup": (
        "complete",
        "SELECT id, d, count(*) FROM (SELECT id, string(now()) d FROM s) GROUP BY ROLLUP(id, d)",
        [(None, None, 1), (1, None, 1), (1, TIME, 1)],
    ),
    "aggregate": (
        "complete",
        "SELECT string(max(localtimestamp())), count(*) FILTER (WHERE current_date() < '1970-01-03') FROM s",
        [(TIME, 1)],
    ),
    "order": (
        "complete",
        f"SELECT id, count(*) FROM s GROUP BY id ORDER BY if(now() < {LATER}, id, 1 / 0)",
        [(1, 1)],
    ),
    "scalar subquery": (
        "append",
        "SELECT (SELECT string(max(now())) FROM t), (SELECT string(current_time()))  FROM s",
        [(TIME, "01:02:03.004")],
    ),
    "subquery that is a join": (
        "append",
        f"SELECT id FROM s WHERE id IN (SELECT id FROM t WHERE current_timestamp() < {LATER})",
        [(1,)],
    ),
    "table": (
        "append",
        "SELECT at FROM s JOIN (SELECT id, string(now()) at FROM t) USING (id)",
        [(TIME,)],
    ),
    "explode": (
        "append",
        "SELECT explode(array(string(now()), string(current_timestamp()))) FROM s",
        [(TIME,)] * 2,
    ),
    "nested": (
        "append",
        "SELECT unix_timestamp(), transform(array(1), x -> unix_millis(now()) + x) FROM s",
        [(TIME_MS // 1000, [TIME_MS + 1])],
    ),
}


@pytest.fixture
def stream() -> Iterator[MemoryStream]:
    stream = MemoryStream("id int", keep=True)
    stream.add([(1,)])
    yield stream
    stream.close()


def first_batch(df: DataFrame, folder: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    """Return the rows of a batch whose time is ``TIME_MS``."""
    batches = Batches()
    clock = ManualClock(TIME_MS)
    query = batches.start(df, folder, mode=mode, clock=clock, trigger={"availableNow": True})
    with stopped_at_end(query):
        query.awaitTermination()
    return sorted((tuple(row) for row in batches.rows[0]), key=str)


@pytest.mark.parametrize("parallel", [False, True], ids=["one task", "parallel"])
@pytest.mark.parametrize("name", QUERIES)
def test_the_time_of_the_batch_is_everywhere(
    name: str, parallel: bool, spark: SparkSession, stream: MemoryStream, tmp_path: Path
) -> None:
    mode, text, expected = QUERIES[name]
    spark.readStream.format(stream.name).load().createOrReplaceTempView("s")
    spark.createDataFrame([(1,)], "id int").createOrReplaceTempView("t")
    with plans(lambda batch_id: parallel):
        rows = first_batch(spark.sql(text), tmp_path, mode)
    assert rows == sorted(expected, key=str)


def test_the_argument_of_a_python_function(
    spark: SparkSession, stream: MemoryStream, tmp_path: Path
) -> None:
    text: Callable[..., Any] = F.udf(lambda value: str(value), "string")
    df = spark.readStream.format(stream.name).load().select(text(F.expr("unix_millis(now())")))
    assert first_batch(df, tmp_path) == [(str(TIME_MS),)]


def test_the_time_of_day_in_the_zone_of_the_session(
    spark: SparkSession, stream: MemoryStream, tmp_path: Path
) -> None:
    functions = (
        "current_time()",
        "current_time(0)",
        "current_time(2)",
        "localtimestamp()",
        "curdate()",
    )
    with settings_of(spark, spark__sql__session__timeZone="Asia/Tokyo"):
        df = spark.readStream.format(stream.name).load()
        df = df.selectExpr(*(f"string({function})" for function in functions))
        assert first_batch(df, tmp_path) == [
            ("10:02:03.004", "10:02:03", "10:02:03", "1970-01-02 10:02:03.004", "1970-01-02")
        ]


def test_names_of_users_and_catalogs_do_not_ask_for_the_time(
    spark: SparkSession, stream: MemoryStream
) -> None:
    df = spark.readStream.format(stream.name).load()
    df = df.selectExpr(
        "current_user()", "current_catalog()", "current_schema()", "current_timezone()"
    )
    assert not QueryCompiler(df, "append").outline().reads_the_clock
