"""Queries that get more input than they can process, on a clock that their work moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.waiting import wait_for
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.common.clock import never
from tidemill.sql.execution.query_sources import FIRST_RATE_PER_S
from tidemill.testing import ManualClock, MemoryStream

INTERVAL_MS = 1000
EVERY_SECOND = {"processingTime": "1 second"}


class WorkingClock(ManualClock):
    """Jumps to the time that the query waits for."""

    def wait_till(self, target_ms: int, interrupted: Callable[[], bool] = never) -> bool:
        if interrupted():
            return False
        if target_ms > self.now_ms():
            self.set_to(target_ms)
        return True


class Slow:
    """A query whose batches take a time per row and a time per batch."""

    def __init__(
        self, df: DataFrame, checkpoint: Path, ms_per_row: float, start_ms: int = 0
    ) -> None:
        self.df = df
        self.checkpoint = checkpoint
        self.ms_per_row = ms_per_row
        self.ms_per_batch = 50
        self.clock = WorkingClock(start_ms)
        self.sizes: list[int] = []
        self.query: Any = None
        self.batches_wanted = 0

    def _work(self, df: DataFrame, batch_id: int) -> None:
        if len(self.sizes) >= self.batches_wanted:
            self.query.stop()  # the batch is not one of those that the test asked for
            return
        rows = df.count()
        self.sizes.append(rows)
        self.clock.advance(int(self.ms_per_batch + self.ms_per_row * rows))

    def run(
        self, batches: int, trigger: dict[str, Any] | None = EVERY_SECOND, **options: Any
    ) -> list[int]:
        """Run this many batches and return the number of rows of each."""
        before, self.batches_wanted = len(self.sizes), len(self.sizes) + batches
        writer: Any = self.df.writeStream.foreachBatch(self._work).clock(self.clock)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if trigger is not None:
            writer = writer.trigger(**trigger)
        for name, value in options.items():
            writer = writer.option(name, value)
        self.query = writer.start()
        try:
            # One batch more stops the query from inside, and is committed, unless all rows have been read.
            wait_for(lambda: not self.query.isActive or self._has_read_all(), f"{batches} batches")
        finally:
            self.query.stop()
        assert self.query.exception() is None
        return self.sizes[before:]

    def _has_read_all(self) -> bool:
        is_idle = self.query.status["message"] == "Waiting for data to arrive"
        return is_idle and len(self.sizes) >= self.batches_wanted

    def took_ms(self, rows: int) -> float:
        return self.ms_per_batch + self.ms_per_row * rows


@pytest.fixture(scope="module")
def many(spark: SparkSession) -> Iterator[DataFrame]:
    """A stream of forty thousand rows, in portions of ten."""
    stream = MemoryStream("n long", keep=True)
    for portion in range(4000):
        stream.add([(n,) for n in range(portion * 10, portion * 10 + 10)])
    yield spark.readStream.format(stream.name).load()
    stream.close()


def test_without_it_a_batch_takes_all_there_is(many: DataFrame, tmp_path: Path) -> None:
    assert Slow(many, tmp_path / "c", 1).run(1) == [40_000]


def test_batches_come_to_fit_the_interval(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=1)
    sizes = slow.run(8, backpressure=True)
    assert sizes[0] == FIRST_RATE_PER_S * INTERVAL_MS / 1000
    # The first batch took ten intervals, which decides how large the second may be.
    assert all(slow.took_ms(rows) <= 1.05 * INTERVAL_MS for rows in sizes[1:])
    assert all(slow.took_ms(rows) >= 0.8 * INTERVAL_MS for rows in sizes[1:]), sizes


def test_a_batch_that_is_late_is_made_up_for(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=0.5)
    # On time, until one batch takes four intervals for another reason.
    sizes = slow.run(3, backpressure=True)
    slow.ms_per_batch = 4000
    sizes += slow.run(1, backpressure=True)
    slow.ms_per_batch = 50
    sizes += slow.run(6, backpressure=True)
    assert slow.took_ms(sizes[-1]) == pytest.approx(INTERVAL_MS, rel=0.15), sizes


def test_the_first_batch_takes_the_initial_rate(
    spark: SparkSession, many: DataFrame, tmp_path: Path
) -> None:
    # As if the session had started with them: Spark Streaming's settings cannot be changed later.
    conf = spark._jsparkSession.sessionState().conf()
    conf.setConfString("spark.streaming.backpressure.enabled", "true")
    conf.setConfString("spark.streaming.backpressure.initialRate", "70")
    try:
        sizes = Slow(many, tmp_path / "c", ms_per_row=1).run(5)
    finally:
        conf.unsetConf("spark.streaming.backpressure.enabled")
        conf.unsetConf("spark.streaming.backpressure.initialRate")
    assert sizes[0] == 70
    assert sizes == sorted(sizes)
    assert sizes[-1] > 800


def test_a_slower_pipeline_gets_less_and_a_faster_one_more(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=1)
    slow.run(4, backpressure=True)
    slow.ms_per_row = 4
    assert slow.took_ms(slow.run(4, backpressure=True)[-1]) == pytest.approx(INTERVAL_MS, rel=0.2)
    slow.ms_per_row = 0.5
    assert slow.took_ms(slow.run(4, backpressure=True)[-1]) == pytest.approx(INTERVAL_MS, rel=0.2)


def test_rates_survive_a_restart(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=1)
    last = slow.run(6, backpressure=True)[-1]
    offsets = BatchLog(open_storage(str(tmp_path / "c"))).load().offsets
    assert offsets[max(offsets)].rates_per_s["0"] == pytest.approx(950, rel=0.1)
    assert slow.run(1, backpressure=True)[0] == pytest.approx(last, rel=0.1)


def test_without_an_interval_batches_take_about_a_second(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=0.5)
    sizes = slow.run(6, trigger=None, backpressure=True)
    assert all(slow.took_ms(rows) == pytest.approx(1000, rel=0.1) for rows in sizes[2:]), sizes


def test_the_maximum_rate_holds_always(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=0.01)
    assert slow.run(3, maxRatePerSecond=200) == [200, 200, 200]
    assert slow.run(3, maxRatePerSecond=500, backpressure=True) == [500, 500, 500]


def test_the_maximum_rate_holds_without_an_interval(many: DataFrame, tmp_path: Path) -> None:
    slow = Slow(many, tmp_path / "c", ms_per_row=0.01)
    sizes = slow.run(5, trigger=None, maxRatePerSecond=200)
    assert sizes == [200] * 5
    times = [
        record.batch_time_ms
        for record in BatchLog(open_storage(str(tmp_path / "c"))).load().offsets.values()
    ]
    assert times[:5] == [0, 1000, 2000, 3000, 4000]


def test_files_are_taken_by_the_size_of_their_records(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(250):
        lines = [json.dumps({"n": n, "text": "x" * 40}) for n in range(40)]
        (folder / f"{number:04}.json").write_text("\n".join(lines))
    df = spark.readStream.schema("n long, text string").json(str(folder))
    slow = Slow(df, tmp_path / "c", ms_per_row=1)
    sizes = slow.run(6, backpressure=True)
    # Of the first file's records we only know that each has at least one byte.
    assert sizes[0] <= FIRST_RATE_PER_S
    assert all(0.75 * INTERVAL_MS <= slow.took_ms(rows) <= 1.05 * INTERVAL_MS for rows in sizes[3:])
    assert slow.run(1, backpressure=True)[0] == pytest.approx(sizes[-1], rel=0.15)


def test_a_rate_source_that_is_behind_catches_up_slowly(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    slow = Slow(df, tmp_path / "c", ms_per_row=1)
    slow.run(1)
    slow.clock.advance(1_200_000)  # 24,000 rows
    sizes = slow.run(6, backpressure=True)
    assert sizes[0] <= FIRST_RATE_PER_S
    assert all(
        0.8 * INTERVAL_MS <= slow.took_ms(rows) <= 1.1 * INTERVAL_MS for rows in sizes[2:]
    ), sizes


def test_each_source_has_its_own_rate(spark: SparkSession, many: DataFrame, tmp_path: Path) -> None:
    other = MemoryStream("n long", keep=True)
    for _ in range(100):
        other.add([(-1,)] * 10)
    limited = spark.readStream.format(other.name).option("maxRatePerSecond", 50).load()
    slow = Slow(many.union(limited), tmp_path / "c", ms_per_row=1)
    slow.run(5, backpressure=True)
    other.close()
    progresses = [p for p in slow.query.recentProgress if p.numInputRows]
    assert [p.sources[1].numInputRows for p in progresses[:5]] == [50] * 5
    assert slow.took_ms(slow.sizes[-1]) <= 1.1 * INTERVAL_MS
