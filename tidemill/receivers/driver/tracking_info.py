"""What the driver knows of one receiver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill.spark.session.executor_info import ExecutorInfo, Location


class ReceiverState(Enum):
    INACTIVE = "inactive"  # runs nowhere: not started yet, ended, or lost with its executor
    SCHEDULED = "scheduled"  # its task is on the way to one of its candidates
    ACTIVE = "active"  # it has registered, and runs


@dataclass(frozen=True)
class ReceiverTrackingInfo:
    """One receiver, now. A change makes a new one (``dataclasses.replace``).

    Attributes:
        scheduled: the candidates it was sent to, best first; empty: any executor; None: not sent.
        running: the executor that it runs on. An active receiver has one.
        name: what the UI calls it.
        last_error_message: the last error, in the words of whoever reported it; empty if none.
        last_error: the traceback of that error; empty if there was none.
        last_error_ms: when that was, or None.
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
