"""How many tasks a DataFrame takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def partitions_of(df: DataFrame) -> int:
    """Return how many tasks compute the rows. The physical plan of ``df`` is made for it."""
    return int(df._jdf.queryExecution().toRdd().getNumPartitions())
