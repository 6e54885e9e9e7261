"""What happens to a batch, from its plan to the news of its end.

The life of batch N, and what is durable after each step:

1. **plan**: each source says how far it reaches, within the limits that hold; the pipeline says how the
   batch runs. Nothing is durable yet.
2. **log**: ``offsets/N`` is written, with the ranges, the time, the watermark and the shape of the batch: it
   exists, and is the same whenever it runs.
3. **run**: the pipeline computes. State of version N is made from version N-1, in files that nobody reads
   yet; sinks stage.
4. **commit**: IF the stream was stopped while the batch ran, or lost its directory or its Spark context,
   nothing is committed. ELSE each sink commits batch N, then ``commits/N`` is written and names the state
   files of version N: the batch is done.
5. **forget**: sources, logs and state drop what no later batch and no recovery can need.
6. **learn**: rate controllers hear how long the batch took for how many records.
7. **announce**: the front end tells its listeners.

A driver that dies before ``commits/N`` is there leaves a batch that runs again: see
:mod:`tidemill.batches.recovery`. A stream without a checkpoint directory skips 2 and the files of 4.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.batches.batch import Batch
from tidemill.batches.durable import DurableBatches
from tidemill.batches.pipeline import BatchResult, Pipeline
from tidemill.batches.planner import BatchPlanner, Outlook
from tidemill.batches.rate_feed import RateFeed
from tidemill.batches.sink import Sink
from tidemill.checkpoint.batch_log import CommitRecord
from tidemill.common.clock import Clock
from tidemill.common.fault_points import fault_point
from tidemill.errors import IllegalStateError, OwnershipLostError
from tidemill.progress.batch_info import ProcessedBatch

logger = logging.getLogger(__name__)

LOG, SINKS, COMMIT = "log", "sinks", "commit"
"""The parts of ``ProcessedBatch.step_ms``: writing ``offsets/N``, the sinks' commits, ``commits/N``."""

R = TypeVar("R", bound=BatchResult)


class BatchAbandonedError(Exception):
    """The stream was stopped while the batch ran: it is not committed, and runs again at the next start."""


class BatchObserver(ABC, Generic[R]):
    """A front end, as the runner sees it. Exactly one of the methods is called for each batch that ran."""

    @abstractmethod
    def batch_done(self, batch: Batch, result: R, processed: ProcessedBatch) -> None:
        """The batch is committed: tell the listeners."""

    @abstractmethod
    def batch_failed(self, batch: Batch, error: BaseException) -> None:
        """The batch is not committed, because of ``error``, which the runner returns after this call."""


@dataclass(frozen=True)
class RunningStream(Generic[R]):
    """What a front end supplies: what runs on a batch, where rows go, who hears of it."""

    pipeline: Pipeline
    observer: BatchObserver[R]
    is_spark_running: Callable[[], bool]
    sinks: Sequence[Sink] = ()


