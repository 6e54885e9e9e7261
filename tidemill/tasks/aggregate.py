"""Aggregation with state, in two steps around Spark's own merge of aggregation buffers.

::

    rows of the batch: keys, buffers
      AggregateRestoreStep    late rows go; the old row of each key comes before the new one
        Spark merges          one row a key
          AggregateSaveStep   the rows become version N of the state; out go rows by output mode

A row of the state is ``key columns -> buffer columns``. Its time is the end of its window, or its event
time: that is a part of the key, so it never changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.common import output_modes
from tidemill.state.local_reader import Chunk, LocalReader
from tidemill.state.partition_state import OperatorState, StateAttempt, attempt, reading
from tidemill.state.reports import RestoreReport, StateReport, restore_of
from tidemill.state.row_codec import RowCodec
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.event_time import BoolArray, EventTime, EventTimeColumn, Times
from tidemill.tasks.state_step import Batches, StateStep, conformed, rows_at

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.reports import Reports

PARTITION = "p"


class _AggregateStep(StateStep):
    """``schema``: the key columns, then the buffer columns."""

    def __init__(
        self,
        run_id: str,
        state: OperatorState,
        schema: pa.Schema,
        key_count: int,
        partitions: int,
        event_time: EventTimeColumn | None,
        reports: Accumulator[Reports] | None,
    ) -> None:
        super().__init__(run_id, state, schema, partitions, reports)
        self._key_count = key_count
        self._event_time = EventTime.of(event_time)
        self._keys = RowCodec(list(schema)[:key_count], one_zero=True)
        self._values = RowCodec(list(schema)[key_count:])

    def _encoded_keys(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return self._keys.encode_rows(rows.columns[: self._key_count], rows.num_rows)

    def _encoded_values(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return self._values.encode_rows(rows.columns[self._key_count :], rows.num_rows)

    def _decoded(self, chunk: Chunk) -> pa.RecordBatch:
        columns = self._keys.decode(chunk.keys) + self._values.decode(chunk.values)
        return conformed(columns, self._schema)


class AggregateRestoreStep(_AggregateStep):
    """``mapInArrow`` function: the old row of every key, and then the new ones.

    Late rows are dropped and counted. In a single task the last column, the state partition, stays.
    """

    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        parts = {p: _Restored() for p in self._all_partitions(context, partition)}
        with ExitStack() as views:
            if self._key_count == 0:
                # The only row there is belongs to every batch, also to one without rows.
                old = self._old(parts[0], self._keys.encode_rows([], 1), 0, context, views)
                if old is not None:
                    yield self._placed(old, 0, context)
            for batch in batches:
                for place, rows in self._by_partition(batch, context, partition):
                    part = parts[place]
                    new = self._not_late(rows, part, context)
                    if self._key_count:
                        old = self._old(part, self._encoded_keys(new), place, context, views)
                        if old is not None:
                            yield self._placed(old, place, context)
                    if new.num_rows:
                        yield self._placed(new, place, context)
        for place, part in parts.items():
            report = RestoreReport(part.dropped, len(part.given))
            self._report(context, restore_of(self._state.operator), place, report)

    def _not_late(
        self, rows: pa.RecordBatch, part: _Restored, context: BatchContext
    ) -> pa.RecordBatch:
        if self._event_time is None or context.late_ms is None:
            return rows
        late = self._event_time.times_of(rows).until(context.late_ms)
        part.dropped += int(late.sum())
        return rows_at(rows, ~late)

    def _old(
        self,
        part: _Restored,
        keys: pa.BinaryArray,
        place: int,
        context: BatchContext,
        views: ExitStack,
    ) -> pa.RecordBatch | None:
        base = context.base_of(self._state.operator, place)
        # A key that comes in several rows has one old row.
        keys = keys.unique()
        if part.given:
            keys = pa.array([key for key in keys.to_pylist() if key not in part.given], pa.binary())
        if base is None or len(keys) == 0:
            return None
        if part.view is None:
            part.view = views.enter_context(reading(self._state, place, base))
        chunk = part.view.find(keys)
        part.given.update(chunk.keys)
        return self._decoded(chunk) if chunk.keys else None

    def _placed(self, rows: pa.RecordBatch, place: int, context: BatchContext) -> pa.RecordBatch:
        if not context.single:
            return rows
        column = pa.array(np.full(rows.num_rows, place, np.int32))
        return rows.append_column(pa.field(PARTITION, pa.int32(), nullable=False), column)


@dataclass
class _Restored:
    """What the first step has done to a state partition so far."""

    dropped: int = 0
    # The keys whose old rows have been given.
    given: set[bytes] = field(default_factory=set)
    view: LocalReader | None = None


class AggregateSaveStep(_AggregateStep):
    """``mapInArrow`` function: takes one merged row a key, makes version N of them, and gives

    - in complete mode the rows of all keys of the state; nothing is ever evicted;
    - in update mode the rows of this batch; what the watermark has passed is evicted;
    - in append mode the rows that are evicted, of this batch or older, and no others.

    A partition that does not change makes no version, and its report says so.
    """

    def __init__(
        self,
        run_id: str,
        state: OperatorState,
        schema: pa.Schema,
        key_count: int,
        partitions: int,
        mode: str,
        event_time: EventTimeColumn | None,
        reports: Accumulator[Reports] | None,
    ) -> None:
        super().__init__(run_id, state, schema, key_count, partitions, event_time, reports)
        self._mode = mode

    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        with ExitStack() as attempts:
            parts = {}
            for place in self._all_partitions(context, partition):
                base = context.base_of(self._state.operator, place)
                current = attempts.enter_context(
                    attempt(
                        self._state,
                        place,
                        base,
                        context.batch_id,
                        context.is_replay,
                        skip_unchanged=True,
                    )
                )
                parts[place] = _Saved(current)
            for batch in batches:
                for place, rows in self._by_partition(batch, context, partition):
                    yield from self._save(parts[place], rows, context)
            for part in parts.values():
                yield from self._finish(part, context)
        for place, part in parts.items():
            self._report(context, self._state.operator, place, part.report())

    def _save(
        self, part: _Saved, rows: pa.RecordBatch, context: BatchContext
    ) -> Iterator[pa.RecordBatch]:
        keys = self._encoded_keys(rows)
        times = None if self._event_time is None else self._event_time.times_of(rows)
        due = np.zeros(rows.num_rows, bool)
        if times is not None and self._mode != output_modes.COMPLETE:
            due = times.until(context.evict_ms)
        part.rows += rows.num_rows
        part.due += int(due.sum())
        if due.any():
            # They are out of the state before they have been in it.
            part.due_keys.update(keys.filter(pa.array(due)).to_pylist())
        self._put(part, keys, rows, times, ~due, context)
        match self._mode:
            case output_modes.APPEND:
                if due.any():
                    yield rows_at(rows, due)
            case output_modes.UPDATE:
                yield rows
            case _:
                part.put_keys.update(keys.to_pylist())
                yield rows

    def _put(
        self,
        part: _Saved,
        keys: pa.BinaryArray,
        rows: pa.RecordBatch,
        times: Times | None,
        stays: BoolArray,
        context: BatchContext,
    ) -> None:
        transaction = part.current.transaction
        values = self._encoded_values(rows)
        if self._key_count == 0 and transaction.get_values(keys) == values.to_pylist():
            return
        if times is None:
            times_ms = np.full(rows.num_rows, context.time_ms, np.int64)
        else:
            times_ms = times.state_times_ms()
        if not stays.all():
            keys, values = (column.filter(pa.array(stays)) for column in (keys, values))
            times_ms = times_ms[stays]
        transaction.put_many(keys, values, times_ms)

    def _finish(self, part: _Saved, context: BatchContext) -> Iterator[pa.RecordBatch]:
        transaction = part.current.transaction
        if self._mode == output_modes.COMPLETE:
            for chunk in transaction.scan_chunks():
                others = np.array([key not in part.put_keys for key in chunk.keys])
                if others.any():
                    yield rows_at(self._decoded(chunk), others)
            return
        if self._event_time is None or context.evict_ms is None:
            return
        for chunk in transaction.expired_chunks(context.evict_ms + 1):
            transaction.remove_many(chunk.keys, context.time_ms)
            others = np.array([key not in part.due_keys for key in chunk.keys])
            part.evicted += len(others)
            part.evicted_due += int((~others).sum())
            if self._mode == output_modes.APPEND and others.any():
                yield rows_at(self._decoded(chunk), others)


@dataclass
class _Saved:
    """What the second step has done to a state partition so far."""

    current: StateAttempt
    rows: int = 0
    # Rows of the batch that do not stay; keys of the old state that do not, and those that are both.
    due: int = 0
    evicted: int = 0
    evicted_due: int = 0
    due_keys: set[bytes] = field(default_factory=set)
    put_keys: set[bytes] = field(default_factory=set)

    def report(self) -> StateReport:
        written = self.current.written
        return StateReport(
            version=None if written is None else written.version,
            rows_updated=self.rows,
            rows_removed=self.due + self.evicted - self.evicted_due,
            rows_dropped_late=0,
            # Less the keys that were there before, which only the first step knows.
            keys_total=self.current.keys_before
            + (self.rows - self.due)
            - (self.evicted - self.evicted_due),
            bytes_written=0 if written is None else written.bytes_written,
            changes_before=0 if written is None else written.changes_before,
        )
