"""The program with two sinks, as tests start it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.faults.harness import Program

BATCHES = 4
EXPECTED_KEYS = list(range((BATCHES - 1) * 2 + 4))


class TwoSinks(Program):
    module = "tests.faults.two_sinks_program"

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder, BATCHES)
        self._spark = spark

    def rows(self, sink: str) -> list[tuple[Any, ...]]:
        """What a reader of the manifest sees."""
        df = self._spark.read.schema("k long, v string, random double").json(
            str(self.folder / sink)
        )
        return sorted(tuple(row) for row in df.collect())

    def shown_batches(self, sink: str) -> set[str]:
        manifest = self.folder / sink / "_spark_metadata"
        return {path.name for path in manifest.iterdir() if path.name.isdigit()}

    def keys(self, sink: str) -> list[int]:
        return [row[0] for row in self.rows(sink)]
