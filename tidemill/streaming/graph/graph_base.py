"""What nodes know of the graph they are in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tidemill.common.config import UNPERSIST
from tidemill.errors import IllegalStateError
from tidemill.state.program_classes import ProgramClasses

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tidemill.batches.batch import Batch, OffsetRange
    from tidemill.batches.running_state import RunningState
    from tidemill.state.operators import StateOperators
    from tidemill.streaming.program.trained_models import TrainedModels


class GraphBase:
    """The settings that all nodes of a graph share, and how far the run of the stream has come."""

    def __init__(self, spark_context: SparkContext, batch_ms: int) -> None:
        self.batch_ms = batch_ms
        self.remember_ms = 0
        self.checkpoint_directory: str | None = None
        self.begin_run(spark_context)

    def begin_run(self, spark_context: SparkContext) -> None:
        """Set everything that belongs to a run, and is not part of the program on disk."""
        self.spark_context = spark_context
        self.unpersist = UNPERSIST.read(spark_context.getConf())
        self.lock = threading.RLock()
        self.zero_ms = 0
        self.running_state: RunningState | None = None
        self.models: TrainedModels | None = None
        self.program_classes = ProgramClasses()
        # The id of a stream that has a checkpoint directory.
        self.stream_id: str | None = None
        # The times of unfinished batches that an earlier program planned with another batch interval.
        self.earlier_times: frozenset[int] = frozenset()
        # The batches whose RDDs may be asked for, by time.
        self._batches: dict[int, Batch] = {}
        # For times that were left out, and that windows look back at: the last batch before them, which had
        # no input, as a batch without any.
        self._left_out: dict[int, Batch] = {}
        self._frozen_because: str | None = None

    @property
    def has_directory(self) -> bool:
        """True if state and RDDs can be written: to the checkpoint directory, or to Spark's."""
        spark_context = self.spark_context
        return self.checkpoint_directory is not None or spark_context.getCheckpointDir() is not None

    @property
    def state(self) -> StateOperators | None:
        """The versions of the state of this run; None in a stream without state, or before its start."""
        return None if self.running_state is None else self.running_state.operators

    def has_batch(self, time_ms: int) -> bool:
        """Return False for a time whose batch was forgotten, or is not planned yet."""
        return time_ms in self._batches or time_ms in self._left_out

    def is_left_out(self, time_ms: int) -> bool:
        """Return True for a time that has no batch of its own: nothing came in, and all state rested."""
        return time_ms in self._left_out

    def batch_id(self, time_ms: int) -> int:
        """Return the id of the batch of ``time_ms``, or of the last one before a time that was left out."""
        batch = self._batch_at(time_ms)
        assert batch is not None
        return batch.batch_id

    def planned_ms(self, time_ms: int) -> int:
        """Return ``time_ms``, or the time of the last batch before it if it was left out."""
        batch = self._batch_at(time_ms)
        assert batch is not None
        return batch.time_ms

    def _batch_at(self, time_ms: int) -> Batch | None:
        return self._batches.get(time_ms) or self._left_out.get(time_ms)

    def range_at(self, time_ms: int, source_id: int) -> OffsetRange | None:
        """Return what the batch of ``time_ms`` reads of a source; None if there is no such batch."""
        batch = self._batch_at(time_ms)
        return None if batch is None else batch.ranges.get(source_id)

    def tasks_at(self, time_ms: int) -> int:
        """Return how many tasks read the input of the batch of ``time_ms``."""
        batch = self._batch_at(time_ms)
        return self.spark_context.defaultParallelism if batch is None else batch.shape.tasks

    def freeze(self, because: str) -> None:
        """Refuse all changes from now on. ``because`` ends "a StreamingContext that ..."."""
        self._frozen_because = because

    def refuse_change_after_start(
        self, change: str = "inputs, transformations and output operations cannot be added"
    ) -> None:
        """Raise if the graph is frozen. ``change`` says what can no longer be done."""
        if self._frozen_because is not None:
            raise IllegalStateError(
                f"{change} once a StreamingContext {self._frozen_because}: define the whole stream "
                "before start()"
            )
