"""Data sources written with PySpark's own Python interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

SCHEMA = StructType([StructField("n", IntegerType()), StructField("text", StringType())])


class Counter(DataSource):
    """Numbers up to an option, in partitions of ten."""

    @classmethod
    def name(cls) -> str:
        return "test_counter"

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CounterReader(int(self.options["upTo"]), self.options.get("kind", "tuple"))


class CounterReader(DataSourceStreamReader):
    def __init__(self, up_to: int, kind: str) -> None:
        self.up_to = up_to
        self.kind = kind
        self.calls: list[Any] = []

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self.calls.append(limit)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.up_to
        return {"n": min(self.up_to, start["n"] + most)}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(25)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [
            InputPartition((low, min(low + 10, end["n"])))
            for low in range(start["n"], end["n"], 10)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert not self.calls, "a reader in a task has never planned anything"
        numbers = range(*partition.value)
        match self.kind:
            case "row":
                yield from (Row(text=str(n), n=n) for n in numbers)
            case "arrow":
                yield pa.RecordBatch.from_arrays(
                    [pa.array(numbers, pa.int32()), pa.array(map(str, numbers))], ["n", "text"]
                )
            case _:
                yield from ((n, str(n)) for n in numbers)

    def commit(self, end: dict[str, int]) -> None:
        self.calls.append(("commit", end))

    def stop(self) -> None:
        self.calls.append("stop")


class Drops(DataSource):
    """A simple one: it hands out what there is, two rows at a time."""

    @classmethod
    def name(cls) -> str:
        return "test_drops"

    def schema(self) -> str:
        return "n int, text string"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return DropsReader(self.options.get("stuck") == "true")


class DropsReader(SimpleDataSourceStreamReader):
    def __init__(self, stuck: bool) -> None:
        self.stuck = stuck
        self.reads = 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        self.reads += 1
        end = start if self.stuck else {"n": min(start["n"] + 2, 6)}
        low, high = start["n"], 2 if self.stuck else end["n"]
        # A generator: it can be read once only.
        return ((n, "read") for n in range(low, high)), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([(n, "again") for n in range(start["n"], end["n"])])
