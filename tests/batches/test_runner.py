"""The seven steps of a batch: killed between any two of them, every number is in every sink, once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches.runner_world import Driver
from tidemill.batches.runner import BatchAbandonedError
from tidemill.batches.sink import Sink
from tidemill.checkpoint import batch_log
from tidemill.checkpoint.ownership import Ownership
from tidemill.errors import IllegalStateError, OwnershipLostError

POINTS = [
    "batch.before-offsets",
    "batch.after-offsets",
    "batch.before-run",
    "batch.after-run",
    "batch.after-sink",
    "batch.before-commit",
    "batch.after-commit",
    "batch.after-sources",
    "batch.purge",
    "batch.over",
]


class Crash(BaseException):
    """The driver dies here."""


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@contextmanager
def crashing_at(point: str, passage: int) -> Iterator[list[str]]:
    """Die at the n-th passage of a fault point. Yields the points that were passed."""
    from tidemill.batches import runner

    passed: list[str] = []

    def strike(name: str) -> None:
        passed.append(name)
        if name == point and passed.count(point) == passage:
            raise Crash(point)

    with pytest.MonkeyPatch.context() as patch:
        for module in (runner, batch_log):
            patch.setattr(module, "fault_point", strike)
        patch.setattr("tidemill.batches.durable.KEEP", 2)
        yield passed


def everything(driver: Driver) -> list[list[int]]:
    """The numbers of each sink, in the order of batches and tasks."""
    return [
        sorted(number for tasks in sink.batches().values() for task in tasks for number in task)
        for sink in driver.sinks
    ]


def test_the_steps_come_in_order_and_leave_their_files(tmp_path: Path) -> None:
    with crashing_at("nowhere", 1) as passed:
        driver = Driver(tmp_path, reach=10)
        driver.run_all()
    assert passed == [
        "batch.before-offsets",
        "batch.after-offsets",
        "batch.before-run",
        "batch.after-run",
        "batch.after-sink",
        "batch.after-sink",
        "batch.before-commit",
        "batch.after-commit",
        "batch.after-sources",
        "batch.over",
    ]
    assert driver.source.committed == [10]
    assert driver.pipeline.forgotten == [0]
    conf = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[1])["conf"]
    assert (conf["tidemill.tasks"], conf["spark.sql.shuffle.partitions"]) == ("2", "8")
    commit = json.loads((tmp_path / "checkpoint/commits/0").read_text().splitlines()[1])
    assert commit["nextBatchWatermarkMs"] == 2000


@pytest.mark.parametrize("passage", [1, 2, 5])
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_every_number_is_in_every_sink_once(
    tmp_path: Path, point: str, passage: int
) -> None:
    with crashing_at(point, passage) as passed:
        driver = Driver(tmp_path, reach=70)
        with pytest.raises(Crash):
            driver.run_all()
        seen = driver.sinks[0].batches()
        driver.close()
        assert passed.count(point) == passage
        again = Driver(tmp_path, reach=70, cores=5)
        again.run_all()
        again.close()
    assert everything(again) == [list(range(70))] * 2
    # A batch that had been shown is the same in both sinks, task by task, on a cluster of another size.
    assert again.sinks[0].batches() == again.sinks[1].batches()
    assert all(again.sinks[0].batches()[batch_id] == tasks for batch_id, tasks in seen.items())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 6)), max_size=5), st.data())
def test_any_number_of_deaths(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[tuple[str, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    for point, passage in [*deaths, ("nowhere", 1)]:
        with crashing_at(point, passage):
            driver = Driver(folder, reach=45, cores=data.draw(st.integers(1, 4)))
            try:
                driver.run_all()
            except Crash:
                pass
            finally:
                driver.close()
    assert everything(driver) == [list(range(45))] * 2
    assert driver.sinks[0].batches() == driver.sinks[1].batches()


def test_a_batch_that_runs_again_has_the_tasks_that_it_was_planned_with(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10, cores=3)
    planned = driver.plan()
    driver.close()
    again = Driver(tmp_path, reach=20, cores=1)
    (unfinished,) = again.position.unfinished
    assert unfinished == planned
    again.run_all()
    assert [batch.shape.tasks for batch in again.pipeline.ran] == [3, 1]


# -- what may not be committed ---------------------------------------------------------------------


def committed(driver: Driver) -> list[str]:
    return sorted(driver.durable.storage.list("commits"))


def test_a_stream_that_is_stopped_while_its_batch_runs_commits_nothing(tmp_path: Path) -> None:
    """Whatever the user's code makes of its cancelled jobs."""
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    run = driver.pipeline.run

    def stopped(*parts: object) -> object:
        driver.runner.abandon()
        return run(*parts)  # type: ignore[arg-type]

    driver.pipeline.run = stopped  # type: ignore[assignment, method-assign]
    with pytest.raises(BatchAbandonedError, match="stopped while batch 0 ran"):
        driver.run(batch)
    assert committed(driver) == []
    assert [sink.batches() for sink in driver.sinks] == [{}, {}]
    assert [batch_id for batch_id, _ in driver.told.failed] == [0]
    assert driver.source.committed == []
    driver.close()
    again = Driver(tmp_path, reach=10)
    again.run_all()
    assert everything(again) == [list(range(10))] * 2


