"""Every row gets into the state, also if the operations after it do not read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.streams import FedQuery, plans, settings_of
from tests.sql.streams import counted as rows_counted

BATCHES: list[list[Any]] = [
    [(number % 7, number) for number in range(30)],
    [],
    [(number % 11, number) for number in range(30)],
    [(3, 100), (10, 100)],
]


def nothing(_: Iterator[Any]) -> Iterator[Any]:
    """A ``mapInArrow`` function that does not read its input."""
    yield from ()


def first(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame[:1]
        return


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(F.count("*").alias("n"))


def unique(df: DataFrame) -> DataFrame:
    return df.dropDuplicates(["k"])


def joined(operation: Callable[[DataFrame], DataFrame], kind: str = "inner") -> Any:
    def join(df: DataFrame, empty: DataFrame) -> DataFrame:
        return operation(df).join(empty, "k", kind)

    return join


def through(operation: Callable[[DataFrame], DataFrame], function: Any) -> Any:
    def pass_through(df: DataFrame, empty: DataFrame) -> DataFrame:
        rows = operation(df)
        return rows.mapInPandas(function, rows.schema)

    return pass_through


CASES: dict[str, tuple[str, Any]] = {
    "counts and an empty table": ("update", joined(counted)),
    "unique rows and an empty table": ("append", joined(unique)),
    "unique rows that are in no table": ("append", joined(unique, "left_semi")),
    "an empty table on the left": (
        "update",
        lambda df, empty: empty.join(counted(df), "k", "inner"),
    ),
    "two joins and two states": (
        "complete",
        lambda df, empty: counted(unique(df).join(empty, "k").select("k")).join(empty, "k"),
    ),
    "counts that nobody reads": ("complete", through(counted, nothing)),
    "unique rows of which the first is read": ("append", through(unique, first)),
}


@pytest.fixture
def empty(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Return an empty table that the optimizer does not know to be empty."""
    path = str(tmp_path / "table")
    spark.createDataFrame([(1, 1)], "k int, other int").write.parquet(path)
    return spark.read.parquet(path).filter("other > 1")


@pytest.mark.parametrize(
    ("case", "broadcast"),
    [(case, True) for case in CASES]
    + [(case, False) for case in ("an empty table on the left", "two joins and two states")],
)
def test_state_is_computed_to_its_end(
    case: str, broadcast: bool, empty: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    mode, operation = CASES[case]
    threshold = {"spark.sql.autoBroadcastJoinThreshold": 10_000_000 if broadcast else -1}
    with (
        settings_of(spark, **threshold),
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(
            spark, "k int, n int", lambda df: operation(df, empty), mode, tmp_path / "c", ["k"]
        ) as query,
    ):
        keys: set[int] = set()
        for number, rows in enumerate(BATCHES):
            if number == 2:
                query.restart()
            query.feed(rows)
            keys |= {row[0] for row in rows}
            if rows:
                nearest_to_the_source = query.query.recentProgress[-1].stateOperators[-1]
                assert nearest_to_the_source.numRowsTotal == len(keys)


def test_limit_takes_some_rows_of_the_whole_result(spark: SparkSession, tmp_path: Path) -> None:
    with (
        plans(lambda batch_id: batch_id % 2 == 1),
        FedQuery(
            spark, "k int, n int", lambda df: counted(df).limit(3), "complete", tmp_path
        ) as query,
    ):
        for number, rows in enumerate(BATCHES):
            if number == 2:
                query.restart()
            query.feed(rows)
            (df,) = query.batch_inputs()
            result = query.result()
            assert sum(result.values()) == 3
            assert result <= rows_counted(counted(df).collect())
