"""A directory that is limited in records, which it cannot count before they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkConf

from tests.batches.planning import plan_batch
from tests.tasks.reports import Report
from tidemill.batches.batch import AdmissionLimit, OffsetRange
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.rate_controller import RateController
from tidemill.batches.rate_estimator import PIDRateEstimator
from tidemill.batches.source import SourceRuntime
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.source_log import SourceLog
from tidemill.common.clock import ManualClock
from tidemill.sources.files.directory import LocalDirectory
from tidemill.sources.files.record_files_source import RecordFilesSource
from tidemill.sources.files.record_readers import BinaryFilesSource, TextFilesSource
from tidemill.sources.record_size import RecordSize
from tidemill.tasks.files.file_records import ReadReport

NOW_MS = 30_000


class NoSpark:
    """What a source needs of a Spark context in order to plan."""

    def accumulator(self, value: Any, param: Any) -> Report:
        return Report()

    def getConf(self) -> SparkConf:
        return SparkConf(loadDefaults=False)


class Directory:
    """Files of ten bytes a line, and a source that reads them without Spark."""

    def __init__(self, folder: Path, log: SourceLog | None = None, record_length: int = 0) -> None:
        self.incoming = folder / "incoming"
        self.incoming.mkdir(exist_ok=True)
        self._log = log
        self.source = self._made(record_length)

    def _made(self, record_length: int) -> RecordFilesSource:
        sc: Any = NoSpark()
        lister = LocalDirectory(str(self.incoming))
        source: RecordFilesSource = (
            BinaryFilesSource(sc, lister, 60_000, record_length)
            if record_length
            else TextFilesSource(sc, lister, 60_000)
        )
        source.start(SourceRuntime(0, ManualClock(1 << 40), self._log))
        return source

    def put(self, name: str, lines: int) -> None:
        staged = self.incoming.parent / "staged"
        staged.write_text("123456789\n" * lines)
        os.utime(staged, (10, 10))
        staged.rename(self.incoming / name)

    def fill(self, files: int, lines: int = 10) -> None:
        for number in range(files):
            self.put(f"{number:03d}", lines)

    def take(self, start: int, max_records: int | None, **limits: int) -> int:
        """How far a batch reaches that begins at ``start``."""
        limit = AdmissionLimit(max_records, **limits)
        end = self.source.latest_offset(start, limit, NOW_MS)
        return int(end)

    def read(self, start: int, end: int) -> int | None:
        """Count the lines as tasks would, and let the source learn of it."""
        range_ = OffsetRange(start, end)
        for file in self.source._files(range_):
            lines = Path(file.path).read_text().count("\n")
            self.source._report.add(ReadReport(records={(file, 0): lines}))
        return self.source.records_read(range_)


def test_the_first_batch_is_bounded_before_anything_is_known(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.fill(20)
    assert directory.take(0, None) == 20
    assert directory.take(0, 250) == 2  # a line may be as short as one byte
    assert directory.take(0, 20) == 1  # a file that is too large is taken alone


def test_after_a_batch_a_limit_in_records_is_met_in_files(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.fill(20)
    assert directory.read(0, directory.take(0, 1)) == 10
    assert [directory.take(1, records) for records in (1, 10, 19, 20, 55, 1000)] == [
        2, 2, 2, 3, 6, 20,
    ]  # fmt: skip


def test_other_limits_hold_as_well(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.fill(20)
    directory.read(0, directory.take(0, 1))
    assert directory.take(1, 80, max_files=3) == 4
    assert directory.take(1, 80, max_bytes=250) == 3
    assert directory.take(1, 20, max_bytes=800) == 3
    assert directory.take(1, None, max_bytes=250) == 3


def test_a_file_larger_than_the_limit_does_not_stop_the_stream(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.put("a", 1)
    directory.put("b", 1000)
    directory.put("c", 1)
    directory.read(0, directory.take(0, 10))
    assert [directory.take(start, 10) for start in (0, 1, 2, 3)] == [1, 2, 3, 3]


def test_records_of_a_fixed_length_need_not_be_learned(tmp_path: Path) -> None:
    directory = Directory(tmp_path, record_length=5)
    directory.fill(20)
    assert directory.take(0, 60) == 3


def test_a_batch_that_nothing_was_read_from_says_nothing(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.fill(20)
    directory.read(0, directory.take(0, 1))
    assert directory.source.records_read(OffsetRange(1, 3)) == 0
    assert directory.take(1, 30) == 4


def test_the_size_of_a_record_is_known_after_a_restart(tmp_path: Path) -> None:
    log = SourceLog(LocalStorage(str(tmp_path / "checkpoint")), "lines")
    before = Directory(tmp_path, log)
    before.fill(20)
    before.read(0, before.take(0, 100))
    assert before.take(1, 30) == 4
    assert log.entries()["record-size"] == [10.0]

    after = Directory(tmp_path, log)
    assert after.take(1, 30) == 4


def test_the_size_is_written_only_where_it_is_needed_and_has_changed(tmp_path: Path) -> None:
    log = SourceLog(LocalStorage(str(tmp_path / "checkpoint")), "lines")
    directory = Directory(tmp_path, log)
    directory.fill(20)
    directory.take(0, None)
    directory.read(0, 1)
    directory.take(1, None)
    assert "record-size" not in log.entries()
    directory.take(1, 30)
    log.delete("record-size")
    directory.read(1, 3)
    directory.take(3, 30)
    assert "record-size" not in log.entries()


def test_a_directory_follows_the_speed_of_its_batches(tmp_path: Path) -> None:
    """As in tests/streaming/scheduling/test_backpressure.py, without Spark."""
    directory = Directory(tmp_path)
    controller = RateController(PIDRateEstimator(1000, min_rate_per_s=1), initial_rate_per_s=20)
    clock = ManualClock(20_000)
    planner = BatchPlanner(
        {0: PlannedSource("lines", directory.source, controller=controller)},
        clock,
        batch_interval_ms=1000,
    )
    planner.start(20_000)
    taken = []
    for arriving, processing_ms in [(3, 10), (0, 50), (5, 500), (30, 100), (0, 200)]:
        for _ in range(arriving):
            directory.put(f"{len(list(directory.incoming.iterdir())):03d}", 10)
        clock.advance(1000)
        range_ = plan_batch(planner, clock.now_ms()).ranges[0]
        records = directory.read(range_.start, range_.end)
        assert records is not None
        controller.on_batch(clock.now_ms() + processing_ms, records, processing_ms, 0)
        taken.append(records)
    assert taken == [10, 20, 50, 100, 200]


def test_the_last_batches_count_most() -> None:
    size = RecordSize()
    assert (size.is_known, size.bytes_of(7)) == (False, 7)
    size.learn(100, 1000)
    assert (size.is_known, size.bytes_of(7)) == (True, 70)
    size.learn(100, 4000)
    assert size.bytes_per_record == pytest.approx(4500 / 150)
    for _ in range(10):
        size.learn(100, 4000)
    assert size.bytes_per_record == pytest.approx(40, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), min_size=1))
def test_the_mean_lies_between_what_was_seen(batches: list[tuple[int, int]]) -> None:
    size = RecordSize(3.0)
    for records, bytes_ in batches:
        size.learn(records, bytes_)
    seen = [bytes_ / records for records, bytes_ in batches if records and bytes_] or [3.0]
    assert min(seen) * 0.999 <= size.bytes_per_record <= max(seen) * 1.001
    assert size.bytes_of(1) >= 1
