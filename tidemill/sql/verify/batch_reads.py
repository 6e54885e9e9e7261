"""``df.show()``, ``count()``, ``collect()`` and the like on a stream: what there is now.

Spark refuses them. On an attached session a streaming DataFrame answers with the batch result over
everything from the beginning of its sources up to this moment, so that a query can be looked at before it is
started::

    clicks.groupBy("user").count().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.compiler.placeholder import streaming_leaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def readable_now(df: DataFrame) -> DataFrame | None:
    """A batch DataFrame in place of a streaming one, or None if a stream of Spark's own is in it."""
    if any(leaf.source_id is None for leaf in streaming_leaves(df)):
        return None
    from tidemill.sql.verify.snapshot import batch_dataframe

    return batch_dataframe(df)
