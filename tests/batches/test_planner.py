from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batches.number_source import Numbers
from tests.batches.planning import plan_batch
from tests.waiting import DEADLINE_S
from tidemill.batches.batch import AdmissionLimit, OffsetRange
from tidemill.batches.parallelism import (
    BYTES_PER_TASK,
    LARGEST_SPLIT_BYTES,
    RECORDS_PER_TASK,
    tasks_for_bytes,
    tasks_for_records,
)
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.batches.source import Source, SourceRuntime
from tidemill.checkpoint.batch_log import BatchLog, CommitRecord
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.testing import ManualClock


@given(st.lists(st.integers(0, 20), max_size=20), st.integers(1, 7))
def test_batches_cover_every_offset_once_and_respect_the_limit(
    arrivals: list[int], most: int
) -> None:
    source = Numbers()
    planner = BatchPlanner(
        {5: PlannedSource("numbers", source, AdmissionLimit(max_records=most))}, ManualClock()
    )
    planner.start(0)
    covered: list[int] = []
    for number, arrived in enumerate(arrivals):
        source.reach += arrived
        batch = plan_batch(planner, number * 1000)
        assert (batch.batch_id, batch.time_ms) == (number, number * 1000)
        range_ = batch.ranges[5]
        assert range_.end - range_.start <= most
        assert batch.sizes[5].records == range_.end - range_.start
        covered += range(range_.start, range_.end)
    assert covered == list(range(len(covered)))


def test_a_source_that_fails_moves_no_source_forward() -> None:
    good, bad = Numbers(), Numbers()
    good.reach = bad.reach = 3
    planner = BatchPlanner(
        {0: PlannedSource("good", good), 1: PlannedSource("bad", bad)}, ManualClock()
    )
    planner.start(0)
    bad.broken = True
    with pytest.raises(OSError, match="away"):
        plan_batch(planner, 1000)
    bad.broken = False
    batch = plan_batch(planner, 2000)
    assert batch.batch_id == 0
    assert batch.ranges == {0: OffsetRange(0, 3), 1: OffsetRange(0, 3)}


def test_start_commit_and_stop_reach_the_sources() -> None:
    source = Numbers()
    planner = BatchPlanner({0: PlannedSource("numbers", source)}, ManualClock())
    planner.start(500)
    source.reach = 4
    planner.commit(plan_batch(planner, 1000))
    planner.stop()
    assert source.committed == [4]
    assert source.events == ["start 500", "stop"]


def test_a_source_that_cannot_stop_does_not_keep_the_others_from_it() -> None:
    stopped = []

    class Stopping(Numbers):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def stop(self) -> None:
            stopped.append(self.name)
            raise ConnectionError(self.name)

    sources = {number: PlannedSource(name, Stopping(name)) for number, name in enumerate("abc")}
    planner = BatchPlanner(sources, ManualClock())
    planner.start(0)
    with pytest.raises(ConnectionError):
        planner.stop()
    assert stopped == ["a", "b", "c"]


def durable_planner(path: Path, source: Source) -> BatchPlanner:
    planner = BatchPlanner(
        {0: PlannedSource("numbers", source)}, ManualClock(), LocalStorage(str(path))
    )
    planner.start(0)
    return planner


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_a_planner_that_is_restored_has_the_same_batches_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("checkpoint")
    log = BatchLog(LocalStorage(str(path)))
    source = Numbers()
    planner = durable_planner(path, source)
    planned = []
    for number, arrived in enumerate(arrivals):
        source.reach += arrived
        planned.append(plan_batch(planner, number * 1000, LocalStorage(str(path))))
    done = data.draw(st.integers(0, len(arrivals)))
    for batch_id in range(done):
        log.write_commit(batch_id, CommitRecord())

    after = Numbers()
    after.reach = source.reach + 3
    restored = durable_planner(path, after)
    logged = log.load()
    assert restored.restore(logged) == planned
    assert logged.unfinished == list(range(done, len(arrivals)))
    assert after.processed_until == (sum(arrivals[:done]) if done else None)
    following = plan_batch(restored, 99_000)
    assert following.batch_id == len(arrivals)
    assert following.ranges[0] == OffsetRange(source.reach, source.reach + 3)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 3))
def test_a_source_that_comes_back_goes_on_where_it_was_however_short_the_log(
    tmp_path_factory: pytest.TempPathFactory, presences: list[bool], kept: int
) -> None:
    """``presences`` say of each run whether the second source is there."""
    path = tmp_path_factory.mktemp("checkpoint")
    storage = LocalStorage(str(path))
    log = BatchLog(storage)
    read_so_far = 0
    for run, is_there in enumerate([True, *presences, True]):
        always, sometimes = Numbers(), Numbers()
        always.reach = sometimes.reach = 10 * (run + 1)
        sources = {0: PlannedSource("always", always)}
        if is_there:
            sources[1] = PlannedSource("sometimes", sometimes)
        planner = BatchPlanner(sources, ManualClock(), storage)
        planner.start(0)
        planner.restore(log.load())
        batch = plan_batch(planner, run, storage)
        log.write_commit(batch.batch_id, CommitRecord())
        if is_there:
            assert batch.ranges[1] == OffsetRange(read_so_far, sometimes.reach)
            read_so_far = sometimes.reach
        if batch.batch_id >= kept:
            log.purge(batch.batch_id - kept)


def test_where_a_stream_began_is_asked_once(tmp_path: Path) -> None:
    class Growing(Numbers):
        def initial_offset(self) -> int:
            return self.reach

    first = Growing()
    first.reach = 7
    durable_planner(tmp_path, first)
    later = Growing()
    later.reach = 50
    assert plan_batch(durable_planner(tmp_path, later), 1000).ranges[0] == OffsetRange(7, 50)


def test_a_plan_that_cannot_be_written_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Numbers()
    planner = durable_planner(tmp_path, source)
    source.reach = 3
    with monkeypatch.context() as patched:
        patched.setattr(
            BatchLog, "write_offsets", lambda *_: (_ for _ in ()).throw(OSError("full"))
        )
        with pytest.raises(OSError, match="full"):
            plan_batch(planner, 1000, LocalStorage(str(tmp_path)))
    source.reach = 5
    batch = plan_batch(planner, 2000)
    assert (batch.batch_id, batch.ranges[0]) == (0, OffsetRange(0, 5))


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


def test_sources_start_at_the_same_time() -> None:
    """One after the other, each would wait in vain for the others."""
    together = threading.Barrier(3)

    class Slow(Numbers):
        def start(self, runtime: SourceRuntime) -> None:
            together.wait(DEADLINE_S)
            super().start(runtime)

    sources = {number: PlannedSource(f"numbers-{number}", Slow()) for number in range(3)}
    planner = BatchPlanner(sources, ManualClock())
    planner.start(0)
    assert list(planner.initial) == [0, 1, 2]


def test_a_source_that_cannot_start_is_named_by_its_own_error() -> None:
    class Broken(Numbers):
        def start(self, runtime: SourceRuntime) -> None:
            raise ConnectionError("no such server")

    sources = {0: PlannedSource("good", Numbers()), 1: PlannedSource("bad", Broken())}
    with pytest.raises(ConnectionError, match="no such server"):
        BatchPlanner(sources, ManualClock()).start(0)
