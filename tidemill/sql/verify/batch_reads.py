"""``df.show()``, ``count()``, ``collect()`` and other actions on a stream.

Spark refuses them. In an attached session they run over everything from the beginning of the sources up to
now, so that you can look at a query before you start it::

    clicks.groupBy("user").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.compiler.placeholder import streaming_leaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def dataframe_for_action(df: DataFrame) -> DataFrame | None:
    """Return a batch DataFrame in place of a streaming one, or None if one of its streams is Spark's own."""
    if any(leaf.source_id is None for leaf in streaming_leaves(df)):
        return None
    from tidemill.sql.verify.snapshot import snapshot_until_now

    return snapshot_until_now(df)
