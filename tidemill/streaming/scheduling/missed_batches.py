"""Which of the batch times that a stream has missed get a batch.

A batch time is *missed* when the clock shows a later one before its batch is planned: the clock was set
forward, the machine slept, the planner was held up, or the driver was down. Missed times get their batches
late, one after the other, as in Spark, also when they are empty. A day of empty batches would be an hour of
work for nothing, so a long stretch of them is one step. The rule:

1. The batch of the present time T is planned and runs. IF it has input, the next batch is that of the
   following time.
2. ELSE IF some state does not rest, the next batch is that of the following time. ``updateStateByKey`` calls
   its function for every key in every batch, ``mapWithState`` has keys that time out, and both get the counts
   of nothing. State behind a sliding window has its turn once in a slide. When a batch without input that was
   its turn leaves the state as it was, so would the next one.
3. ELSE IF a window may still hold something at the following time, the next batch is that of the following
   time. A window may hold something for as long as it reaches back, after the last batch that had input or
   changed state.
4. ELSE the next batch is the earliest one that a batch of the last time reached looks back at: without a
   window the last time itself. A stretch of up to ``MADE_UP_FOR`` times is not left out.

So every result that is not empty is there, and the batches after the stretch see what they would have seen
had all batches run: windows that look back at times of the stretch see empty batches there, with their
counts of nothing and the state that rests
(:meth:`~tidemill.streaming.graph.dstream_graph.DStreamGraph.leave_out`). Keys of ``mapWithState`` whose
time-out fell into the stretch time out in the first batch after it. What a source finds after the stretch
is read once, by the first batch after it. Times that are left out are no batches: they have no id and no
RDD, output operations are not called for them, and nothing is written down about them. A restart finds the
last batch, and applies the same rule.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.batches.batch import Batch
from tidemill.streaming.graph.dstream_graph import DStreamGraph

MADE_UP_FOR = 100
"""The most missed empty batches that run one by one: a short pause looks as it does in Spark."""


class MissedBatches:
    """Says after each batch which one is planned next. Called by the thread that plans.

    ``wait_until_run`` waits until all batches that were planned have run; False if none will run any more.
    """

    def __init__(self, graph: DStreamGraph, wait_until_run: Callable[[], bool]) -> None:
        self._graph = graph
        self._wait_until_run = wait_until_run
        self._last_active_ms = 0

    def begin(self, last_ms: int) -> None:
        """Go on after the batch of ``last_ms``, which may have had input."""
        self._last_active_ms = last_ms

    def next_time_ms(self, batch: Batch, reached_ms: int) -> int:
        """Return the time of the batch after ``batch``. The clock has reached ``reached_ms``."""
        following_ms = batch.time_ms + self._graph.batch_ms
        if has_input(batch):  # 1
            self._last_active_ms = batch.time_ms
            return following_ms
        made_up_for_ms = MADE_UP_FOR * self._graph.batch_ms
        if reached_ms - following_ms <= made_up_for_ms:
            return following_ms
        looks_back_ms = self._graph.looks_back_ms()
        resume_ms = reached_ms - looks_back_ms
        if resume_ms - following_ms <= made_up_for_ms:
            return following_ms
        if following_ms < self._last_active_ms + looks_back_ms:  # 3, whatever state does
            return following_ms
        if self._graph.has_state:
            if not self._wait_until_run() or not self._graph.is_state_resting(batch.time_ms):  # 2
                return following_ms
            self._last_active_ms = max(self._last_active_ms, self._graph.state_changed_ms())
            if following_ms < self._last_active_ms + looks_back_ms:  # 3
                return following_ms
        self._graph.leave_out(batch, resume_ms)
        return resume_ms  # 4


def has_input(batch: Batch) -> bool:
    """Return True if the batch reads anything: a range, or what its source gives instead of an empty one."""
    return any(
        not range_.is_empty or batch.sizes[source_id].records != 0
        for source_id, range_ in batch.ranges.items()
    )
