"""A source of tables that a test makes by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.batches.batch import OffsetRange, RangeSize
from tidemill.batches.table_source import SplitSource

TYPES = {"long": LongType, "int": IntegerType, "string": StringType, "timestamp": TimestampType}


class Numbers(SplitSource):
    def __init__(self, ddl: str, batches: Mapping[str, Any]) -> None:
        self.ddl = ddl
        self.batches = batches

    def schema(self) -> StructType:
        columns = [column.split(maxsplit=2) for column in self.ddl.split(", ")]
        return StructType(
            [StructField(name, TYPES[type](), not rest) for name, type, *rest in columns]
        )

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any, time_ms: int) -> Any:
        return 0

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(records=0)

    def splits(self, range_: OffsetRange, parallelism: int) -> list[Any]:
        return []

    def split_reader(self) -> Any:
        batches = self.batches

        def read(split: Any) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch(batches[split])

        return read
