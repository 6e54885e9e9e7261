"""Runs a query over memory streams that a test feeds batch by batch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from tidemill.batches.batch import Batch
from tidemill.sources.memory_stream import MemoryStream
from tidemill.sql.execution.query_pipeline import QueryPipeline

Operation = Callable[..., DataFrame]

LONG = os.environ.get("TIDEMILL_LONG") == "1"
"""True in a long run, which tries more examples."""


@dataclass
class FedQuery:
    """Runs a query over memory streams and collects its output, batch by batch.

    ``schema`` is the schema of its stream, or a list with one schema for each of its streams; ``operation``
    is called with one DataFrame for each stream. In update mode a later row replaces an earlier one with the
    same values in the columns ``keys``.
    """

    spark: SparkSession
    schema: str | Sequence[str]
    operation: Operation
    mode: str
    checkpoint: Path
    keys: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schemas = [self.schema] if isinstance(self.schema, str) else list(self.schema)
        self.streams = [MemoryStream(schema, keep=True) for schema in self.schemas]
        self.stream = self.streams[0]
        self.all_fed: list[list[Any]] = [[] for _ in self.schemas]
        self.fed = self.all_fed[0]
        self.outputs: dict[int, list[Row]] = {}
        self.query: Any = None
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> FedQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        df = self.operation(
            *(self.spark.readStream.format(stream.name).load() for stream in self.streams)
        )
        writer = df.writeStream.outputMode(self.mode).foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        for name, value in self.options.items():
            writer = writer.option(name, value)
        self.query = writer.start()

    def _keep(self, df: DataFrame, batch_id: int) -> None:
        self.outputs[batch_id] = df.collect()

    def feed(self, rows: Sequence[Any], into: int = 0) -> None:
        """Add rows to a stream and wait until they have been processed."""
        self.add(rows, into)
        self.query.processAllAvailable()

    def add(self, rows: Sequence[Any], into: int = 0) -> None:
        self.streams[into].add(list(rows))
        self.all_fed[into].extend(rows)

    def restart(self) -> None:
        self.query.stop()
        self.start()

    def result(self) -> Counter[Any]:
        """Return the result table that a reader of the sink would see."""
        batches = [self.outputs[batch_id] for batch_id in sorted(self.outputs)]
        if self.mode == "complete":
            rows = batches[-1] if batches else []
        elif self.mode == "update" and self.keys:
            latest = {}
            for batch in batches:
                for row in batch:
                    latest[tuple(_plain(row[key]) for key in self.keys)] = row
            rows = list(latest.values())
        else:
            rows = [row for batch in batches for row in batch]
        return counted(rows)

    def expected(self) -> Counter[Any]:
        """Return Spark's own result for the same rows."""
        return counted(self.operation(*self.batch_inputs()).collect())

    def batch_inputs(self) -> list[DataFrame]:
        # One partition, so that the rows keep the order in which the stream got them.
        return [
            self.spark.createDataFrame(rows, schema).coalesce(1)
            for rows, schema in zip(self.all_fed, self.schemas, strict=True)
        ]

    def late_rows(self) -> int:
        """Return the number of rows that the stateful operators have dropped in this run."""
        return sum(
            operator.numRowsDroppedByWatermark
            for progress in self.query.recentProgress
            for operator in progress.stateOperators
        )

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
        for stream in self.streams:
            stream.close()


@contextmanager
def plans(parallel: Callable[[int], bool]) -> Iterator[None]:
    """Run the plan for large batches where ``parallel(batch_id)`` is True, else the plan for small ones."""
    before = QueryPipeline._is_small

    def is_small(self: QueryPipeline, batch: Batch) -> bool:
        return not parallel(batch.batch_id)

    QueryPipeline._is_small = is_small  # type: ignore[method-assign]
    try:
        yield
    finally:
        QueryPipeline._is_small = before  # type: ignore[method-assign]


@contextmanager
def settings_of(spark: SparkSession, **settings: Any) -> Iterator[None]:
    """Change settings of the session for a while. Two underscores in a name stand for a dot."""
    names = {name.replace("__", "."): value for name, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def counted(rows: Sequence[Row]) -> Counter[Any]:
    """Return the rows as a multiset, with floating point numbers rounded to eleven digits."""
    return Counter(_plain(row) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return tuple(
            (name, _plain(part)) for name, part in zip(value.__fields__, value, strict=True)
        )
    if isinstance(value, float):
        return "nan" if value != value else f"{value + 0.0:.11g}"
    if isinstance(value, list):
        return tuple(_plain(part) for part in value)
    if isinstance(value, dict):
        return tuple(sorted((_plain(k), _plain(v)) for k, v in value.items()))
    if isinstance(value, bytearray):
        return bytes(value)
    return value
