"""Queries that write to Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.kafka.broker import KafkaBroker
from tidemill.testing import MemoryStream


class Writing:
    """``with Writing(spark, broker, folder, topic="t") as it:`` writes what ``it.add(...)`` gets.

    ``columns`` make messages of the input, whose only column is ``n``.
    """

    def __init__(
        self, spark: SparkSession, broker: KafkaBroker, folder: Path, **options: Any
    ) -> None:
        self._spark = spark
        self.folder = folder
        self.options = {
            "kafka.bootstrap.servers": broker.address,
            **{name: str(value) for name, value in options.items()},
        }
        self.columns = ["string(n) AS value"]
        self.mode = "append"
        self.clock: Any = None
        self.input = MemoryStream("n long", keep=True)
        self.query: Any = None

    def __enter__(self) -> Writing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def rows(self) -> DataFrame:
        stream = self._spark.readStream.format(self.input.name).load()
        return stream.selectExpr(*self.columns)

    def start(self) -> None:
        writer = self.rows().writeStream.format("kafka").options(**self.options)
        if self.clock is not None:
            writer = writer.clock(self.clock)  # type: ignore[attr-defined]
        self.query = (
            writer.outputMode(self.mode).option("checkpointLocation", str(self.folder)).start()
        )

    def restart(self) -> None:
        self.query.stop()
        self.start()

    def add(self, *numbers: int) -> None:
        """Write a batch of these numbers."""
        self.input.add([(number,) for number in numbers])
        self.query.processAllAvailable()
