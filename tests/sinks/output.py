"""What tests of sinks give them: batches over ordinary DataFrames, and a query that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemill.batches.sink import Sink, SinkRuntime
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common.output_modes import APPEND, COMPLETE

SCHEMA = "k long, v string"


class FakeOutput:
    """A batch whose rows are those of a DataFrame. Says afterwards how often it was computed."""

    def __init__(self, batch_id: int, rows: DataFrame, replaces: bool = False) -> None:
        self.batch_id = batch_id
        self.replaces = replaces
        self.computed = 0
        self.rows_collected: int | None = None
        self._rows = rows

    def count(self) -> int:
        self.computed += 1
        return self._rows.count()

    def collected(self) -> DataFrame:
        self.computed += 1
        rows = self._rows.collect()
        self.rows_collected = len(rows)
        return self._rows.sparkSession.createDataFrame(rows, self._rows.schema)

    def dataframe(
        self, consumed_once: bool = False, session: SparkSession | None = None
    ) -> DataFrame:
        self.computed += 1
        return self._rows


class FakeQuery:
    """Starts sinks, as often as one likes, and writes numbered batches, with their plans."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Path,
        schema: str | StructType = SCHEMA,
        query_id: str = "3b9bf0d5-0000-4000-8000-000000000001",
        mode: str = APPEND,
        name: str | None = "clicks",
    ) -> None:
        self.spark = spark
        self.schema = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        self.storage = LocalStorage(str(checkpoint))
        self.query_id = query_id
        self.mode = mode
        self.name = name
        self.sink: Sink

    def start(self, sink: Sink) -> Sink:
        sink.start(
            SinkRuntime(
                self.spark, self.query_id, self.name, self.mode, self.schema.json(), self.storage
            )
        )
        self.sink = sink
        return sink

    def output(self, batch_id: int, rows: Any) -> FakeOutput:
        if not isinstance(rows, DataFrame):
            rows = self.spark.createDataFrame(rows, self.schema)
        return FakeOutput(batch_id, rows, self.mode == COMPLETE)

    def stage(self, batch_id: int, rows: Any) -> int | None:
        """As a query does before the commit: the plan first, then the rows."""
        self.storage.write(f"offsets/{batch_id}", b"v1")
        output = self.output(batch_id, rows)
        written = self.sink.stage(output)
        assert output.computed == 1
        return written

    def write(self, batch_id: int, rows: Any) -> int | None:
        """As a query does: the plan first, then the batch, then its commit."""
        self.storage.write(f"offsets/{batch_id}", b"v1")
        output = self.output(batch_id, rows)
        if self.sink.has_batch(batch_id):
            written = None
        else:
            written = self.sink.stage(output)
            assert output.computed == 1
        self.sink.commit(batch_id)
        self.storage.write(f"commits/{batch_id}", b"v1")
        return written


def sorted_rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=repr)
