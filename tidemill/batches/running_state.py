"""The state of a running stream: which versions count, and the snapshots taken beside its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.batches.state_maintenance import StateMaintenance
from tidemill.checkpoint.batch_log import LoggedBatches
from tidemill.checkpoint.storage import Storage
from tidemill.state.operators import StateOperators

if TYPE_CHECKING:
    from pyspark import SparkContext


class RunningState:
    """Opened from the log when a stream starts. ``operators`` says of each operator if its keys time out."""

    def __init__(
        self,
        spark_context: SparkContext,
        storage: Storage,
        stream_id: str,
        logged: LoggedBatches,
        operators: Mapping[str, bool],
    ) -> None:
        self.operators = StateOperators.restored(storage, stream_id, logged, operators)
        self._maintenance = StateMaintenance(spark_context, self.operators)

    def start(self) -> None:
        """Let snapshots be taken."""
        self._maintenance.start()

    def drain(self, timeout_s: float) -> bool:
        """Wait until all snapshots that are due have been taken. Return False if that took too long."""
        return self._maintenance.drain(timeout_s)

    def stop(self) -> None:
        self._maintenance.stop()
