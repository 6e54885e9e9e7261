"""The interface of everything that has offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize

if TYPE_CHECKING:
    from pyspark import RDD


class Source(ABC):
    """Anything that can be read in ranges. One planner thread calls all methods but :meth:`read`.

    The order of calls is: :meth:`start` once; then for each batch :meth:`latest_offset`, at some
    later time :meth:`read` of the range that was planned (perhaps more than once, perhaps never),
    and in the end :meth:`commit`; :meth:`stop` once. Nothing is called after ``stop``.
    """

    def start(self, time_ms: int) -> None:
        """The stream starts: acquire what is needed. Only data from now on belongs to the stream."""

    @abstractmethod
    def initial_offset(self) -> Offset:
        """Where a stream that has never run begins. Called after :meth:`start`."""

    @abstractmethod
    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        """How far a batch that begins at ``start`` can reach at ``time_ms`` within ``limit``.

        ``start`` itself when there is nothing new. A single item larger than the limit is admitted
        alone: a limit slows a stream down, it never stops it for good.
        """

    @abstractmethod
    def size(self, range_: OffsetRange) -> RangeSize:
        """How much is in the range. Cheap: called once for each planned batch."""

    @abstractmethod
    def read(self, range_: OffsetRange) -> RDD[Any]:
        """What lies in the range. The same range gives the same records, however often it is read."""

    def records_read(self, range_: OffsetRange) -> int | None:
        """How many records the range turned out to have, once its batch has run. None: not known."""
        return self.size(range_).records

    def commit(self, end: Offset) -> None:
        """Nothing up to ``end`` will be read again: it may be forgotten."""

    def stop(self) -> None:
        """The stream has stopped: release what :meth:`start` acquired. Idempotent."""
