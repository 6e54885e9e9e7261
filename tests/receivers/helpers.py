"""Clocks that tests can watch, and a driver and a block store that tests control."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidemill.checkpoint.log_records import LogSlice
from tidemill.common.clock import ManualClock, never
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, decode
from tidemill.receivers.blocks.read_back import read_back_records
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.executor.supervision import SupervisorSettings
from tidemill.receivers.executor.supervisor import ReceiverSupervisor
from tidemill.receivers.messages import BlockAdded, UpdateHeldBytes
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import RequestKey

PATIENCE_S = 30.0


class WatchedClock(ManualClock):
    """Knows the times that threads wait for."""

    def __init__(self, start_ms: int = 0) -> None:
        super().__init__(start_ms)
        self._waiters = threading.Condition()
        self._targets: list[int] = []

    def wait_till(self, target_ms: int, interrupted: Callable[[], bool] = never) -> bool:
        with self._waiters:
            self._targets.append(target_ms)
            self._waiters.notify_all()
        try:
            return super().wait_till(target_ms, interrupted)
        finally:
            with self._waiters:
                self._targets.remove(target_ms)

    def await_waiter(self, target_ms: int) -> None:
        """Wait until a thread waits for exactly this time."""
        with self._waiters:
            assert self._waiters.wait_for(lambda: target_ms in self._targets, PATIENCE_S), (
                target_ms,
                self._targets,
            )

    def tick(self, period_ms: int) -> None:
        """Advance to the next multiple of the period, and wait until the timer of that period has run."""
        next_ms = (self.now_ms() // period_ms + 1) * period_ms
        self.await_waiter(next_ms)
        self.set_to(next_ms)
        self.await_waiter(next_ms + period_ms)


class SteppingClock(ManualClock):
    """Advances by itself to the time a thread waits for, and a little further: threads wake up late."""

    def __init__(self, start_ms: int = 0, late_ms: int = 0) -> None:
        super().__init__(start_ms)
        self.late_ms = late_ms

    def wait_till(self, target_ms: int, interrupted: Callable[[], bool] = never) -> bool:
        if interrupted():
            return False
        if target_ms > self.now_ms():
            self.set_to(target_ms + self.late_ms)
        return True


class InThread:
    """A call on another thread, and its outcome."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has returned; raise its error."""
        self._thread.join(PATIENCE_S)
        assert self.is_done, "the call does not return"
        if self._error is not None:
            raise self._error


class FakeDriver:
    """Accepts every block, unless the test says otherwise."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.infos: list[BlockInfo] = []
        self.errors: list[tuple[str, str]] = []
        self.answers: list[BlockAdded | Exception] = []  # instead of the usual one
        self.refuses = False
        self.held_bytes = 0
        self.held_version = 0
        self.asked = 0
        # Every report: the block, the first number and the oldest segment that may still be reported.
        self.reports: list[tuple[BlockInfo, int, str]] = []

    def add_block(
        self,
        info: BlockInfo,
        keys: Sequence[RequestKey] = (),
        first_unreported: int = 0,
        oldest_segment: str = "",
    ) -> BlockAdded:
        with self.changed:
            self.reports.append((info, first_unreported, oldest_segment))
            self.changed.notify_all()
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            if self.refuses:
                return BlockAdded(False, self.held_bytes, "no")
            self.infos.append(info)
            return BlockAdded(True, self.held_bytes)

    def ask_held(self) -> UpdateHeldBytes:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
            return UpdateHeldBytes(self.held_bytes, self.held_version)

    def report_error(self, message: str, error: str) -> None:
        with self.changed:
            self.errors.append((message, error))
            self.changed.notify_all()

    def await_(self, condition: Callable[[], object], what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (what, self.errors)

    def await_error(self, text: str) -> str:
        """Wait for an error whose message has this text, and return its traceback."""
        self.await_(lambda: any(text in message for message, _ in self.errors), text)
        return next(error for message, error in self.errors if text in message)


class FakeHandler:
    """Blocks in a dict."""

    def __init__(self) -> None:
        self.blocks: dict[str, EncodedBlock] = {}
        self.failures: list[Exception] = []
        self.stored = 0
        self.segment = ""

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo:
        self.stored += 1
        if self.failures:
            raise self.failures.pop(0)
        self.blocks[block_id] = block
        slice_ = LogSlice(self.segment, 24, block.bytes) if self.segment else None
        return BlockInfo(7, block_id, block.records, block.bytes, "", slice_=slice_)

    def discard(self, info: BlockInfo) -> None:
        del self.blocks[info.block_id]


class Idle(Receiver):
    """Does nothing by itself; records the calls of its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def onStart(self) -> None:
        self.calls.append("start")

    def onStop(self) -> None:
        self.calls.append("stop")


class World:
    """A receiver with a real supervisor, on a clock that stands still."""

    def __init__(self, receiver: Receiver, **settings: Any) -> None:
        self.clock = WatchedClock()
        self.driver = FakeDriver()
        self.handler = FakeHandler()
        self.limiter = RateLimiter(self.clock, settings.pop("max_rate", None))
        self.receiver = receiver
        read_back = settings.pop("read_back", read_back_records)
        self.supervisor = ReceiverSupervisor(
            receiver,
            7,
            "run",
            self.driver,
            self.handler,
            self.limiter,
            self.clock,
            SupervisorSettings(**settings),
            read_back,
        )

    def taken_over(self) -> list[list[Any]]:
        """The records of each accepted block, in order."""
        return [list(decode(self.handler.blocks[info.block_id].data)) for info in self.driver.infos]

    def records(self) -> list[Any]:
        return [record for block in self.taken_over() for record in block]

    def await_records(self, count: int) -> list[Any]:
        """Wait until ``count`` records are accepted. The clock must move for that: it cuts the blocks."""
        deadline = threading.Event()
        timer = threading.Timer(PATIENCE_S, deadline.set)
        timer.start()
        while sum(info.records for info in self.driver.infos) < count:
            assert not deadline.is_set(), (self.records(), self.driver.errors)
            self.clock.advance(200)
            deadline.wait(0.002)
        timer.cancel()
        return self.records()

    def stop(self, message: str = "enough") -> None:
        self.supervisor.stop(message)
        InThread(self.supervisor.wait).join()


@contextmanager
def running(receiver: Receiver, **settings: Any) -> Iterator[World]:
    world = World(receiver, **settings)
    world.supervisor.start()
    try:
        yield world
    finally:
        world.supervisor.give_up()
        world.stop()
