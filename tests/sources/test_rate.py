"""The rate source, compared with Spark's own on the same numbers and the same files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.sources.reading import next_range, read, rows, runtime
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.common.clock import ManualClock
from tidemill.errors import DamagedCheckpointError, UsageError
from tidemill.sources.rate import RateSource
from tidemill.sources.rate_micro_batch import RateMicroBatchSource

BEGAN_MS = 1_794_843_809_778


def started(directory: Path | None = None, **options: Any) -> RateSource:
    source = RateSource({name: str(value) for name, value in options.items()})
    source.start(runtime(ManualClock(BEGAN_MS), directory))
    return source


def micros(table: Any) -> list[tuple[int, int]]:
    times = table["timestamp"].cast("int64").to_pylist()
    return sorted(zip(times, table["value"].to_pylist(), strict=True))


@pytest.mark.parametrize("rows_per_s", [1, 3, 7, 30, 32, 48, 96, 304, 1000, 2000, 2064, 16_000])
def test_it_knows_whether_rows_depend_on_ranges(rows_per_s: int) -> None:
    source = started(rowsPerSecond=rows_per_s)
    seconds = 50 if rows_per_s < 2065 else 10
    whole = micros(read(source, OffsetRange(0, seconds)))
    each = [row for s in range(seconds) for row in micros(read(source, OffsetRange(s, s + 1)))]
    assert source.rows_depend_on_ranges() == (whole != each)


class SparkRate:
    """Spark's own source, driven by hand."""

    def __init__(self, spark: SparkSession, rows_per_s: int, ramp_up_s: int, folder: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        sql = self._jvm.org.apache.spark.sql
        self._offset = sql.execution.streaming.runtime.LongOffset
        self.stream = sql.execution.streaming.sources.RateStreamMicroBatchStream(
            rows_per_s,
            ramp_up_s,
            2,
            sql.util.CaseInsensitiveStringMap(self._jvm.java.util.HashMap()),
            folder,
        )

    def rows(self, start: int, end: int) -> list[tuple[int, int]]:
        return sorted(rows_of(self.stream, self._offset(start), self._offset(end)))


def rows_of(stream: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    found = []
    factory = stream.createReaderFactory()
    for partition in stream.planInputPartitions(start, end):
        reader = factory.createReader(partition)
        while reader.next():
            row = reader.get()
            found.append((row.getLong(0), row.getLong(1)))
    return found


def test_rows_are_those_of_spark_and_so_is_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint of ours is Spark's, and one of Spark's is ours."""
    ours = started(tmp_path, rowsPerSecond=7, rampUpTime="5s")
    assert (tmp_path / "sources" / "0" / "0").read_text() == f"v1\n{BEGAN_MS}"
    theirs = SparkRate(spark, 7, 5, f"file:{tmp_path}/sources/0")
    assert theirs.stream.creationTimeMs() == BEGAN_MS
    for start, end in [(0, 1), (1, 4), (0, 9), (9, 20), (3, 3)]:
        assert micros(read(ours, OffsetRange(start, end))) == theirs.rows(start, end)

    other = tmp_path / "spark"
    theirs = SparkRate(spark, 3, 0, f"file:{other}/sources/0")
    began_ms = theirs.stream.creationTimeMs()
    again = RateSource({"rowsPerSecond": "3"})
    again.start(runtime(ManualClock(began_ms + 60_000), other))
    assert again.latest_offset(0, UNLIMITED, began_ms + 4_999) == 4
    assert micros(read(again, OffsetRange(2, 6))) == theirs.rows(2, 6)


def test_how_many_rows_there_are_is_what_spark_says(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    provider = jvm.org.apache.spark.sql.execution.streaming.sources.RateStreamProvider
    for rate, ramp in [(1, 0), (10, 3), (5, 10), (1000, 60), (7, 7), (3, 1)]:
        source = started(rowsPerSecond=rate, rampUpTime=ramp)
        for seconds in [0, 1, 2, 3, 7, 11, 60, 61, 1000]:
            assert source.value_at(seconds) == provider.valueAtSecond(seconds, rate, ramp)


@given(
    rate=st.integers(1, 2000),
    ramp=st.integers(0, 20),
    start=st.integers(0, 40),
    passed=st.integers(0, 60),
    most=st.integers(1, 5000),
)
@settings(max_examples=200)
def test_a_limit_is_kept_in_whole_seconds_and_never_stalls(
    rate: int, ramp: int, start: int, passed: int, most: int
) -> None:
    source = started(rowsPerSecond=rate, rampUpTime=ramp)
    limit = AdmissionLimit(max_records=most)
    range_ = next_range(source, start, BEGAN_MS + passed * 1000 + 999, limit)
    assert (range_.end > start) == (passed > start)
    taken = source.size(range_).records or 0
    assert taken <= most or range_.end == start + 1
    if range_.end < passed:
        assert source.value_at(range_.end + 1) - source.value_at(start) > most


@pytest.mark.parametrize("parts", [None, 1, 3, 50])
def test_splits_add_up_to_the_range(parts: int | None) -> None:
    options = {} if parts is None else {"numPartitions": parts}
    source = started(rowsPerSecond=20, **options)
    assert [value for _, value in rows(source, 1, 3)] == list(range(20, 60))
    assert len(source.splits(OffsetRange(1, 3), 2)) == min(parts or 1, 40)
    assert source.size(OffsetRange(1, 3)).records == 40
    assert not source.splits(OffsetRange(3, 3), 2)


def test_large_batches_are_spread_over_the_cores() -> None:
    source = started(rowsPerSecond=300_000)
    assert len(source.splits(OffsetRange(0, 1), 4)) == 4
    table = read(source, OffsetRange(0, 1), 4)
    assert table.num_rows == 300_000
    assert table["timestamp"][-1].as_py() <= datetime.fromtimestamp(BEGAN_MS / 1000 + 1, UTC)


def test_a_clock_that_was_set_back_takes_nothing_back() -> None:
    assert started().latest_offset(9, UNLIMITED, BEGAN_MS - 5000) == 9


def test_available_now_ends_at_now() -> None:
    source = RateSource({})
    clock = ManualClock(BEGAN_MS)
    source.start(runtime(clock))
    clock.advance(5000)
    source.prepare_available_now()
    clock.advance(60_000)
    one = AdmissionLimit(max_records=3)
    assert source.latest_offset(0, one, clock.now_ms()) == 3
    assert source.latest_offset(3, one, clock.now_ms()) == 5
    assert source.latest_offset(5, one, clock.now_ms()) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowsPerSecond": "0"}, "option rowsPerSecond of the rate source is '0'"),
        ({"rowspersecond": "many"}, "expected a whole number of at least 1"),
        ({"rampUpTime": "soon"}, "expected a time such as"),
        ({"numPartitions": "-1"}, "numPartitions"),
        ({"rowsPerSecond": str(1 << 62), "rampUpTime": "3s"}, "the numbers end after 1 s"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        RateSource(options)
    assert message in str(caught.value)


def test_a_damaged_start_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text("v2\nx")
    with pytest.raises(DamagedCheckpointError, match="the rate source began"):
        started(tmp_path)


# -- rate-micro-batch ------------------------------------------------------------------------------


def test_batches_of_always_the_same_size_are_those_of_spark(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    empty = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(jvm.java.util.HashMap())
    theirs = sources.RatePerMicroBatchStream(40, 2, 5000, 250, empty)
    ours = RateMicroBatchSource(
        {"rowsPerBatch": "40", "startTimestamp": "5000", "advanceMillisPerBatch": "250"}
    )
    start, their_start = ours.initial_offset(), theirs.initialOffset()
    for _ in range(3):
        range_ = next_range(ours, start, limit=AdmissionLimit(max_records=1))
        their_end = theirs.latestOffset(their_start, theirs.getDefaultReadLimit())
        assert their_end.json() == str(range_.end).replace("'", '"').replace(" ", "")
        assert micros(read(ours, range_)) == sorted(rows_of(theirs, their_start, their_end))
        assert ours.size(range_).records == 40
        start, their_start = range_.end, their_end


def test_available_now_is_one_batch() -> None:
    source = RateMicroBatchSource({"rowsPerBatch": "5"})
    source.prepare_available_now()
    end = source.latest_offset(source.initial_offset(), UNLIMITED, 0)
    assert end == {"offset": 5, "timestamp": 1000}
    assert source.latest_offset(end, UNLIMITED, 0) == end


def test_rows_per_batch_has_to_be_given() -> None:
    with pytest.raises(UsageError, match=r'needs the option rowsPerBatch: .option\("rowsPerBatch"'):
        RateMicroBatchSource({})
