"""Receivers as a format of queries.

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
from tidemill.errors import SourceError
from tidemill.receivers.blocks.rows import BlockRowsReader
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.record_source import group_blocks
from tidemill.receivers.tracked_blocks import TrackedBlocksSource
from tidemill.sources.arrow_split import struct_type
from tidemill.sources.registry import register_source

TEXT = StructType([StructField("value", StringType())])

ReceiverFactory = Callable[[Mapping[str, str]], Receiver]
"""Makes a receiver from the options of a reader."""


class ReceiverTable(TrackedBlocksSource, SplitSource):
    """What a receiver has stored, as rows. Offset: how many of its blocks have been planned.

    The query starts it through :class:`~tidemill.receivers.driver.running_receivers.RunningReceivers`, which
    binds it to its blocks. A batch has whole blocks: as many as its limit allows, and one at least.
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

    def description(self) -> str:
        return f"Receiver[{self._format}: {type(self.receiver).__name__}]"

    def counts_records(self) -> bool:
        return True

    def prepare_available_now(self) -> None:
        self._available = self._blocks.end(self._name)

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        end = self._blocks.end(self._name) if self._available is None else self._available
        self._planned = self._within(start, max(start, end), limit)
        return self._planned

    def _within(self, start: int, end: int, limit: AdmissionLimit) -> int:
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
        return BlockRowsReader(self._reader, self._schema)


@dataclass(frozen=True)
class ReceiverFormat:
    """Makes the source of a query from options. The schema of a reader takes the place of its own."""

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
                f"what makes the receiver {self.name!r} gave {receiver!r:.100}, which is not a Receiver"
            )
        return ReceiverTable(receiver, self.schema, self.name, self.known_options)


def register_receiver(
    name: str, factory: ReceiverFactory, schema: StructType | str | None = None
) -> None:
    """Make a receiver available as ``spark.readStream.format(name)``, in this process.

    ``factory`` is called with the options of the reader. Without a ``schema`` there is one column ``value``
    of text: strings and lines as they are, other records as JSON. With one, records are dictionaries,
    ``Row`` or tuples of its columns; the reader's own ``schema(...)`` does the same for one query.
    """
    if not callable(factory):
        raise SourceError(
            f"the receiver {name!r} must be given as a function of options, not {factory!r:.100}"
        )
    known: Any = getattr(factory, "known_options", None)
    columns = TEXT if schema is None else struct_type(schema)
    register_source(name, ReceiverFormat(name, factory, columns, known))
