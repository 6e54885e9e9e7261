"""The interface of everything that has offsets.

The planner only needs a :class:`Source`. What a pipeline reads from it depends on the pipeline: a DStream
graph reads records (:class:`RecordSource`), a query reads rows with a schema
(:mod:`tidemill.batches.table_source`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize

if TYPE_CHECKING:
    from pyspark import RDD

    from tidemill.checkpoint.source_log import SourceLog
    from tidemill.common.clock import Clock


@dataclass(frozen=True)
class SourceRuntime:
    """What a source gets when its stream starts.

    ``log`` keeps what the source must remember, through restarts; None in a stream without a checkpoint
    directory.
    """

    time_ms: int
    clock: Clock
    log: SourceLog | None = None


class Source(ABC):
    """Anything that can be read in ranges. One thread at a time calls the methods that are here.

    The order of calls is: :meth:`defined` when a program makes the stream, not when a stream is
    recovered from its checkpoint; :meth:`start` once; then for each batch :meth:`latest_offset`, at some
    later time the range that was planned is read (perhaps more than once, perhaps never),
    :meth:`processed`, and in the end :meth:`commit`; :meth:`stop` once. Nothing is called after ``stop``.
    """

    def defined(self, time_ms: int) -> None:
        """Note that the program has made this stream: records that arrive from now on belong to it."""

    def start(self, runtime: SourceRuntime) -> None:
        """Acquire what the stream needs, and remember what an earlier run has left."""

    @abstractmethod
    def initial_offset(self) -> Offset:
        """Return where a stream that has never run begins. Called after :meth:`start`."""

    def resumed(self, start: Offset) -> None:
        """Go on at ``start``: an earlier run has planned everything before it. Called once, after
        :meth:`start`.
        """

    @abstractmethod
    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        """Return how far a batch that begins at ``start`` can reach at ``time_ms`` within ``limit``.

        That is ``start`` itself when there is nothing new. A single item larger than the limit is admitted
        alone: a limit slows a stream down, it never stops it for good. A source that cannot tell how
        many records it has before it reads them keeps to ``max_records`` as well as it can estimate.
        """

    def newest_offset(self) -> Offset | None:
        """Return how far the source reaches now, whatever limits say; None if it cannot tell.

        For progress reports only: it is cheap, and changes nothing.
        """
        return None

    @abstractmethod
    def size(self, range_: OffsetRange) -> RangeSize:
        """Return how much is in the range. Cheap: called once for each planned batch."""

    def records_read(self, range_: OffsetRange) -> int | None:
        """Return how many records the range turned out to have; None if that is not known.

        Called once for each batch that has run, by the thread that ran it, while another one may plan.
        """
        return self.size(range_).records

    def processed(self, end: Offset) -> None:
        """Note that the batches up to ``end`` are committed. A window may still read what they had.

        Also called after :meth:`resumed`, for what an earlier run has committed.
        """

    def commit(self, end: Offset) -> None:
        """Forget everything up to ``end``: nobody reads it again, not even a stream that recovers."""

    def give_up(self) -> None:
        """Wait for no server any longer: the stream is being stopped. Any thread may call, at any time."""

    def stop(self) -> None:
        """Release what :meth:`start` acquired. Idempotent."""


class RecordSource(Source):
    """A source of records, for DStreams."""

    @abstractmethod
    def read(self, range_: OffsetRange, tasks: int) -> RDD[Any]:
        """Return the records of the range, for at most about ``tasks`` tasks.

        The same range and the same number give the same records in the same partitions, however often they
        are read.
        """

    def failed(self, range_: OffsetRange) -> None:
        """Note that a batch with this range has failed, and that the stream goes on without it.

        Only a stream without a checkpoint directory does. Called before :meth:`processed`, by the thread
        that ran the batch.
        """
