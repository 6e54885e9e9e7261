"""The task of a receiver, run here, with a tracker behind a real server."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import TaskContext

from tests.receivers.driver.driver_world import DriverWorld, Silent, driver, executor
from tests.waiting import DEADLINE_S, wait_for
from tidemill.common.rpc.server import RpcServer
from tidemill.receivers.blocks.files import BlockFolders
from tidemill.receivers.driver.executor_calls import ExecutorCalls
from tidemill.receivers.executor import receiver_task as module
from tidemill.receivers.executor.receiver_task import ExecutorSetup, ReceiverTask
from tidemill.receivers.executor.supervision import SupervisorSettings
from tidemill.receivers.messages import FROM_EXECUTORS, StopReceiver
from tidemill.receivers.receiver import Receiver

SECRET = bytes(range(32))


@dataclass
class World:
    driver: DriverWorld
    setup: ExecutorSetup

    def run(self, receiver: Receiver | bytes, attempt: int = 1) -> list[str]:
        task = ReceiverTask(self.setup, 0, "clicks-0", attempt)
        pickled = receiver if isinstance(receiver, bytes) else pickle.dumps(receiver)
        return list(task([pickled]))


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(module, "current_executor", lambda: ("0", "node0"))
    with driver(executors=[executor(0)]) as world:
        world.launches(1)
        handlers = {name: partial(world.tracker.answer, name) for name in FROM_EXECUTORS}
        server = RpcServer("127.0.0.1", SECRET, handlers)
        server.start()
        folders = BlockFolders(None, str(tmp_path / "blocks"), 0)
        folders.make()
        settings = SupervisorSettings(block_interval_ms=20, restart_delay_ms=1)
        setup = ExecutorSetup("run", str(server.endpoint), SECRET, folders, supervisor=settings)
        yield World(world, setup)
        server.stop()


class TwoRecords(Silent):
    def onStart(self) -> None:
        self.store(["a", "b"])
        self.stop("all read")


class Failing(Silent):
    def onStart(self) -> None:
        raise AssertionError("never called")

    def __setstate__(self, state: object) -> None:
        raise ImportError("no module named clicks")


def test_a_receiver_runs_until_it_ends(it: World) -> None:
    assert it.run(TwoRecords()) == [""]
    (stored,) = it.driver.blocks.known("clicks-0")
    assert (stored.records, Path(stored.places[0].path).exists()) == (2, True)
    registered = it.driver.tracker._registry.get(0)
    assert registered.has_ended
    assert [type(each).__name__ for each in it.driver.events] == [
        "ReceiverStarted",
        "ReceiverStopped",
    ]


def test_the_driver_can_end_it(it: World) -> None:
    ended: list[str] = []
    task = threading.Thread(target=lambda: ended.extend(it.run(Silent())))
    task.start()
    registry = it.driver.tracker._registry
    wait_for(lambda: registry.get(0).endpoint, "the receiver", 60)
    calls = ExecutorCalls(SECRET)
    for endpoint in registry.refuse_all():
        assert calls.tell(endpoint, StopReceiver("enough"))
    task.join(DEADLINE_S)
    calls.close()
    assert ended == [""]
    assert registry.get(0).endpoint == ""


class WillNotStop(Silent):
    def onStart(self) -> None:
        self.store(["a"])
        self.restart("try again")

    def onStop(self) -> None:
        threading.Event().wait(30)


def test_one_that_does_not_stop_for_its_restart_is_started_again_by_the_driver(it: World) -> None:
    settings = SupervisorSettings(block_interval_ms=20, restart_delay_ms=1, stop_timeout_ms=20)
    (error,) = World(it.driver, replace(it.setup, supervisor=settings)).run(WillNotStop())
    assert "another copy of it is started" in error
    assert len(it.driver.blocks.known("clicks-0")) == 1
    assert not it.driver.tracker._registry.get(0).has_ended
    assert it.driver.tracker._registry.may_start(0)


def test_one_that_is_turned_away_does_nothing(it: World) -> None:
    assert it.run(TwoRecords(), attempt=7) == [""]
    assert (it.driver.events, it.driver.blocks.all_blocks()) == ([], [])


@pytest.mark.parametrize("what", [Failing(), b"not a pickle"], ids=["import", "pickle"])
def test_an_error_is_a_result(it: World, what: Receiver | bytes) -> None:
    (error,) = it.run(what)
    assert error.startswith("Traceback")
    assert "ImportError: no module named clicks" in error or "UnpicklingError" in error


def test_a_driver_that_is_gone_is_an_error(it: World) -> None:
    gone = replace(it.setup, tracker="127.0.0.1:1/" + "0" * 32)
    (error,) = World(it.driver, gone).run(TwoRecords())
    assert "RpcUnavailableError" in error


def test_what_spark_runs_again_by_itself_does_nothing(
    it: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(attemptNumber=lambda: 1)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    assert it.run(TwoRecords()) == []
    assert it.driver.events == []
