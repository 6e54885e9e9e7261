from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def sparks(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with Spark's own streaming engine."""
    session = spark.newSession()
    yield session
    assert session.streams.active == []
