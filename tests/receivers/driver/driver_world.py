"""A driver with receivers, without Spark: the test plays everything around the tracker."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from tests.waiting import wait_for
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_records import LogSlice
from tidemill.checkpoint.storage import Storage
from tidemill.common import fault_points
from tidemill.common.clock import ManualClock
from tidemill.progress.events import StreamEvent
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.driver.block_cleaner import BlockCleaner
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.driver.receiver_jobs import ReceiverJobs
from tidemill.receivers.driver.tracker import ReceiverInput, ReceiverTracker
from tidemill.receivers.messages import (
    AddBlock,
    AddBlockServer,
    BlockAdded,
    DeregisterReceiver,
    Message,
    Registered,
    RegisterReceiver,
    ReportError,
    decode,
)
from tidemill.receivers.receiver import Receiver
from tidemill.spark.session.executor_info import ExecutorInfo, Location
from tidemill.spark.session.executors import SparkExecutors


def block(number: int = 0, stream: int = 0, run: str = "a1", **changes: Any) -> BlockInfo:
    block_id = f"input-{stream}-{run}-{number}"
    place = BlockPlace("1", "node1", f"/blocks/{block_id}", "")
    info = BlockInfo(
        stream,
        block_id,
        10,
        1000 + number,
        f"sha-{number}",
        (place,),
        LogSlice("received/data/clicks/0000000001-0-60000-aa.log", 24 + number, 1000),
    )
    return replace(info, **changes)


def segment(number: int, name: str = "clicks", writer: str = "aa") -> str:
    return f"received/data/{name}/{number:010d}-0-60000-{writer}.log"


def slice_of(path: str) -> LogSlice:
    return LogSlice(path, 24, 10)


@contextmanager
def faults(folder: Path, plan: str) -> Iterator[None]:
    """Let fault points of this process strike as planned, with new counters."""
    counters = folder / "faults"
    counters.mkdir(exist_ok=True)
    for counter in counters.iterdir():
        counter.unlink()
    with (
        mock.patch.dict(os.environ, {fault_points.COUNTERS: str(counters)}),
        mock.patch.object(fault_points, "_plan", fault_points.parse_plan(plan)),
    ):
        yield


class Silent(Receiver):
    """Receives nothing."""

    def __init__(self, host: str | None = None) -> None:
        super().__init__()
        self.host = host

    def onStart(self) -> None:
        pass

    def onStop(self) -> None:
        pass

    def preferredLocation(self) -> str | None:
        return self.host


def executor(id_: int, host: str | None = None) -> ExecutorInfo:
    return ExecutorInfo(str(id_), host or f"node{id_}", 2)


@dataclass
class FakeExecutors:
    alive: list[ExecutorInfo]
    error: Exception | None = None

    def executors(self) -> list[ExecutorInfo]:
        if self.error is not None:
            raise self.error
        return list(self.alive)


@dataclass
class Launch:
    """The job of a receiver."""

    stream_id: int
    attempt: int
    candidates: tuple[Location, ...]
    end: Callable[[str], None]

    @property
    def on(self) -> list[str]:
        return [each if isinstance(each, str) else each.executor_id for each in self.candidates]


@dataclass
class FakeJobs:
    """Jobs that run until the test ends them."""

    launches: list[Launch] = field(default_factory=list)
    servers_on: list[list[str]] = field(default_factory=list)
    error: Exception | None = None
    cancelled: int = 0
    waited_s: list[float] = field(default_factory=list)

    def start_block_servers(self, executors: Sequence[ExecutorInfo]) -> None:
        self.servers_on.append([each.executor_id for each in executors])
        if self.error is not None:
            raise self.error

    def launch(
        self,
        receiver: ReceiverInput,
        attempt: int,
        candidates: tuple[Location, ...],
        on_end: Callable[[str], None],
    ) -> None:
        self.launches.append(Launch(receiver.stream_id, attempt, candidates, on_end))

    def wait(self, timeout_s: float) -> bool:
        self.waited_s.append(timeout_s)
        return True

    def cancel(self) -> None:
        self.cancelled += 1
        if self.error is not None:
            raise self.error


@dataclass
class FakeCalls:
    """Every call arrives, unless the test says otherwise."""

    told: list[tuple[str, Message]] = field(default_factory=list)
    cleanups: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)
    stopped_servers: list[str] = field(default_factory=list)
    closed: int = 0

    def tell(self, endpoint: str, message: Message, name: str | None = None) -> bool:
        self.told.append((endpoint, message))
        return endpoint not in self.unreachable

    def cleanup(self, endpoint: str, block_ids: tuple[str, ...]) -> bool:
        self.cleanups.append((endpoint, block_ids))
        return endpoint not in self.unreachable

    def forget(self, endpoint: str) -> None:
        if endpoint:
            self.forgotten.append(endpoint)

    def stop_block_servers(self, endpoints: Sequence[str]) -> None:
        self.stopped_servers += endpoints

    def close(self) -> None:
        self.closed += 1


class DriverWorld:
    """A tracker of receivers 0, 1, ... whose streams are called ``clicks-0``, ``clicks-1``, ..."""

    def __init__(
        self,
        executors: Sequence[ExecutorInfo],
        receivers: Sequence[Receiver],
        storage: Storage | None = None,
    ) -> None:
        self.clock = ManualClock(1_000_000)
        self.executors = FakeExecutors(list(executors))
        self.jobs = FakeJobs()
        self.calls = FakeCalls()
        self.events: list[StreamEvent] = []
        keys = {f"clicks-{n}": each._key_settings for n, each in enumerate(receivers)}
        self.blocks = BlockTracker(storage, self.clock, keys=keys).start()
        self.cleaner = BlockCleaner(cast(Any, self.calls), None, storage)
        self.tracker = ReceiverTracker(
            [ReceiverInput(n, f"clicks-{n}", each, b"") for n, each in enumerate(receivers)],
            self.blocks,
            cast(SparkExecutors, self.executors),
            cast(ReceiverJobs, self.jobs),
            self.cleaner,
            cast(Any, self.calls),
            self.events.append,
            self.clock,
        )

    # -- the jobs ------------------------------------------------------------------------------

    def launches(self, count: int) -> list[Launch]:
        """Wait for ``count`` launches, and check that there are no more."""
        wait_for(lambda: len(self.jobs.launches) >= count, f"{count} launches", 30)
        self.settle()
        assert len(self.jobs.launches) == count
        return self.jobs.launches

    def settle(self) -> None:
        """Wait until the tracker has handled all events so far."""
        rounds = len(self.calls.cleanups)
        # An event that goes through the same queue, and shows at its end.
        self.tracker.forget([block(0, stream=99, places=(BlockPlace("x", "x", "", "probe"),))])
        wait_for(lambda: len(self.calls.cleanups) > rounds, "the tracker", 30)
        self.calls.cleanups = [each for each in self.calls.cleanups if each[0] != "probe"]

    def has_a_waiter(self) -> bool:
        """Return True while a restart waits for its time."""
        return any(each.name == "tidemill-receiver-restart" for each in threading.enumerate())

    # -- what executors say --------------------------------------------------------------------

    def say(self, message: Message) -> bytes:
        return self.tracker.answer(type(message).__name__, message.encode())

    def register(
        self, stream_id: int, attempt: int, executor_id: str, host: str | None = None
    ) -> Registered:
        message = RegisterReceiver(
            stream_id,
            attempt,
            "Silent",
            executor_id,
            host or f"node{executor_id}",
            f"endpoint-{stream_id}-{attempt}",
        )
        return decode(Registered, self.say(message))

    def add_block(self, info: BlockInfo, attempt: int = 1, **report: Any) -> BlockAdded:
        return decode(BlockAdded, self.say(AddBlock(attempt, info, **report)))

    def deregister(self, stream_id: int, attempt: int, message: str = "", error: str = "") -> None:
        self.say(DeregisterReceiver(stream_id, attempt, message, error))

    def report_error(self, stream_id: int, message: str, error: str) -> None:
        self.say(ReportError(stream_id, message, error))

    def add_block_server(self, executor_id: str) -> None:
        self.say(AddBlockServer(executor_id, f"node{executor_id}", f"server-{executor_id}"))


@contextmanager
def driver(
    executors: int | Sequence[ExecutorInfo] = 2,
    receivers: int | Sequence[Receiver] = 1,
    folder: Path | None = None,
) -> Iterator[DriverWorld]:
    """Start the tracker of a driver."""
    it = DriverWorld(
        [executor(id_) for id_ in range(executors)] if isinstance(executors, int) else executors,
        [Silent() for _ in range(receivers)] if isinstance(receivers, int) else receivers,
        None if folder is None else LocalStorage(str(folder)),
    )
    it.tracker.start()
    try:
        yield it
    finally:
        it.tracker.stop()
        wait_for(lambda: not it.has_a_waiter(), "the end of restarts that wait", 30)