class BatchRunner(Generic[R]):
    """Takes the batches of one stream through the steps.

    :meth:`plan` and :meth:`run` may be called by different threads: planning goes on while a batch runs. A
    stream with a checkpoint directory runs one batch after the other.
    """

    def __init__(
        self,
        stream: RunningStream[R],
        planner: BatchPlanner,
        rates: RateFeed,
        clock: Clock,
        durable: DurableBatches | None = None,
    ) -> None:
        self._pipeline = stream.pipeline
        self._sinks = stream.sinks
        self._observer = stream.observer
        self._is_spark_running = stream.is_spark_running
        self._planner = planner
        self._rates = rates
        self._clock = clock
        self._durable = durable
        self._abandoned = threading.Event()
        # Sources are called by one thread at a time.
        self._planning = threading.Lock()
        # Batches that are planned and not over, oldest first. Those that ended before an older one are in
        # ``_ended_ids``.
        self._running: deque[Batch] = deque()
        self._ended_ids: set[int] = set()
        # Batches that are over, and whose input may still be read, oldest first.
        self._readable: deque[Batch] = deque()
        # How long it took to log the batches that wait for their turn.
        self._log_ms: dict[int, int] = {}

    def resume(self, readable: Sequence[Batch], unfinished: Sequence[Batch]) -> None:
        """Know the batches of an earlier run. Called before the first batch."""
        self._readable = deque(readable)
        for batch in readable:
            self._planner.processed(batch)
        self._running = deque(unfinished)

    def plan(self, time_ms: int, outlook: Outlook | None = None, watermark_ms: int = 0) -> Batch:
        """Make the next batch, and return it when it is durable: steps 1 and 2.

        A source that fails leaves the plan where it was, and the next batch catches up.
        """
        with self._planning:
            plan = self._planner.plan(time_ms, outlook, watermark_ms)  # 1
            plan = plan.in_shape(self._pipeline.shape(plan.batch))
            batch = plan.batch
            if self._durable is not None:
                began_ms = self._clock.now_ms()
                self._durable.write_offsets(batch.batch_id, plan.record)  # 2
                self._log_ms[batch.batch_id] = self._clock.now_ms() - began_ms
            self._planner.advance(plan)
            self._running.append(batch)
            return batch

    def run(self, batch: Batch, due_ms: int) -> BaseException | None:
        """Take a planned batch through steps 3 to 7.

        Returns the error that keeps the batch from being committed, of which the observer has heard; None if
        it is committed. An error after the commit is raised: the batch counts, and cleaning up goes on with
        the next one. ``due_ms`` is when the batch should have begun: the difference is what it had to wait.
        """
        began_ms = self._clock.now_ms()
        log_ms = self._log_ms.pop(batch.batch_id, None)
        step_ms = {} if log_ms is None else {LOG: log_ms}
        try:
            result = self._run(batch)  # 3
            ended_ms = self._clock.now_ms()
            step_ms |= self._commit(batch, result)  # 4
        except BaseException as error:
            failure = self._reason(error)
            if failure is not error:
                failure.__cause__ = error
            self._observer.batch_failed(batch, failure)
            return failure
        processed = ProcessedBatch(
            batch.batch_id,
            began_ms,
            ended_ms,
            max(0, began_ms - due_ms),
            result.input_rows,
            step_ms,
        )
        try:
            self._forget(batch)  # 5
        finally:  # the batch is committed, whatever cannot be deleted
            self._rates.learn(processed)  # 6
            self._observer.batch_done(batch, result, processed)  # 7
        return None

    def _run(self, batch: Batch) -> R:
        lacking = [sink for sink in self._sinks if not sink.has_batch(batch.batch_id)]
        fault_point("batch.before-run")
        result = self._pipeline.run(batch, lacking)
        fault_point("batch.after-run")
        return result  # type: ignore[return-value]  # a pipeline and its observer belong together

    def _commit(self, batch: Batch, result: R) -> dict[str, int]:
        """Return how long the parts of the step took."""
        self._require_ours(batch)
        began_ms = self._clock.now_ms()
        for sink in self._sinks:
            sink.commit(batch.batch_id)
            fault_point("batch.after-sink")
        sinks_done_ms = self._clock.now_ms()
        if self._durable is None:
            return {}
        state = self._pipeline.state
        versions = {} if state is None else dict(state.operators.versions_of(batch.batch_id))
        late_rows = self._durable.late_rows + result.late_rows
        record = CommitRecord(versions, result.next_watermark_ms, late_rows)
        self._durable.commit(batch.batch_id, record)
        if state is not None:
            state.operators.committed(batch.batch_id)
        return {SINKS: sinks_done_ms - began_ms, COMMIT: self._clock.now_ms() - sinks_done_ms}

    def _require_ours(self, batch: Batch) -> None:
        """Refuse to commit a batch whose jobs may have been cancelled, whatever user code made of that."""
        if self._abandoned.is_set():
            raise BatchAbandonedError(f"the stream was stopped while batch {batch.batch_id} ran")
        if not self._is_spark_running():
            raise IllegalStateError(
                f"Spark was stopped while batch {batch.batch_id} ran: the batch is not committed, and runs "
                "again when the stream is started from its checkpoint"
            )
        if self._durable is not None and self._sinks:  # else the commit itself finds out
            self._durable.require_ownership()

    def _reason(self, error: BaseException) -> BaseException:
        """Why a batch is not committed: a stream that is stopped or replaced fails for that reason alone."""
        if self._abandoned.is_set() and not isinstance(error, BatchAbandonedError):
            return BatchAbandonedError(str(error))
        if self._durable is not None and isinstance(error, Exception):
            try:
                self._durable.require_ownership()
            except OwnershipLostError as lost:
                return lost
            except Exception:
                logger.debug("whose directory it is cannot be said", exc_info=True)
        return error

    def abandon(self) -> None:
        """Commit nothing from now on. Called before the jobs of a running batch are cancelled."""
        self._abandoned.set()

    def _forget(self, batch: Batch) -> None:
        """Forget what neither a batch that runs, nor a later one, nor a recovery can ask for.

        Batches may run at the same time, and end in any order: forget up to the oldest that still runs.
        """
        with self._planning:
            self._ended_ids.add(batch.batch_id)
            while self._running and self._running[0].batch_id in self._ended_ids:
                self._readable.append(self._running.popleft())
                self._ended_ids.discard(self._readable[-1].batch_id)
                self._planner.processed(self._readable[-1])
            if not self._readable or batch.batch_id > self._readable[-1].batch_id:
                return  # an older batch still runs, and may need all of it
            needed_from = self._pipeline.forget(self._readable[-1])
            while self._readable and self._readable[0].batch_id < needed_from:
                self._planner.commit(self._readable.popleft())
            fault_point("batch.after-sources")
            if self._durable is not None:
                oldest = self._durable.purge(needed_from - 1)
                if self._pipeline.state is not None:
                    self._pipeline.state.operators.forget_before(oldest)
        fault_point("batch.over")
