"""Queries that a test feeds batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from tidemill.sources.memory_stream import MemoryStream

Operation = Callable[[DataFrame], DataFrame]


@dataclass
class FedQuery:
    """A query over a memory stream whose output is collected, batch by batch.

    ``keys`` are the columns by which a later row takes the place of an earlier one in update mode.
    """

    spark: SparkSession
    schema: str
    operation: Operation
    mode: str
    checkpoint: Path
    keys: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = MemoryStream(self.schema, keep=True)
        self.fed: list[Any] = []
        self.outputs: dict[int, list[Row]] = {}
        self.query: Any = None
        self.start()

    def start(self) -> None:
        df = self.operation(self.spark.readStream.format(self.stream.name).load())
        writer = df.writeStream.outputMode(self.mode).foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        for name, value in self.options.items():
            writer = writer.option(name, value)
        self.query = writer.start()

    def _keep(self, df: DataFrame, batch_id: int) -> None:
        self.outputs[batch_id] = df.collect()

    def feed(self, rows: Sequence[Any]) -> None:
        self.stream.add(list(rows))
        self.fed.extend(rows)
        self.query.processAllAvailable()

    def restart(self) -> None:
        self.query.stop()
        self.start()

    def result(self) -> Counter[Any]:
        """The result table as a reader of the sink would have it."""
        batches = [self.outputs[batch_id] for batch_id in sorted(self.outputs)]
        if self.mode == "complete":
            rows = batches[-1] if batches else []
        elif self.mode == "update" and self.keys:
            latest = {}
            for batch in batches:
                for row in batch:
                    latest[tuple(str(row[key]) for key in self.keys)] = row
            rows = list(latest.values())
        else:
            rows = [row for batch in batches for row in batch]
        return counted(rows)

    def expected(self) -> Counter[Any]:
        """Spark's own answer for the same rows."""
        return counted(self.operation(self.spark.createDataFrame(self.fed, self.schema)).collect())

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
        self.stream.close()


def counted(rows: Sequence[Row]) -> Counter[Any]:
    """Rows as a multiset; numbers that are sums of floating point numbers to twelve digits."""
    return Counter(_plain(row) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return tuple((name, _plain(part)) for name, part in value.asDict().items())
    if isinstance(value, float):
        return "nan" if value != value else f"{value + 0.0:.11g}"
    if isinstance(value, list):
        return tuple(_plain(part) for part in value)
    if isinstance(value, dict):
        return tuple(sorted((_plain(k), _plain(v)) for k, v in value.items()))
    if isinstance(value, bytearray):
        return bytes(value)
    return value
