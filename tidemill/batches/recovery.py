"""Where a stream stands when it starts, from what its log has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.batches.batch import Batch
from tidemill.batches.pipeline import Pipeline
from tidemill.batches.planner import BatchPlanner
from tidemill.checkpoint.batch_log import LoggedBatches
from tidemill.common.clock import Clock

NOTHING_LOGGED = LoggedBatches({}, {})


@dataclass(frozen=True)
class Position:
    """What a stream goes on with."""

    # Planned and not committed, oldest first: they run before anything new is planned.
    unfinished: Sequence[Batch]
    # Committed, with input that can be read again: a window may look back at them.
    readable: Sequence[Batch]
    # The time of the last batch that was planned. None: none ever was.
    last_time_ms: int | None
    # The watermark that the last committed batch ran with, and the one that the next batch runs with.
    last_watermark_ms: int
    next_watermark_ms: int


def recover(
    planner: BatchPlanner,
    pipeline: Pipeline,
    logged: LoggedBatches,
    clock: Clock,
    start_ms: int | None = None,
) -> Position:
    """Start the sources, and find out where the stream goes on.

    IF nothing was ever planned, the first batch begins where the sources begin.
    ELSE IF the last ``offsets/N`` has a ``commits/N``, the next batch is N+1: it begins where N ended, from
    the state of version N and with the watermark that ``commits/N`` names.
    ELSE the batches after the last commit run again, one after the other, each with its own time, watermark,
    ranges and shape, and from the state of the version before it; sinks that have one already get it no
    second time.

    IF the clock shows a time before the last planned batch, it has been set back: it goes on from that batch.

    ``start_ms`` is the time that sources are told; the clock's own if it is None.
    """
    last = logged.last_planned
    last_time_ms = None if last is None else logged.offsets[last].batch_time_ms
    if last_time_ms is not None:
        clock.start_after(last_time_ms)
    planner.start(clock.now_ms() if start_ms is None else start_ms)
    batches = [
        # Spark's own log, or one of an earlier version, does not say how a batch runs. No new seed is drawn:
        # the next run would draw another one.
        batch
        if batch.shape.tasks
        else replace(batch, shape=replace(pipeline.shape(batch), seed=batch.shape.seed))
        for batch in planner.restore(logged)
    ]
    unfinished = set(logged.unfinished)
    done = logged.last_committed
    last_watermark_ms = next_watermark_ms = 0
    if done is not None:
        next_watermark_ms = logged.commits[done].next_watermark_ms
        if done in logged.offsets:
            last_watermark_ms = logged.offsets[done].watermark_ms
    if last is not None:
        next_watermark_ms = max(next_watermark_ms, logged.offsets[last].watermark_ms)
    return Position(
        [batch for batch in batches if batch.batch_id in unfinished],
        [batch for batch in batches if batch.batch_id not in unfinished],
        last_time_ms,
        last_watermark_ms,
        next_watermark_ms,
    )
