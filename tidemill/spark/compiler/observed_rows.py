"""Runs a DataFrame in another session, and collects its rows together with what it has counted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.spark.compiler.catalyst import Catalyst

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def in_session(df: DataFrame, session: SparkSession) -> DataFrame:
    """Return the same rows, planned with the settings of another session."""
    return Catalyst(session).dataframe(df._jdf.queryExecution().analyzed())


def collect_observed(df: DataFrame, names: Sequence[str]) -> tuple[list[Row], dict[str, list[int]]]:
    """Run a DataFrame that has ``observe(name, ...)`` below, and return its rows and the observed numbers.

    A name is missing if Spark has found out before that there is nothing to compute.
    """
    rows = df.collect()
    observed = df._jdf.queryExecution().observedMetrics()
    found = {name: observed.apply(name) for name in names if observed.contains(name)}
    return rows, {
        name: [int(row.get(place) or 0) for place in range(row.size())]
        for name, row in found.items()
    }
