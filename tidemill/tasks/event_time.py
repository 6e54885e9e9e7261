"""The event times of rows: which rows are late, and how long the state that they leave behind stays.

Event times of rows are in microseconds, as Spark keeps them. Watermarks, and the times by which the state
store evicts, are in milliseconds. :class:`RowTimes` is where the two meet.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEVER_MS = (1 << 63) - 1
"""The state time of a key that no watermark reaches."""

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class EventTimeColumn:
    """The column with the event time. If ``of_window``, it is a window, and the window's end counts."""

    index: int
    of_window: bool = False

    def times_of(self, batch: pa.RecordBatch) -> RowTimes:
        column = batch.column(self.index)
        if self.of_window:
            column = pc.struct_field(column, "end")
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        numbers = column.cast(pa.int64())
        return RowTimes(np.asarray(numbers.fill_null(0)), np.asarray(numbers.is_valid()))


@dataclass(frozen=True)
class RowTimes:
    """The event times of some rows, in microseconds; 0 where a time is not known."""

    us: IntArray
    is_known: BoolArray

    def until(self, watermark_ms: int | None) -> BoolArray:
        """Return which rows the watermark has reached. It never reaches a row without a time."""
        if watermark_ms is None:
            return np.zeros(len(self.us), bool)
        return self.is_known & (self.us <= watermark_ms * 1000)

    def state_times_ms(self) -> IntArray:
        """Return the times for the state store, rounded up: a watermark reaches both or neither."""
        return np.where(self.is_known, -(-self.us // 1000), NEVER_MS)


def keys_expire(
    event_time: EventTimeColumn | None, key_indexes: Collection[int], within: int | None
) -> bool:
    """Return True if ``dropDuplicates`` forgets keys when the watermark has passed them.

    That needs a limit (``within``, in any unit), or an event time that is a part of the key.
    """
    return within is not None or (event_time is not None and event_time.index in key_indexes)
