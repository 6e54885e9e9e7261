"""A receiver with a real supervisor, and a driver that does as it is told: no Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from tests.waiting import wait_for
from tidemill.common.clock import SystemClock
from tidemill.errors import RpcTimeoutError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock, decode
from tidemill.receivers.blocks.read_back import ReadBack, read_back_records
from tidemill.receivers.executor.rate_limiter import RateLimiter
from tidemill.receivers.executor.supervision import SupervisorSettings
from tidemill.receivers.executor.supervisor import ReceiverSupervisor
from tidemill.receivers.messages import BlockAdded, UpdateHeldBytes
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.request_keys import KeyMemory, RequestKey

SOON_S = 30.0
_RUNS = itertools.count()


class FakeDriver:
    """Both the tracker and the handler of a supervisor. Accepts blocks unless it is held back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._stored: dict[str, list[Any]] = {}
        self.encoded: list[EncodedBlock] = []
        self._accepted: set[str] = set()
        self.offered: list[list[Any]] = []
        self.blocks: list[list[Any]] = []
        self.errors: list[str] = []
        self.is_broken = False
        self.loses_answers = False
        self.keys = KeyMemory()
        self.remembered_keys = 0
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
        self.encoded.append(block)
        return BlockInfo(0, block_id, block.records, block.bytes, "")

    def discard(self, info: BlockInfo) -> None:
        del self._stored[info.block_id]

    # -- the tracker ---------------------------------------------------------------------------

    def add_block(
        self,
        info: BlockInfo,
        keys: Sequence[RequestKey] = (),
        first_unreported: int = 0,
        oldest_segment: str = "",
    ) -> BlockAdded:
        records = self._stored[info.block_id]
        self.offered.append(records)
        self.on_offered(len(records))
        assert self._may_answer.wait(SOON_S)
        if self.is_broken:
            return BlockAdded(False, 0, "the disk is full")
        with self._lock:
            if info.block_id in self._accepted:
                return BlockAdded(True, 0)
            if repeated := self.keys.known(keys):
                return BlockAdded(False, 0, "repeated", repeated=tuple(repeated))
            self.keys.add(info.block_id, keys)
            self.keys.trim(self.remembered_keys)
            self._accepted.add(info.block_id)
            self.blocks.append(records)
            if self.loses_answers:
                raise RpcTimeoutError("the answer was lost", "driver", "AddBlock")
        return BlockAdded(True, 0)

    def ask_held(self) -> UpdateHeldBytes:
        return UpdateHeldBytes(0)

    def report_error(self, message: str, error: str) -> None:
        self.errors.append(message)

    def wait_for_error(self, text: str) -> None:
        # Some receivers wait for a server first, and that may wait for the machine.
        wait_for(lambda: any(text in error for error in self.errors), text)


class Supervised:
    """``with Supervised(receiver) as driver``: the receiver runs, and has ended afterwards."""

    def __init__(
        self,
        receiver: Receiver,
        driver: FakeDriver | None = None,
        *,
        block_interval_ms: int = 20,
        restart_delay_ms: int = 50,
        max_failures: int = 3,
        read_back: ReadBack = read_back_records,
    ) -> None:
        self.receiver = receiver
        self.driver = driver or FakeDriver()
        self.driver.remembered_keys = receiver._key_settings.remembered
        clock = SystemClock()
        self.supervisor = ReceiverSupervisor(
            receiver,
            0,
            f"run{next(_RUNS)}",
            self.driver,
            self.driver,
            RateLimiter(clock),
            clock,
            SupervisorSettings(
                block_interval_ms=block_interval_ms,
                restart_delay_ms=restart_delay_ms,
                max_failures=max_failures,
            ),
            read_back,
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
