"""A query over topics, its rows, and starting it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from tests.kafka.broker import KafkaBroker


def texts(first: int, end: int) -> list[str]:
    return [f"v{number:03d}" for number in range(first, end)]


class Reading:
    """``with Reading(spark, broker, folder, subscribe="t") as it:`` reads topics into ``it.batches``."""

    def __init__(
        self, spark: SparkSession, broker: KafkaBroker, folder: Path, **options: Any
    ) -> None:
        self._spark = spark
        self._folder = folder
        self.options = {
            "kafka.bootstrap.servers": broker.address,
            "startingOffsets": "earliest",
            **{name: str(value) for name, value in options.items()},
        }
        self.trigger: dict[str, Any] = {}
        self.batches: dict[int, list[Row]] = {}
        self.query: Any = None

    def __enter__(self) -> Reading:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def start(self) -> None:
        stream = self._spark.readStream.format("kafka").options(**self.options).load()
        writer = stream.writeStream.foreachBatch(lambda df, batch_id: self.keep(df, batch_id))
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        self.query = writer.option("checkpointLocation", str(self._folder)).start()

    def keep(self, df: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = df.collect()

    def restart(self) -> None:
        self.query.stop()
        self.start()

    def read_all(self) -> None:
        self.query.processAllAvailable()

    @property
    def progress(self) -> list[Any]:
        return list(self.query.recentProgress)

    def status(self) -> str:
        return str(self.query.status["message"])

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def values(self) -> list[str]:
        """The values so far, in order of topic, partition and offset."""
        rows = sorted(self.rows, key=lambda row: (row.topic, row.partition, row.offset))
        return [bytes(row.value).decode() for row in rows]
