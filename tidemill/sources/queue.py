"""A queue of RDDs and lists that the program hands over."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import RDD

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.parallelism import tasks_for_records
from tidemill.batches.source import RecordSource
from tidemill.errors import NotRecordsError

if TYPE_CHECKING:
    from pyspark import SparkContext

Entry = RDD[Any] | Sized
"""An entry of the queue: an RDD of the user's, or the records themselves."""


def queue_entry(value: Any, what: str) -> Entry:
    """Return ``value`` as a queue entry: an RDD stays one, any other iterable is read into memory."""
    if isinstance(value, RDD):
        return value
    if not isinstance(value, Iterable):
        raise NotRecordsError(
            f"{what} must be an RDD or a list of records, not {value!r:.100}", what
        )
    return value if isinstance(value, (list, tuple, range)) else list(value)


class QueueSource(RecordSource):
    """Gives the entries of a queue to a DStream. The offset is how many entries have been consumed.

    A batch takes one entry, or all that are left. A batch that finds the queue empty reads the default entry;
    if there is none, it has one partition without records, so that ``count()`` gives 0 as for an empty list.
    """

    def __init__(
        self,
        spark_context: SparkContext,
        entries: Iterable[Any],
        one_at_a_time: bool = True,
        default: Any = None,
    ) -> None:
        self._sc = spark_context
        self._queue: dict[int, Entry] = dict(enumerate(self.entries_of(entries)))
        self._length = len(self._queue)
        self._one_at_a_time = one_at_a_time
        self._default = None if default is None else queue_entry(default, "the default")

    @staticmethod
    def entries_of(rdds: Iterable[Any]) -> list[Entry]:
        """Return the checked entries of a queue, which is iterated over once."""
        return [
            queue_entry(value, f"entry {position} of the queue")
            for position, value in enumerate(rdds)
        ]

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        return min(start + 1, self._length) if self._one_at_a_time else self._length

    def size(self, range_: OffsetRange) -> RangeSize:
        entries = self._entries(range_)
        lists = [entry for entry in entries if not isinstance(entry, RDD)]
        return RangeSize(records=sum(map(len, lists)) if len(lists) == len(entries) else None)

    def read(self, range_: OffsetRange, tasks: int) -> RDD[Any]:
        entries = self._entries(range_) or [()]
        if not any(isinstance(entry, RDD) for entry in entries):
            return self._parallelize(entries, tasks)
        rdds = [
            entry if isinstance(entry, RDD) else self._parallelize([entry], tasks)
            for entry in entries
        ]
        return rdds[0] if len(rdds) == 1 else self._sc.union(rdds)

    def commit(self, end: Offset) -> None:
        for position in [position for position in self._queue if position < end]:
            del self._queue[position]

    def _entries(self, range_: OffsetRange) -> list[Entry]:
        if range_.is_empty:
            return [] if self._default is None else [self._default]
        return [self._queue[position] for position in range(range_.start, range_.end)]

    def _parallelize(self, entries: list[Any], tasks: int) -> RDD[Any]:
        records = entries[0] if len(entries) == 1 else list(chain.from_iterable(entries))
        return self._sc.parallelize(records, tasks_for_records(len(records), tasks))


@dataclass(frozen=True)
class QueueSourceFactory:
    """Makes the source of a queue, when a program starts and again when it is recovered."""

    entries: list[Entry]
    one_at_a_time: bool
    default: Entry | None

    def __call__(self, spark_context: SparkContext) -> QueueSource:
        return QueueSource(spark_context, self.entries, self.one_at_a_time, self.default)

    def __str__(self) -> str:
        return ""
