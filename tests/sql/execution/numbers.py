"""Streams of numbers that the tests of running queries read."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from tidemill.testing import MemoryStream


def read(spark: SparkSession, stream: MemoryStream) -> Any:
    return spark.readStream.format(stream.name).load()


def rows(*values: int) -> list[tuple[int]]:
    return [(value,) for value in values]
