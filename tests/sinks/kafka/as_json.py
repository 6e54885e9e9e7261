"""A Kafka sink for rows of any columns: each becomes a message of JSON, and is read back from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from tests.sinks.kafka.reading import values_of
from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime

OPTIONS = {
    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
}


class JsonOutput:
    """The output of a batch, in one column."""

    def __init__(self, output: BatchOutput) -> None:
        self._output = output
        self.batch_id = output.batch_id

    def dataframe(self, consumed_once: bool = False) -> DataFrame:
        rows = self._output.dataframe(consumed_once)
        return rows.select(sql.to_json(sql.struct("*"), OPTIONS).alias("value"))


class JsonSink(Sink):
    """Gives another sink what :class:`JsonOutput` has."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self.exactly_once = inner.exactly_once

    def description(self) -> str:
        return self._inner.description()

    def start(self, runtime: SinkRuntime) -> None:
        schema = StructType.fromDDL("value string").json()
        self._inner.start(replace(runtime, schema_json=schema))

    def has_batch(self, batch_id: int) -> bool:
        return self._inner.has_batch(batch_id)

    def stage(self, output: BatchOutput) -> int | None:
        return self._inner.stage(JsonOutput(output))  # type: ignore[arg-type]

    def commit(self, batch_id: int) -> None:
        self._inner.commit(batch_id)

    def stop(self) -> None:
        self._inner.stop()


def rows_from_json(spark: SparkSession, broker: Any, topic: str, schema: StructType) -> DataFrame:
    values = [(value,) for value in values_of(broker, topic)]
    rows = spark.createDataFrame(values, "value string")
    return rows.select(sql.from_json("value", schema, OPTIONS).alias("row")).select("row.*")
