"""Event time: a query emits and drops, batch by batch, the same rows as on Structured Streaming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.sql.spark_streams import Step, by_spark, by_tidemill
from tests.sql.streams import LONG, FedQuery, Operation, plans

SCHEMA = "t timestamp, k string, n int"
NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def at(minutes: float, key: str | None = "a", n: int = 1) -> tuple[Any, ...]:
    return (NOON + timedelta(minutes=minutes), key, n)


def unknown(key: str = "a", n: int = 1) -> tuple[Any, ...]:
    return (None, key, n)


# The watermark is 10 minutes behind.
STEPS: list[Step] = [
    (0, [at(1), at(3, "b"), at(12), at(12, "b"), at(12, "b", 2), unknown()]),
    (0, [at(14.999), at(4), at(-30)]),
    # 12:20:00.0005: the watermark is a whole number of milliseconds.
    (0, [at(20.0000083), at(4.9, "c")]),
    (0, [at(5), at(10, "b"), at(9.99999), at(10.00001, "c"), at(2), unknown("b")]),
    (0, [at(61), at(55, None), at(20), at(10.5)]),
    (0, [at(30), at(62), at(61, "b", 7), at(61, "b", 7)]),
    (0, []),
]

TWO_STEPS: list[Step] = [
    (0, [at(1), at(30)]),
    (1, [at(2, "b"), at(12, "b")]),
    (0, [at(40), at(5)]),
    (1, [at(50, "b"), at(21, "b")]),
    (0, [at(3), at(41), at(70)]),
    (1, [at(71, "c"), at(22)]),
]


def windows(df: DataFrame, *window: str) -> DataFrame:
    return (
        df.withWatermark("t", "10 minutes")
        .groupBy(F.window("t", *window), "k")
        .agg(F.sum("n").alias("n"), F.count("*").alias("c"))
    )


def derived(df: DataFrame) -> DataFrame:
    """The watermark is on a computed column, and the result has no event time."""
    moved = df.withColumn("e", F.col("t") + F.expr("interval 7 minutes")).drop("t")
    grouped = moved.withWatermark("e", "10 minutes").groupBy("k", F.window("e", "5 minutes"))
    return grouped.agg(F.max("n").alias("n")).select("k", "n")


def time_of_window(df: DataFrame) -> DataFrame:
    return windows(df, "5 minutes").select(F.window_time("window").alias("t"), "k", "n")


def two_streams(a: DataFrame, b: DataFrame) -> DataFrame:
    rows = a.withWatermark("t", "10 minutes").unionByName(b.withWatermark("t", "20 minutes"))
    return rows.groupBy(F.window("t", "5 minutes"), "k").agg(F.sum("n").alias("n"))


def both_deduplicated(a: DataFrame, b: DataFrame) -> DataFrame:
    left = a.withWatermark("t", "10 minutes").dropDuplicates(["t", "k"])
    return left.unionByName(b.withWatermark("t", "20 minutes").dropDuplicates(["k"])).select(
        "k", "t"
    )


@dataclass(frozen=True)
class Case:
    name: str
    operation: Operation
    mode: str
    steps: Sequence[Step] = tuple(STEPS)
    settings: dict[str, Any] = field(default_factory=dict)
    # These run every time, the others only in a long run.
    always: bool = True

    @property
    def schemas(self) -> list[str]:
        return [SCHEMA] * (1 + max(stream for stream, _ in self.steps))


POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
ZONE = "spark.sql.session.timeZone"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"

CASES = [
    Case("tumbling, append", lambda df: windows(df, "5 minutes"), "append"),
    Case("tumbling, update", lambda df: windows(df, "5 minutes"), "update", always=False),
    Case("tumbling, complete", lambda df: windows(df, "5 minutes"), "complete", always=False),
    Case("sliding, append", lambda df: windows(df, "10 minutes", "4 minutes"), "append",
         always=False),
    Case("sliding, update", lambda df: windows(df, "10 minutes", "4 minutes"), "update", always=False),
    Case("a start of its own, in another zone", lambda df: windows(df, "1 day", "1 day", "90 minutes"),
         "update", settings={ZONE: "Asia/Kathmandu"}),
    Case("without batches without data", lambda df: windows(df, "5 minutes"), "append",
         settings={NO_DATA: "false"}, always=False),
    Case("by the time itself", lambda df: df.withWatermark("t", "10 minutes").groupBy("t").count(),
         "append", always=False),
    Case("derived and dropped", derived, "append", always=False),
    Case("window_time", time_of_window, "append", always=False),
    Case("two streams, the slower", two_streams, "append", TWO_STEPS),
    Case("two streams, the faster", two_streams, "append", TWO_STEPS, {POLICY: "max"}, False),
    Case("dropDuplicates with the time", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicates(["t", "k"]).select("t", "k"), "append"),
    Case("dropDuplicates without the time", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicates(["k"]).select("k", "t"), "append", always=False),
    Case("dropDuplicates of whole rows", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicates(), "update", always=False),
    Case("dropDuplicatesWithinWatermark", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicatesWithinWatermark(["k"]).select("k", "t"), "append"),
    Case("dropDuplicatesWithinWatermark of whole rows", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicatesWithinWatermark(), "append", always=False),
    Case("dropDuplicates, then windows", lambda df: df.withWatermark("t", "10 minutes")
         .dropDuplicates(["t", "k"]).groupBy(F.window("t", "5 minutes")).count(), "append",
         always=False),
    Case("windows, then dropDuplicates", lambda df: windows(df, "5 minutes")
         .dropDuplicates(["window", "n"]).select("window", "n"), "append", always=False),
    Case("both sides of a union", both_deduplicated, "append", TWO_STEPS),
]  # fmt: skip


def same_as_spark(case: Case, steps: Sequence[Step], spark: SparkSession, folder: Path) -> None:
    expected = by_spark(
        spark, case.schemas, case.operation, case.mode, steps, folder, case.settings
    )
    with plans(lambda batch_id: batch_id % 3 == 1):
        ours = by_tidemill(
            spark, case.schemas, case.operation, case.mode, steps, folder, case.settings, 4
        )
    assert ours.batches == expected.batches
    assert ours.dropped == expected.dropped


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.always or LONG], ids=lambda case: case.name
)
def test_every_batch_gives_what_spark_gives(
    case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    same_as_spark(case, case.steps, spark, tmp_path)


ROWS = st.builds(
    lambda tenths, key, n: at(tenths / 10, key, n),
    st.integers(0, 1500),
    st.sampled_from(["a", "b", None]),
    st.integers(0, 2),
)


@pytest.mark.parametrize("case", CASES if LONG else CASES[:1], ids=lambda case: case.name)
def test_whatever_the_rows_are(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    numbers = iter(range(1_000_000))
    streams = len(case.schemas)

    @settings(max_examples=5 if LONG else 1, phases=[Phase.generate])
    @given(
        st.lists(
            st.tuples(st.integers(0, streams - 1), st.lists(ROWS, max_size=8)),
            min_size=5,
            max_size=9,
        )
    )
    def check(steps: list[Step]) -> None:
        same_as_spark(case, steps, spark, tmp_path / str(next(numbers)))

    check()


def test_rows_before_1970_are_not_late_before_there_is_a_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's watermark is 0 before the first event, and it drops the rows before that."""
    old = (datetime(1969, 7, 20, 20, 17, tzinfo=UTC), "moon", 1)
    with FedQuery(
        spark, SCHEMA, lambda df: windows(df, "5 minutes"), "update", tmp_path, ["window", "k"]
    ) as query:
        query.feed([old])
        query.restart()
        query.feed([old])
        assert query.late_rows() == 0
        assert query.result() == query.expected()
        query.feed([at(1)])
        query.feed([old])
        assert query.late_rows() == 1
