"""The event times of rows: which rows are late, and how long what they leave in the state stays there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NEVER_MS = (1 << 63) - 1
"""The state time of what no watermark reaches."""

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


class EventTimeColumn(Protocol):
    """Which column has the event time. ``of_window``: it is a window, whose end counts."""

    @property
    def index(self) -> int: ...

    @property
    def of_window(self) -> bool: ...


@dataclass(frozen=True)
class EventTime:
    """The column with the event time of a step."""

    index: int
    of_window: bool = False

    @classmethod
    def of(cls, column: EventTimeColumn | None) -> EventTime | None:
        """The same, of a class that tasks can load at no cost."""
        return None if column is None else cls(column.index, column.of_window)

    def times_of(self, batch: pa.RecordBatch) -> Times:
        column = batch.column(self.index)
        if self.of_window:
            column = pc.struct_field(column, "end")
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        numbers = column.cast(pa.int64())
        return Times(np.asarray(numbers.fill_null(0)), np.asarray(numbers.is_valid()))


@dataclass(frozen=True)
class Times:
    """Times of rows, in microseconds; those that are not known are zero."""

    us: IntArray
    is_known: BoolArray

    def until(self, watermark_ms: int | None) -> BoolArray:
        """Which rows the watermark has reached. Of an unknown time that is never said."""
        if watermark_ms is None:
            return np.zeros(len(self.us), bool)
        return self.is_known & (self.us <= watermark_ms * 1000)

    def state_times_ms(self) -> IntArray:
        """Rounded up: a watermark in milliseconds reaches both or neither."""
        return np.where(self.is_known, -(-self.us // 1000), NEVER_MS)
