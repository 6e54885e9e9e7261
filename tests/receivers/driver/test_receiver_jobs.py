"""The jobs of receivers, with a Spark that does what the test says."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tests.receivers.driver.driver_world import Silent, executor
from tests.waiting import DEADLINE_S, wait_for
from tidemill.receivers.blocks.files import BlockFolders
from tidemill.receivers.driver import receiver_jobs as module
from tidemill.receivers.driver.receiver_jobs import ReceiverJobs
from tidemill.receivers.driver.tracker import ReceiverInput
from tidemill.receivers.executor.receiver_task import ExecutorSetup, ReceiverTask, StartBlockServer


@dataclass
class FakeSpark:
    """``collect`` blocks until the test lets it go, with an error or without."""

    located: list[list[str]] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)
    ends: queue.Queue[BaseException | str | None] = field(default_factory=queue.Queue)

    def located_rdd(self, _: Any, items: Any) -> FakeSpark:
        self.located += [list(where) for _, where in items]
        return self

    def mapPartitions(self, function: Any) -> FakeSpark:
        self.functions.append(function)
        return self

    def collect(self) -> list[str]:
        end = self.ends.get(timeout=DEADLINE_S)
        if isinstance(end, BaseException):
            raise end
        return [] if end is None else [end]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    it = FakeSpark()
    monkeypatch.setattr(module, "located_rdd", it.located_rdd)
    return it


INPUT = ReceiverInput(3, "clicks", Silent(), pickle.dumps(Silent()))


def jobs_of(folders: BlockFolders | None = None) -> tuple[ReceiverJobs, MagicMock]:
    context = MagicMock()
    setup = ExecutorSetup("run", "tracker", b"secret", folders)
    return ReceiverJobs(cast(Any, context), setup), context


def launch(jobs: ReceiverJobs, *candidates: Any) -> queue.Queue[str]:
    ended: queue.Queue[str] = queue.Queue()
    jobs.launch(INPUT, 2, candidates, ended.put)
    return ended


def test_a_job_goes_to_its_candidates_and_tells_its_end(spark: FakeSpark) -> None:
    jobs, context = jobs_of()
    ended = launch(jobs, executor(1), "node7")
    assert not jobs.wait(0.01)
    spark.ends.put(None)
    assert ended.get(timeout=DEADLINE_S) == ""
    assert jobs.wait(DEADLINE_S)
    assert spark.located == [["executor_node1_1", "node7"]]
    (task,) = spark.functions
    assert isinstance(task, ReceiverTask)
    assert (task.stream_id, task.stream_name, task.attempt) == (3, "clicks", 2)
    context.setJobGroup.assert_called_once_with(
        "tidemill-receivers-run", "the Silent of clicks", interruptOnCancel=True
    )


def test_the_error_of_a_job_is_told(spark: FakeSpark) -> None:
    jobs, _ = jobs_of()
    ended = launch(jobs)
    spark.ends.put(ValueError("boom"))
    assert "ValueError: boom" in ended.get(timeout=DEADLINE_S)
    assert jobs.wait(DEADLINE_S)


@pytest.mark.parametrize("result", ["", "Traceback: boom"])
def test_what_the_task_says_is_told(spark: FakeSpark, result: str) -> None:
    jobs, _ = jobs_of()
    ended = launch(jobs)
    spark.ends.put(result)
    assert ended.get(timeout=DEADLINE_S) == result


def test_in_local_mode_there_is_no_choice(spark: FakeSpark, tmp_path: Path) -> None:
    jobs, _ = jobs_of(BlockFolders(None, str(tmp_path), 0))
    ended = launch(jobs, executor(1))
    spark.ends.put(None)
    ended.get(timeout=DEADLINE_S)
    assert spark.located == [[]]
    jobs.start_block_servers([executor(1)])
    assert len(spark.functions) == 1, "there is no other host"


def test_block_servers_are_started_where_they_are_wanted(spark: FakeSpark) -> None:
    jobs, _ = jobs_of()
    jobs.start_block_servers([])
    assert spark.functions == []
    spark.ends.put(None)
    jobs.start_block_servers([executor(1), executor(2)])
    assert spark.located == [["executor_node1_1"], ["executor_node2_2"]]
    assert isinstance(spark.functions[0], StartBlockServer)


def test_after_they_were_cancelled_no_job_starts(spark: FakeSpark) -> None:
    jobs, context = jobs_of()
    running = launch(jobs)
    jobs.cancel()
    context._jsc.sc.return_value.cancelJobGroupAndFutureJobs.assert_called_once_with(
        "tidemill-receivers-run"
    )
    spark.ends.put(RuntimeError("cancelled"))
    assert "cancelled" in running.get(timeout=DEADLINE_S)
    ended = launch(jobs)
    assert jobs.wait(0)
    assert (ended.qsize(), len(spark.functions)) == (0, 1)


def test_waiting_is_for_all_jobs(spark: FakeSpark) -> None:
    jobs, _ = jobs_of()
    ends = [launch(jobs)]
    ended: queue.Queue[str] = queue.Queue()
    jobs.launch(ReceiverInput(4, "views", Silent(), INPUT.pickled), 1, (), ended.put)
    ends.append(ended)
    done: list[bool] = []
    waiter = in_background(lambda: done.append(jobs.wait(DEADLINE_S)))
    spark.ends.put(None)
    wait_for(lambda: sum(each.qsize() for each in ends) == 1, "the end of one", 30)
    assert done == []
    spark.ends.put(None)
    waiter.join(DEADLINE_S)
    assert done == [True]


def in_background(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread
