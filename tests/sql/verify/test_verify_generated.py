"""``verify()`` over generated input: rows that come late, restarts, all output modes, and forged sinks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from tests.sql.streams import LONG, counted
from tidemill.testing import MemoryStream

SCHEMA = "name string, at timestamp"
WINDOW_S, DELAY_S = 10, 5
EXAMPLES = 40 if LONG else 2

Feed = list[tuple[str, int]]
"""The rows of one batch: a name and a second."""

feeds = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)
LATE: list[Feed] = [[("a", 1)], [("a", 50)], [("a", 2)] * 3 + [("b", 3), ("b", 52)]]


def windows(df: DataFrame) -> DataFrame:
    timed = df.withWatermark("at", f"{DELAY_S} seconds")
    return timed.groupBy(sql.window("at", f"{WINDOW_S} seconds"), "name").count()


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@dataclass
class Verified:
    """A windowed count that writes to a sink, what it was fed, and how many rows of that were late."""

    spark: SparkSession
    folder: Path
    mode: str
    sink: str
    stream: MemoryStream = field(default_factory=lambda: MemoryStream(SCHEMA, keep=True))
    fed: list[tuple[str, datetime]] = field(default_factory=list)
    late_rows: int = 0
    watermark_s: int = 0
    query: Any = None

    def start(self) -> None:
        df = windows(self.spark.readStream.format(self.stream.name).load())
        writer = df.writeStream.outputMode(self.mode).format(self.sink).queryName("generated")
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if self.sink == "parquet":
            writer = writer.option("path", str(self.folder / "out"))
        self.query = writer.start()

    def feed(self, rows: Feed) -> None:
        if self.mode != "complete" and self.watermark_s:
            self.late_rows += sum(
                second // WINDOW_S * WINDOW_S + WINDOW_S <= self.watermark_s for _, second in rows
            )
        timed = [(name, at(second)) for name, second in rows]
        self.stream.add(timed)
        self.fed += timed
        self.query.processAllAvailable()
        reached = max(int(when.timestamp()) for _, when in self.fed) - DELAY_S
        self.watermark_s = max(self.watermark_s, reached)

    def restart(self) -> None:
        self.query.stop()
        self.start()

    def batch(self) -> DataFrame:
        return windows(self.spark.createDataFrame(self.fed, SCHEMA))

    def is_equal(self) -> bool:
        """Say by other means whether the sink has what the batch query gives."""
        expected = self.batch()
        if self.mode == "append":  # the others are not due yet
            due = sql.col("window.end") <= sql.lit(at(self.watermark_s))
            expected = expected.where(due if self.watermark_s > 0 else sql.lit(False))
        return counted(expected.collect()) == self.written()

    def written(self) -> Counter[Any]:
        if self.sink == "parquet":
            out = self.spark.read.schema(self.batch().schema).parquet(str(self.folder / "out"))
            return counted(out.collect())
        rows = self.spark.table("generated").collect()
        if self.mode == "update":
            rows = list({(row.window, row.name): row for row in rows}.values())
        return counted(rows)

    def forge(self, change: Callable[[list[Any]], list[Any]]) -> None:
        """Change the rows of the sink behind the query's back."""
        if self.sink == "parquet":
            file = next(
                file
                for file in sorted((self.folder / "out").glob("part-*"))
                if pq.read_metadata(file).num_rows
            )
            rows = [row.asDict() for row in self.spark.read.parquet(f"file://{file}").collect()]
            forged = [tuple(row.values()) for row in change(rows)]
            copy = self.folder / "forged"
            df = self.spark.createDataFrame(forged, self.batch().schema)
            df.coalesce(1).write.parquet(str(copy))
            shutil.copy(next(copy.glob("part-*")), file)
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
            return
        view = self.spark.table("generated")
        rows = [row.asDict() for row in view.collect()]
        table = self.query._execution._spec.sinks[0]._table
        forged = [tuple(row.values()) for row in change(rows)]
        table._sink.clear()
        table.write(
            10**6, table.rows_of(self.spark.createDataFrame(forged, view.schema).coalesce(1)), False
        )

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
        self.stream.close()


def without_last(rows: list[Any]) -> list[Any]:
    return rows[:-1]


def with_last_twice(rows: list[Any]) -> list[Any]:
    return [*rows, rows[-1]]


def with_last_changed(rows: list[Any]) -> list[Any]:
    return [*rows[:-1], {**rows[-1], "count": rows[-1]["count"] + 1}]


@contextmanager
def verified(spark: SparkSession, folder: Path, mode: str, sink: str) -> Any:
    world = Verified(spark, folder, mode, sink)
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.mark.parametrize(
    ("mode", "sink", "restarts"),
    [
        ("append", "memory", False),
        ("append", "parquet", True),
        ("update", "memory", False),
        ("complete", "memory", True),
    ],
)
def test_it_is_true_if_the_sink_has_what_the_batch_gives(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    mode: str,
    sink: str,
    restarts: bool,
) -> None:
    forgeries = [without_last, with_last_changed]
    if (
        mode != "update"
    ):  # where a later row takes the place of an earlier one, its copy is no other
        forgeries.append(with_last_twice)

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
    @given(feeds, st.sets(st.integers(0, 3)), st.sampled_from(forgeries))
    @example(LATE, {1, 2}, forgeries[-1])
    def check(batches: list[Feed], restart_before: set[int], forgery: Any) -> None:
        folder = tmp_path_factory.mktemp("generated")
        with verified(spark, folder, mode, sink) as world:
            for number, rows in enumerate(batches):
                if restarts and number and number in restart_before:
                    world.restart()
                world.feed(rows)
            report = world.query.verify()
            assert report.late_rows == world.late_rows, report
            assert bool(report) == world.is_equal(), report
            assert not (report and "different" in str(report))
            assert report.rows == world.batch().count()
            if report and world.written():
                world.forge(forgery)
                forged = world.query.verify()
                assert not forged, forged
                assert "equal" not in str(forged)

    check()


def test_late_rows_are_counted_through_restarts_of_any_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    with verified(spark, tmp_path, "update", "noop") as world:
        for rows in LATE:
            world.feed(rows)
        world.restart()
        for rows in ([("a", 4)] * 1000, [("b", 90)], [("a", 70), ("b", 70)]):
            world.feed(rows)
            world.restart()
        report = world.query.verify()
        assert report.late_rows == world.late_rows == 4 + 1000 + 2
        assert not report
        assert report.not_compared.endswith("cannot be read back")
        assert str(report).startswith("not known after batch")
        assert "dropped, because late: 1,006 rows" in str(report)
