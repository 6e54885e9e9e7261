"""The folder in which Spark keeps the checkpoints of RDDs, which a stream sets for as long as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


class CheckpointFolder:
    """Remembers the folder of a Spark context, or that it has none, so that it can be set again."""

    def __init__(self, spark_context: SparkContext) -> None:
        self._spark_context: Any = spark_context._jsc.sc()
        self._before: Any = self._spark_context.getCheckpointDir()

    def restore(self) -> None:
        """Set the folder of before. ``setCheckpointDir`` would make another one below it."""
        getattr(self._spark_context, "checkpointDir_$eq")(self._before)
