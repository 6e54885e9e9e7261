"""A receiver with a real supervisor, and a driver that does as it is told: no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.waiting import wait_for
from tidemill.common.clock import SystemClock
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, decode
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.executor.supervisor import ReceiverSupervisor, SupervisorSettings
from tidemill.receivers.messages import BlockAdded
from tidemill.receivers.receiver import Receiver

SOON_S = 30.0


class FakeDriver:
    """Both the tracker and the handler of a supervisor. Accepts blocks unless it is held back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._stored: dict[str, list[Any]] = {}
        self.offered: list[list[Any]] = []
        self.blocks: list[list[Any]] = []
        self.errors: list[str] = []
        self.is_broken = False
        self.on_offered: Callable[[int], None] = lambda records: None

    @property
    def safe(self) -> list[Any]:
        """The records of all accepted blocks."""
        with self._lock:
            return [record for block in self.blocks for record in block]

    def hold_back(self) -> None:
        self._may_answer.clear()

    def let_go(self) -> None:
        self._may_answer.set()

    # -- the handler ---------------------------------------------------------------------------

    def store(self, block_id: str, block: EncodedBlock) -> BlockInfo:
        self._stored[block_id] = list(decode(block.data))
        return BlockInfo(0, block_id, block.records, block.bytes, "")

    # -- the tracker ---------------------------------------------------------------------------

    def add_block(self, info: BlockInfo) -> BlockAdded:
        records = self._stored[info.block_id]
        self.offered.append(records)
        self.on_offered(len(records))
        assert self._may_answer.wait(SOON_S)
        if self.is_broken:
            return BlockAdded(False, 0, "the disk is full")
        with self._lock:
            self.blocks.append(records)
        return BlockAdded(True, 0)

    def report_error(self, message: str, error: str) -> None:
        self.errors.append(message)

    def wait_for_error(self, text: str) -> None:
        wait_for(lambda: any(text in error for error in self.errors), text, SOON_S)


class Supervised:
    """``with Supervised(receiver) as driver``: the receiver runs, and has ended afterwards."""

    def __init__(
        self,
        receiver: Receiver,
        driver: FakeDriver | None = None,
        *,
        block_interval_ms: int = 20,
        restart_delay_ms: int = 50,
    ) -> None:
        self.receiver = receiver
        self.driver = driver or FakeDriver()
        clock = SystemClock()
        self.supervisor = ReceiverSupervisor(
            receiver,
            0,
            "run",
            self.driver,
            self.driver,
            RateLimiter(clock),
            clock,
            SupervisorSettings(
                block_interval_ms=block_interval_ms, restart_delay_ms=restart_delay_ms
            ),
        )

    def stop(self) -> None:
        self.supervisor.stop("the test is over")
        self.supervisor.wait()

    def __enter__(self) -> FakeDriver:
        self.supervisor.start()
        return self.driver

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.let_go()
        self.stop()
