"""Aggregation with state, in two steps around Spark's own merge of aggregation buffers.

::

    rows of the batch: keys, buffers
      AggregateRestoreStep    drops late rows; puts the old row of each key before the new ones
        Spark merges          one row a key
          AggregateSaveStep   makes version N of the state of them; gives rows by output mode

A row of the state is ``key columns -> buffer columns``. Its time is the end of its window, or its event
time: either is a part of the key, so it never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.common.output_modes import APPEND, COMPLETE
from tidemill.state.local_reader import Chunk, LocalReader
from tidemill.state.partition_state import OperatorState, StateAttempt, reading
from tidemill.state.reports import RestoreReport, StateReport, restore_of
from tidemill.state.row_codec import RowCodec
from tidemill.tasks.batch_context import BatchContext
from tidemill.tasks.event_time import BoolArray, EventTimeColumn, RowTimes
from tidemill.tasks.state_step import (
    PARTITION_COLUMN,
    Batches,
    StateStep,
    conformed,
    rows_at,
    without_late_rows,
)

if TYPE_CHECKING:
    from pyspark import Accumulator

    from tidemill.state.reports import Reports


class _AggregateStep(StateStep):
    """What both steps share. ``schema`` has the key columns, then the buffer columns.

    ``order`` says which buffer column is in each place of the state's rows, None for that of the schema.
    """

    def __init__(
        self,
        run_id: str,
        state: OperatorState,
        schema: pa.Schema,
        key_count: int,
        partitions: int,
        event_time: EventTimeColumn | None,
        reports: Accumulator[Reports] | None,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(run_id, state, schema, partitions, reports)
        self._key_count = key_count
        self._event_time = event_time
        self._keys = RowCodec(list(schema)[:key_count], one_zero=True)
        # The columns of the schema that are the values of the state, in their order there.
        buffers = range(len(schema) - key_count) if order is None else order
        self._value_columns = [key_count + buffer for buffer in buffers]
        self._values = RowCodec([schema.field(column) for column in self._value_columns])

    def _encoded_keys(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return self._keys.encode_rows(rows.columns[: self._key_count], rows.num_rows)

    def _encoded_values(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return self._values.encode_rows(
            [rows.column(column) for column in self._value_columns], rows.num_rows
        )

    def _decoded(self, chunk: Chunk) -> pa.RecordBatch:
        values = dict(zip(self._value_columns, self._values.decode(chunk.values), strict=True))
        columns = self._keys.decode(chunk.keys) + [values[column] for column in sorted(values)]
        return conformed(columns, self._schema)


class AggregateRestoreStep(_AggregateStep):
    """``mapInArrow`` function: gives the old row of every key, then the new ones.

    It drops late rows and counts them: those that it sees, as Spark does, and the rows of the batch that have
    been aggregated into them. In a single task the column of the state partition stays.
    """

    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        parts = {p: _Restored() for p in self._all_partitions(context, partition)}
        late_rows = 0
        with ExitStack() as views:
            if self._key_count == 0:
                # The only row of the result belongs to every batch, also to one without rows.
                old = self._old(parts[0], self._keys.encode_rows([], 1), 0, context, views)
                if old is not None:
                    yield self._placed(old, 0, context)
            for batch in batches:
                late_rows += self._late_rows(batch, context)
                for place, rows in self._by_partition(batch, context, partition):
                    part = parts[place]
                    new, late = without_late_rows(rows, self._event_time, context.late_ms)
                    part.dropped += late
                    if self._key_count:
                        old = self._old(part, self._encoded_keys(new), place, context, views)
                        if old is not None:
                            yield self._placed(old, place, context)
                    if new.num_rows:
                        yield self._placed(new, place, context)
        for place, part in parts.items():
            report = RestoreReport(part.dropped, len(part.restored_keys), late_rows)
            late_rows = 0  # those of all partitions are reported with the first
            self._report(context, restore_of(self._state.operator), place, report)

    def _late_rows(self, batch: pa.RecordBatch, context: BatchContext) -> int:
        """Return how many rows have been aggregated into those that are late."""
        if self._event_time is None or context.late_ms is None:
            return 0
        late = self._event_time.times_of(batch).until(context.late_ms)
        counted = len(self._schema) + 1
        if batch.num_columns <= counted:  # nobody has counted: each stands for itself
            return int(late.sum())
        return int(np.asarray(batch.column(counted))[late].sum())

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
        if part.restored_keys:
            new_keys = [key for key in keys.to_pylist() if key not in part.restored_keys]
            keys = pa.array(new_keys, pa.binary())
        if base is None or len(keys) == 0:
            return None
        if part.view is None:
            part.view = views.enter_context(reading(self._state, place, base))
        chunk = part.view.find(keys)
        part.restored_keys.update(chunk.keys)
        return self._decoded(chunk) if chunk.keys else None

    def _placed(self, rows: pa.RecordBatch, place: int, context: BatchContext) -> pa.RecordBatch:
        if not context.single:
            return rows
        column = pa.array(np.full(rows.num_rows, place, np.int32))
        return rows.append_column(pa.field(PARTITION_COLUMN, pa.int32(), nullable=False), column)


@dataclass
class _Restored:
    """What the restore step has done with a state partition so far."""

    dropped: int = 0
    restored_keys: set[bytes] = field(default_factory=set)
    view: LocalReader | None = None


class AggregateSaveStep(_AggregateStep):
    """``mapInArrow`` function: takes one merged row a key, makes version N of the rows, and gives

    - in complete mode the rows of all keys of the state, and evicts none;
    - in update mode the rows of this batch, and evicts keys that the watermark has passed;
    - in append mode only the rows that it evicts, of this batch or older.

    A partition that does not change gets no new version, and its report says so.
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
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(run_id, state, schema, key_count, partitions, event_time, reports, order)
        self._mode = mode

    def run(
        self, batches: Batches, context: BatchContext, partition: int
    ) -> Iterator[pa.RecordBatch]:
        with ExitStack() as attempts:
            parts = {}
            for place in self._all_partitions(context, partition):
                current = attempts.enter_context(self._attempt(context, place))
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
        if times is not None and self._mode != COMPLETE:
            due = times.until(context.evict_ms)
        part.rows += rows.num_rows
        part.due += int(due.sum())
        if due.any():
            # These rows never get into the state.
            part.due_keys.update(keys.filter(pa.array(due)).to_pylist())
        with part.current.updating:
            self._put(part, keys, rows, times, ~due, context)
        if self._mode == COMPLETE:
            part.put_keys.update(keys.to_pylist())
        if self._mode != APPEND:
            yield rows
        elif due.any():
            yield rows_at(rows, due)

    def _put(
        self,
        part: _Saved,
        keys: pa.BinaryArray,
        rows: pa.RecordBatch,
        times: RowTimes | None,
        kept: BoolArray,
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
        if not kept.all():
            keys, values = (column.filter(pa.array(kept)) for column in (keys, values))
            times_ms = times_ms[kept]
        transaction.put_many(keys, values, times_ms)

    def _finish(self, part: _Saved, context: BatchContext) -> Iterator[pa.RecordBatch]:
        transaction = part.current.transaction
        if self._mode == COMPLETE:
            for chunk in transaction.scan_chunks():
                others = np.array([key not in part.put_keys for key in chunk.keys])
                if others.any():
                    yield rows_at(self._decoded(chunk), others)
            return
        if self._event_time is None or context.evict_ms is None:
            return
        for chunk in transaction.expired_chunks(context.evict_ms + 1):
            with part.current.removing:
                transaction.remove_many(chunk.keys, context.time_ms)
            others = np.array([key not in part.due_keys for key in chunk.keys])
            part.evicted += len(others)
            part.evicted_due += int((~others).sum())
            if self._mode == APPEND and others.any():
                yield rows_at(self._decoded(chunk), others)


@dataclass
class _Saved:
    """What the save step has done with a state partition so far.

    ``due`` counts rows of the batch that do not stay, ``evicted`` keys of the old state that do not, and
    ``evicted_due`` those that are both.
    """

    current: StateAttempt
    rows: int = 0
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
            # Counts keys twice that were there before: only the restore step knows them.
            keys_total=self.current.keys_before
            + (self.rows - self.due)
            - (self.evicted - self.evicted_due),
            bytes_written=0 if written is None else written.bytes_written,
            changes_before=0 if written is None else written.changes_before,
            work=self.current.work(),
        )
