"""Receivers as formats of structured queries.

::

    tidemill.receivers.register_receiver("ticks", lambda options: Ticks(options["host"]))
    spark.readStream.format("ticks").option("host", "quotes").load()

    spark.readStream.format("http").option("port", 8090).load()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange
from tidemill.batches.table_source import Split, SplitReader, SplitSource
from tidemill.errors import OptionError, SourceError
from tidemill.receivers.blocks.read_back import ReadBack
from tidemill.receivers.blocks.rows import BlockRowsReader, ReadBackRows
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.record_source import group_blocks
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.sources.arrow_split import struct_type
from tidemill.sources.registry import register_source

TEXT = StructType([StructField("value", StringType())])

ReceiverFactory = Callable[[Mapping[str, str]], Receiver]
"""A function that makes a receiver from the options of ``readStream``."""


class ReceiverTable(TrackedBlocksSource, SplitSource):
    """The blocks of a receiver, as rows. An offset is the number of blocks planned so far.

    :class:`~tidemill.receivers.driver.running_receivers.RunningReceivers` binds it to the blocks of its
    receiver, before the query starts. A batch has whole blocks: as many as its limit allows, at least one.
    """

    def __init__(
        self,
        receiver: Receiver,
        schema: StructType = TEXT,
        name: str = "receiver",
        known_options: frozenset[str] | None = None,
    ) -> None:
        super().__init__(receiver)
        self.known_options = known_options
        self._schema = schema
        self._format = name
        self._available: int | None = None

    def schema(self) -> StructType:
        return self._schema

    def read_back(self) -> ReadBack:
        return ReadBackRows(self._schema)

    def description(self) -> str:
        return f"Receiver[{self._format}: {type(self.receiver).__name__}]"

    def counts_records(self) -> bool:
        return True

    def prepare_available_now(self) -> None:
        self._available = self._blocks.end(self._name)

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        end = self._blocks.end(self._name) if self._available is None else self._available
        self._planned = self._limited_end(start, max(start, end), limit)
        return self._planned

    def newest_offset(self) -> Offset:
        return self._blocks.end(self._name)

    def _limited_end(self, start: int, end: int, limit: AdmissionLimit) -> int:
        """Return the last offset up to ``end`` that keeps the batch within its limit."""
        if limit.max_records is None and limit.max_bytes is None:
            return end
        records = size = 0
        for count, block in enumerate(self._blocks.blocks(self._name, start, end)):
            records += block.records
            size += block.bytes
            too_many = limit.max_records is not None and records > limit.max_records
            too_large = limit.max_bytes is not None and size > limit.max_bytes
            if count and (too_many or too_large):
                return start + count
        return end

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Split]:
        blocks = self.kept_blocks(range_)
        if not blocks:
            return []
        return [[block.to_json() for block in group] for group in group_blocks(blocks, parallelism)]

    def split_reader(self) -> SplitReader:
        return BlockRowsReader(self._reader, self._schema, self.description())


@dataclass(frozen=True)
class ReceiverFormat:
    """Makes the source of a query from options. A schema given to ``readStream`` replaces its own."""

    name: str
    factory: ReceiverFactory
    schema: StructType = TEXT
    known_options: frozenset[str] | None = None

    def with_schema(self, schema: StructType | str) -> ReceiverFormat:
        return replace(self, schema=struct_type(schema))

    def __call__(self, options: Mapping[str, str]) -> ReceiverTable:
        receiver = self.factory(options)
        if not isinstance(receiver, Receiver):
            raise SourceError(
                f"the factory of the receiver {self.name!r} returned {receiver!r:.100}, which is not a "
                "Receiver",
                source=self.name,
            )
        return ReceiverTable(receiver, self.schema, self.name, self.known_options)


def register_receiver(
    name: str, factory: ReceiverFactory, schema: StructType | str | None = None
) -> None:
    """Make a receiver available as ``spark.readStream.format(name)``, in this process.

    ``factory`` makes the receiver from the options of ``readStream``. Without a ``schema`` there is one
    column ``value`` of text: strings and lines as they are, other records as JSON. With a schema, records are
    dictionaries, ``Row`` or tuples of its columns; ``readStream.schema(...)`` does the same for one query.
    """
    if not callable(factory):
        raise OptionError(
            f"the receiver {name!r} must be given as a function of options, not {factory!r:.100}",
            option="factory",
        )
    known: Any = getattr(factory, "known_options", None)
    columns = TEXT if schema is None else struct_type(schema)
    register_source(name, ReceiverFormat(name, factory, columns, known))
