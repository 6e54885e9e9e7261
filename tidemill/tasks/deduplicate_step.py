"""``dropDuplicates``, ``distinct`` and ``dropDuplicatesWithinWatermark``: the first row of each key passes.

The state has the keys that have passed. If the event time is a part of the key, the state forgets a key when
the watermark reaches that time: later rows of the key would be late. ``dropDuplicatesWithinWatermark``
forgets a key some time after the event time of the row that passed: the value is that moment, in
microseconds, 8 bytes, big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.state.binary_arrays import sliced
from tidemill.state.partition_state import OperatorState, StateAttempt
from tidemill.state.reports import StateReport
from tidemill.state.row_codec import RowCodec
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.event_time import NEVER_MS, EventTimeColumn, IntArray, RowTimes, keys_expire
from tidemill.tasks.state_step import Batches, StateStep, rows_at, without_late_rows

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.reports import Reports


class DeduplicateStep(StateStep):
    """``mapInArrow`` function: drops late rows, and rows whose key has passed before.

    ``event_time`` decides which rows are late, whatever the keys are. ``within_us`` is how long after its
    event time a key is remembered; None if keys expire only by an event time of their own, or never.
    """

    def __init__(
        self,
        run_id: str,
        state: OperatorState,
        schema: pa.Schema,
        key_indexes: Sequence[int],
        partitions: int,
        event_time: EventTimeColumn | None,
        within_us: int | None,
        reports: Accumulator[Reports] | None,
    ) -> None:
        super().__init__(run_id, state, schema, partitions, reports)
        self._key_indexes = tuple(key_indexes)
        self._event_time = event_time
        self._within_us = within_us
        self._keys = RowCodec([schema.field(index) for index in key_indexes], one_zero=True)
        self._keys_expire = keys_expire(event_time, self._key_indexes, within_us)

    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        with ExitStack() as attempts:
            parts = {}
            for place in self._all_partitions(context, partition):
                current = attempts.enter_context(self._attempt(context, place))
                parts[place] = _Deduplicated(current)
            for batch in batches:
                for place, rows in self._by_partition(batch, context, partition):
                    with parts[place].current.updating:
                        passing = self._pass(parts[place], rows, context)
                    if passing.num_rows:
                        yield passing
            for part in parts.values():
                with part.current.removing:
                    self._forget(part, context)
        for place, part in parts.items():
            self._report(context, self._state.operator, place, part.report())

    def _pass(
        self, part: _Deduplicated, rows: pa.RecordBatch, context: BatchContext
    ) -> pa.RecordBatch:
        rows, late = without_late_rows(rows, self._event_time, context.late_ms)
        part.dropped += late
        keys = self._keys.encode_rows(
            [rows.column(index) for index in self._key_indexes], rows.num_rows
        )
        first = _first_rows(keys)
        candidates = keys.take(pa.array(first))
        known = self._known(part, candidates, context)
        listed = candidates.to_pylist()
        new = np.array([key not in known and key not in part.passed for key in listed], bool)
        part.passed.update(key for key, is_new in zip(listed, new, strict=True) if is_new)
        part.duplicates += rows.num_rows - int(new.sum())
        passing = rows_at(rows, first[new])
        self._remember(part, candidates.filter(pa.array(new)), passing, context)
        return passing

    def _known(
        self, part: _Deduplicated, keys: pa.BinaryArray, context: BatchContext
    ) -> set[bytes]:
        """Return the keys that are in the state, without expired ones that are still there."""
        found = part.current.transaction.find(keys)
        if self._within_us is None or context.late_ms is None:
            return set(found.keys)
        return {
            key
            for key, expires_ms in zip(found.keys, found.times_ms, strict=True)
            if expires_ms > context.late_ms
        }

    def _remember(
        self,
        part: _Deduplicated,
        keys: pa.BinaryArray,
        rows: pa.RecordBatch,
        context: BatchContext,
    ) -> None:
        values = pa.array([b""] * len(keys), pa.binary())
        times_ms = np.full(len(keys), NEVER_MS if self._state.timed else context.time_ms, np.int64)
        if self._keys_expire:
            assert self._event_time is not None
            times = self._event_time.times_of(rows)
            if self._within_us is not None:
                # A row without a time counts as one of 1970, as in Spark.
                times = RowTimes(times.us + self._within_us, np.ones(len(keys), bool))
                values = _packed(times.us)
            times_ms = times.state_times_ms()
            kept = ~times.until(context.evict_ms)
            part.forgotten += int((~kept).sum())
            if not kept.all():
                keys, values = (column.filter(pa.array(kept)) for column in (keys, values))
                times_ms = times_ms[kept]
        part.remembered += len(keys)
        part.current.transaction.put_many(keys, values, times_ms)

    def _forget(self, part: _Deduplicated, context: BatchContext) -> None:
        if not self._keys_expire or context.evict_ms is None:
            return
        transaction = part.current.transaction
        for chunk in transaction.expired_chunks(context.evict_ms + 1):
            # A key that has just passed again has a new time already.
            old = [key for key in chunk.keys if key not in part.passed]
            transaction.remove_many(old, context.time_ms)
            part.forgotten += len(old)
            part.evicted += len(old)


@dataclass
class _Deduplicated:
    """What the step has done with a state partition so far."""

    current: StateAttempt
    dropped: int = 0
    duplicates: int = 0
    remembered: int = 0
    forgotten: int = 0
    evicted: int = 0
    passed: set[bytes] = field(default_factory=set)

    def report(self) -> StateReport:
        written = self.current.written
        return StateReport(
            version=None if written is None else written.version,
            rows_updated=len(self.passed),
            rows_removed=self.forgotten,
            rows_dropped_late=self.dropped,
            keys_total=self.current.keys_before + self.remembered - self.evicted,
            bytes_written=0 if written is None else written.bytes_written,
            changes_before=0 if written is None else written.changes_before,
            work=self.current.work(),
            rows_duplicate=self.duplicates,
            late_rows=self.dropped,
        )


def _first_rows(keys: pa.BinaryArray) -> IntArray:
    """Return the number of the first row of each key."""
    # Arrow numbers keys in the order in which it sees them: a row is the first of its key if its code is new.
    codes = np.asarray(keys.dictionary_encode().indices)
    highest = np.maximum.accumulate(np.concatenate([[-1], codes[:-1]])) if len(codes) else codes
    return np.flatnonzero(codes > highest)


def _packed(times_us: IntArray) -> pa.BinaryArray:
    return sliced(times_us.astype(">i8").view(np.uint8), np.arange(len(times_us) + 1) * 8)
