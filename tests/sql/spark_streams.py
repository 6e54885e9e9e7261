"""Runs the same query on Spark's own Structured Streaming, to compare ours with it batch by batch."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.sql.streams import FedQuery, Operation, counted, settings_of

Step = tuple[int, Sequence[Any]]
"""The number of a stream, and the rows to add to it."""


@dataclass
class Emitted:
    """The rows that a query has emitted, by batch, and the number of late rows it dropped."""

    batches: dict[int, Counter[Any]] = field(default_factory=dict)
    dropped: int = 0


def by_spark(
    spark: SparkSession,
    schemas: Sequence[str],
    operation: Operation,
    mode: str,
    steps: Sequence[Step],
    folder: Path,
    settings: Mapping[str, Any],
) -> Emitted:
    """Run the query on Spark. Every step is one file and one trigger."""
    session = spark.newSession()
    for name, value in {"spark.sql.shuffle.partitions": 1, **settings}.items():
        session.conf.set(name, value)
    inputs = [folder / f"input-{number}" for number in range(len(schemas))]
    for path in inputs:
        path.mkdir(parents=True)
    emitted = Emitted()

    def keep(df: DataFrame, batch_id: int) -> None:
        emitted.batches[batch_id] = counted(df.collect())

    df = operation(
        *(
            session.readStream.schema(schema).parquet(str(path))
            for schema, path in zip(schemas, inputs, strict=True)
        )
    )
    writer = df.writeStream.outputMode(mode).foreachBatch(keep)
    query = writer.option("checkpointLocation", str(folder / "spark")).start()
    try:
        for stream, rows in steps:
            write_rows(rows, schemas[stream], inputs[stream])
            query.processAllAvailable()
        emitted.dropped = sum(
            operator.numRowsDroppedByWatermark
            for progress in query.recentProgress
            for operator in progress.stateOperators
        )
    finally:
        query.stop()
    return emitted


def by_tidemill(
    spark: SparkSession,
    schemas: Sequence[str],
    operation: Operation,
    mode: str,
    steps: Sequence[Step],
    folder: Path,
    settings: Mapping[str, Any],
    restart_before: int | None = None,
) -> Emitted:
    emitted = Emitted()
    with (
        settings_of(spark, **settings),
        FedQuery(spark, list(schemas), operation, mode, folder / "tidemill") as query,
    ):
        for number, (stream, rows) in enumerate(steps):
            if number == restart_before:
                emitted.dropped += query.late_rows()
                query.restart()
            query.feed(rows, stream)
        emitted.dropped += query.late_rows()
    emitted.batches = {number: counted(rows) for number, rows in query.outputs.items()}
    return emitted


def write_rows(rows: Sequence[Any], schema: str, folder: Path) -> None:
    """Add a file with these rows to the input of a file stream."""
    types = StructType.fromDDL(schema)
    table = (
        LocalDataToArrowConversion.convert(list(rows), types, False)
        if rows
        else to_arrow_schema(types, timezone="UTC").empty_table()
    )
    # Written elsewhere, and moved when it is complete: Spark must not see half a file.
    hidden = folder.parent / f"{uuid.uuid4()}.parquet"
    pq.write_table(table, hidden)
    hidden.rename(folder / hidden.name)
