"""Whatever dies, each record of a topic comes out once: a few kills of driver, worker and broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import Planned
from tests.kafka.broker import KafkaBroker
from tests.sources.kafka.faults.running import KafkaProgram

SHORT = [
    Planned("kafka.fetched", 5, "hold"),
    Planned("kafka.before-fetch", 6, "process"),
    Planned("batch.before-commit", 5),
]


@pytest.mark.only_in("test-faults")
def test_killed_now_and_then(broker: KafkaBroker, tmp_path: Path, spark: SparkSession) -> None:
    assert KafkaProgram(tmp_path / "run", spark, broker).run_and_check(SHORT) == 1
