"""The driver's knowledge of one receiver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill.spark.session.executor_info import ExecutorInfo, Location


class ReceiverState(Enum):
    INACTIVE = "inactive"  # it runs nowhere: not started yet, ended, or lost with its executor
    SCHEDULED = "scheduled"  # its task is on the way to one of its candidates
    ACTIVE = "active"  # it has registered, and runs


@dataclass(frozen=True)
class ReceiverTrackingInfo:
    """The state of one receiver at one moment. Change it with ``dataclasses.replace``.

    Attributes:
        scheduled: the candidates it was sent to, best first; empty for any executor; None before that.
        running: the executor on which it runs, or None; an active receiver has one.
        name: its name in the UI.
        last_error_message: the message of the last error; empty if there was none.
        last_error: the traceback of that error; empty if there was none.
        last_error_ms: the time of that error, or None.
    """

    stream_id: int
    state: ReceiverState
    scheduled: tuple[Location, ...] | None = None
    running: ExecutorInfo | None = None
    name: str = ""
    last_error_message: str = ""
    last_error: str = ""
    last_error_ms: int | None = None

    def __post_init__(self) -> None:
        if self.state is ReceiverState.ACTIVE and self.running is None:
            raise ValueError(f"receiver {self.stream_id} is active, but on no executor")
