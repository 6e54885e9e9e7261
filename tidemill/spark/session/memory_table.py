"""A table in the memory of the driver's JVM that grows while others query it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MemoryTable:
    """Spark's own memory sink, filled from here. A query sees the rows that are there when it is planned.

    Rows go from the executors to the driver's JVM: Python never sees them.
    """

    def __init__(self, session: SparkSession, schema_json: str) -> None:
        self._session = session
        jvm = java_names(session.sparkContext)
        types = jvm.org.apache.spark.sql.types
        schema = types.DataType.fromJson(schema_json)
        utils = getattr(
            getattr(jvm, "org.apache.spark.sql.catalyst.types.DataTypeUtils$"), "MODULE$"
        )
        sources = jvm.org.apache.spark.sql.execution.streaming.sources
        self._sink = sources.MemorySink()
        self._plan = sources.MemoryPlan(self._sink, utils.toAttributes(schema))
        self._datasets = jvm.org.apache.spark.sql.classic.Dataset

    def create_view(self, name: str) -> None:
        """Create a temporary view of the table, or replace the one of that name."""
        self._dataset().createOrReplaceTempView(name)

    def dataframe(self) -> DataFrame:
        return DataFrame(self._dataset(), self._session)

    def rows_of(self, df: DataFrame) -> Any:
        """Return the rows of a DataFrame as a JVM array, which has a length."""
        return df._jdf.queryExecution().executedPlan().executeCollectPublic()

    def write(self, batch_id: int, rows: Any, replaces: bool) -> None:
        """Add the rows of such an array, or put them in the place of all others.

        A batch that is not newer than the newest one changes nothing.
        """
        self._sink.write(batch_id, replaces, rows)

    def _dataset(self) -> Any:
        return self._datasets.ofRows(self._session._jsparkSession, self._plan)
