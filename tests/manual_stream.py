"""A streaming context whose clock a test moves."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock


@dataclass
class Stream:
    """A context on a manual clock that has not started yet."""

    ssc: StreamingContext
    clock: ManualClock
    driver: BatchDriver

    def start_and_run(self, batches: int) -> None:
        self.ssc.start()
        self.driver.run(batches, timeout_s=300)