def test_the_error_of_a_cancelled_job_is_no_failure(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    driver.pipeline.error = RuntimeError("Job 3 cancelled")
    driver.runner.abandon()
    with pytest.raises(BatchAbandonedError):
        driver.run(batch)


def test_nothing_is_committed_without_spark(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    driver.is_spark_running = False
    with pytest.raises(IllegalStateError, match="Spark was stopped while batch 0 ran"):
        driver.run(batch)
    assert committed(driver) == []
    assert [sink.batches() for sink in driver.sinks] == [{}, {}]


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_was_replaced_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    monkeypatch.setattr(Ownership, "_is_alive", lambda *_: False, raising=False)
    driver.durable._ownership.release()
    successor = Driver(tmp_path, reach=10)
    if fails:
        driver.pipeline.error = RuntimeError("a file of the state is not there")
    with pytest.raises(OwnershipLostError):
        driver.run(batch)
    assert [sink.batches() for sink in driver.sinks] == [{}, {}]
    successor.run_all()
    assert everything(successor) == [list(range(10))] * 2
    successor.close()


def test_a_batch_that_fails_is_told_once(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    driver.pipeline.error = ZeroDivisionError("division by zero")
    with pytest.raises(ZeroDivisionError):
        driver.run(batch)
    assert driver.told.failed == [(0, driver.pipeline.error)]
    assert driver.told.done == []
    assert driver.pipeline.forgotten == []
    assert committed(driver) == []


def test_a_sink_that_cannot_commit_leaves_the_batch_unfinished(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    second: Sink = driver.sinks[1]

    def full(batch_id: int) -> None:
        raise OSError("disk full")

    second.commit = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        driver.run(batch)
    assert committed(driver) == []
    driver.close()
    again = Driver(tmp_path, reach=10)
    again.run_all()
    assert everything(again) == [list(range(10))] * 2


# -- afterwards ------------------------------------------------------------------------------------


def test_a_batch_had_to_wait_since_it_was_due(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=10)
    batch = driver.plan()
    driver.run(batch, due_ms=driver.clock.now_ms() - 300)
    (processed,) = driver.told.done
    assert (processed.batch_id, processed.scheduling_ms, processed.processing_ms) == (0, 300, 0)
    assert processed.input_rows == {0: 10}


def test_batches_that_end_out_of_order_are_forgotten_in_order(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=40)
    first, second, third = driver.plan(), driver.plan(), driver.plan()
    driver.run(second)
    assert driver.source.committed == []  # the first may still read what is before it
    driver.run(first)
    assert driver.source.committed == [10, 20]
    driver.run(third)
    assert driver.source.committed == [10, 20, 30]


def test_a_plan_that_cannot_be_written_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, reach=3)
    with monkeypatch.context() as patched:
        patched.setattr(
            batch_log.BatchLog, "write_offsets", lambda *_: (_ for _ in ()).throw(OSError("full"))
        )
        with pytest.raises(OSError, match="full"):
            driver.plan()
    driver.source.reach = 5
    batch = driver.plan()
    assert (batch.batch_id, batch.ranges[0].end) == (0, 5)


def test_an_error_while_cleaning_up_does_not_undo_the_commit(tmp_path: Path) -> None:
    driver = Driver(tmp_path, reach=20)
    batch = driver.plan()

    def broken(end: int) -> None:
        raise OSError("the source is away")

    driver.source.commit, works = broken, driver.source.commit  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the source is away"):
        driver.run(batch)
    assert committed(driver) == ["0"]
    assert driver.told.failed == []
    assert [processed.batch_id for processed in driver.told.done] == [0], "listeners hear of it"
    driver.source.commit = works  # type: ignore[method-assign]
    driver.run_all()
    assert driver.source.committed == [20]
    assert everything(driver) == [list(range(20))] * 2
