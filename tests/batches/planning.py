"""Plans of batches, without anything that runs them."""

from __future__ import annotations

from tidemill.batches.batch import Batch
from tidemill.batches.planner import BatchPlanner
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import Storage


def plan_batch(planner: BatchPlanner, time_ms: int, storage: Storage | None = None) -> Batch:
    """The next batch, as the runner makes it: planned, logged, and the beginning of the one after it."""
    plan = planner.plan(time_ms)
    if storage is not None:
        BatchLog(storage).write_offsets(plan.batch.batch_id, plan.record)
    planner.advance(plan)
    return plan.batch
