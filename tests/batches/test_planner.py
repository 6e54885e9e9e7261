from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.batches.batch import AdmissionLimit, OffsetRange, RangeSize
from tidemill.batches.parallelism import (
    BYTES_PER_TASK,
    LARGEST_SPLIT_BYTES,
    RECORDS_PER_TASK,
    tasks_for_bytes,
    tasks_for_records,
)
from tidemill.batches.planner import BatchPlanner
from tidemill.batches.source import Source


class Numbers(Source):
    """A source of which a test says how far it reaches."""

    def __init__(self) -> None:
        self.reach = 0
        self.committed: list[int] = []
        self.broken = False
        self.events: list[str] = []

    def start(self, time_ms: int) -> None:
        self.events.append(f"start {time_ms}")

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int, limit: AdmissionLimit, time_ms: int) -> int:
        if self.broken:
            raise OSError("source is away")
        return (
            self.reach if limit.max_records is None else min(self.reach, start + limit.max_records)
        )

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(records=range_.end - range_.start)

    def read(self, range_: OffsetRange) -> Any:
        raise AssertionError("a planner does not read")

    def commit(self, end: int) -> None:
        self.committed.append(end)

    def stop(self) -> None:
        self.events.append("stop")


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(1, 7))
def test_batches_cover_every_offset_once_and_respect_the_limit(
    arrivals: list[int], most: int
) -> None:
    source = Numbers()
    planner = BatchPlanner({5: source}, {5: AdmissionLimit(max_records=most)})
    planner.start(0)
    covered: list[int] = []
    for number, arrived in enumerate(arrivals):
        source.reach += arrived
        batch = planner.plan(number * 1000)
        assert (batch.batch_id, batch.time_ms) == (number, number * 1000)
        range_ = batch.ranges[5]
        assert range_.end - range_.start <= most
        assert batch.sizes[5].records == range_.end - range_.start
        covered += range(range_.start, range_.end)
    assert covered == list(range(len(covered)))


def test_a_source_that_fails_moves_no_source_forward() -> None:
    good, bad = Numbers(), Numbers()
    good.reach = bad.reach = 3
    planner = BatchPlanner({0: good, 1: bad})
    planner.start(0)
    bad.broken = True
    with pytest.raises(OSError, match="away"):
        planner.plan(1000)
    bad.broken = False
    batch = planner.plan(2000)
    assert batch.batch_id == 0
    assert batch.ranges == {0: OffsetRange(0, 3), 1: OffsetRange(0, 3)}


def test_start_commit_and_stop_reach_the_sources() -> None:
    source = Numbers()
    planner = BatchPlanner({0: source})
    planner.start(500)
    source.reach = 4
    planner.commit(planner.plan(1000))
    planner.stop()
    assert source.committed == [4]
    assert source.events == ["start 500", "stop"]


def test_a_range_is_empty_when_it_ends_where_it_starts() -> None:
    assert OffsetRange({"a": 1}, {"a": 1}).is_empty
    assert not OffsetRange(0, 1).is_empty


@pytest.mark.parametrize("name", ["max_records", "max_bytes", "max_files"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        AdmissionLimit(**{name: 0})


@given(st.integers(0, 1 << 40), st.integers(1, 256))
def test_a_batch_is_spread_no_wider_than_it_is_worth(size: int, parallelism: int) -> None:
    tasks = tasks_for_bytes(size, parallelism)
    assert tasks >= 1
    assert size <= tasks * LARGEST_SPLIT_BYTES or size == 0
    if size <= BYTES_PER_TASK:
        assert tasks == 1
    if size <= parallelism * LARGEST_SPLIT_BYTES:
        assert tasks <= parallelism
    assert 1 <= tasks_for_records(size, parallelism) <= parallelism
    assert tasks_for_records(min(size, RECORDS_PER_TASK), parallelism) == 1
