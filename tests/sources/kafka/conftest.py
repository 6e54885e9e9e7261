from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker
from tests.sources.kafka.reading import Reading
from tidemill.sources.kafka import source


@pytest.fixture
def topic(broker: KafkaBroker) -> Callable[..., str]:
    """Make a topic with a name of its own."""

    def make(partitions: int = 1, **config: str) -> str:
        return broker.create(f"t-{uuid.uuid4().hex[:8]}", partitions, **config)

    return make


@pytest.fixture
def reading(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> Callable[..., Reading]:
    return lambda **options: Reading(spark, broker, tmp_path / "checkpoint", **options)


@pytest.fixture
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for partitions at every batch: tests do not wait half a minute for a new one."""
    monkeypatch.setattr(source, "METADATA_AGE_MS", 0)
