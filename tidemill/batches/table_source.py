"""Sources of rows: what a structured query reads.

A range of a :class:`SplitSource` is cut into splits, which tasks read as Arrow batches: the query is planned
once, and each batch only says which splits. A range of a :class:`SparkFilesSource` is a list of files, which
Spark's own readers read. Whoever writes a source for others writes a :class:`SplitSource`::

    class Numbers(SplitSource):
        def __init__(self, options):
            self.per_batch = int(options.get("perBatch", "10"))

        def schema(self):
            return StructType([StructField("n", LongType())])

        def initial_offset(self):
            return 0

        def latest_offset(self, start, limit, time_ms):
            return start + self.per_batch

        def size(self, range_):
            return RangeSize(records=range_.end - range_.start)

        def splits(self, range_, parallelism):
            return [[range_.start, range_.end]]

        def split_reader(self):
            return read_numbers          # a function of a module, or anything else that can be pickled


    def read_numbers(split):
        yield pa.record_batch({"n": pa.array(range(*split), pa.int64())})


    tidemill.register_source("numbers", Numbers)
    spark.readStream.format("numbers").option("perBatch", 100).load()
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.batches.batch import Offset, OffsetRange
from tidemill.batches.source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Split = Any
"""A part of a range, for one task: any JSON value."""

SplitReader = Callable[[Split], "Iterator[pa.RecordBatch]"]
"""Gives the rows of a split. A reader that would rather not make columns that nobody uses has a method
``for_columns(names)`` as well, which returns a reader of those columns only."""


class TableSource(Source):
    """A source of rows. Its offsets are JSON values, and in the batch log."""

    # True if a batch may be read again by a query that recovers; a query without says so at start.
    replayable = True

    # True if the first batch of a query runs at once, even if there is nothing for it, as Spark's does for
    # sources that always have an offset.
    begins_with_batch = False

    @abstractmethod
    def schema(self) -> StructType:
        """The columns. Called before :meth:`start`, when a query is written, and always the same."""

    def description(self) -> str:
        """What progress reports call the source."""
        return type(self).__name__

    def prepare_available_now(self) -> None:
        """What is there at this moment is all that will be read: ``trigger(availableNow=True)``.

        Called once, after :meth:`start`. Later calls of :meth:`latest_offset` go no further, in as many
        batches as limits ask for. A source that cannot tell reads everything in one batch.
        """

    def rows_depend_on_ranges(self) -> bool:
        """True if rows are others when the same input is read in other ranges. Then nobody can read batches
        again whose ranges are no longer in the checkpoint.
        """
        return False

    def waiting_for(self) -> str | None:
        """The server that the source, or a task that reads it, waits for; None if for none.

        For people who look at the query. Any thread may call, and never waits.
        """
        return None

    def metrics(self, end: Offset) -> Mapping[str, str]:
        """What progress reports say of the source, by name. The stream has read up to ``end``.

        Called by the thread that plans, after each batch and each trigger without one.
        """
        return {}

    def counts_records(self) -> bool:
        """True if the source itself knows what :meth:`records_read` will be."""
        return False


class SplitSource(TableSource):
    """A source that Python reads, in tasks."""

    @abstractmethod
    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        """The range in parts, at most some for each of ``parallelism`` cores. Together they are the range,
        always the same. An empty range may have none. On the driver, once or more for each batch.
        """

    @abstractmethod
    def split_reader(self) -> SplitReader:
        """Reads a split, in a task: pickled once when the query starts.

        The batches have the columns of :meth:`schema`, by name, of Arrow types that Spark's own conversion
        of the schema gives or that can be cast to them.
        """


class SparkFilesSource(TableSource):
    """A source of files that Spark reads: format, schema and options are those of the reader."""

    @abstractmethod
    def files(self, range_: OffsetRange) -> Sequence[str]:
        """The files of the range, as URIs that Spark understands."""

    def learn_records(self, range_: OffsetRange, records: int) -> None:
        """So many rows the range turned out to have. Called before :meth:`commit`."""


SourceFactory = Callable[[Mapping[str, str]], SplitSource]
"""Makes a source from the options of a reader."""
