"""The rows of one batch, for its sink: computed once, completely, by whichever way the sink asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from tidemill.spark.compiler.compiled_plan import ExecutablePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlannedBatch:
    """Implements :class:`tidemill.batches.sink.BatchOutput`.

    ``must_run_once`` is for a plan that makes state or watches event times on its way: whatever a sink does
    with its rows, all of them have to be computed.
    """

    def __init__(
        self,
        session: SparkSession,
        executable: ExecutablePlan,
        batch_id: int,
        replaces: bool,
        must_run_once: bool,
    ) -> None:
        self.batch_id = batch_id
        self.replaces = replaces
        self.executable = executable
        self._session = session
        self._c = executable.catalyst
        self._must_run_once = must_run_once
        self._kept: DataFrame | None = None

    def count(self) -> int:
        return self.executable.count()

    def collected(self) -> DataFrame:
        rows = self.executable.collect()
        wrapped = self._c.module("scala.collection.immutable.ArraySeq").unsafeWrapArray(rows)
        as_list = self._c.module("scala.jdk.javaapi.CollectionConverters").asJava(wrapped)
        jdf = self._session._jsparkSession.createDataFrame(as_list, self.executable.compiled.schema)
        return DataFrame(jdf, self._session)

    def dataframe(self, consumed_once: bool = False) -> DataFrame:
        jdf = self._session._jsparkSession.internalCreateDataFrame(
            self.executable.execute(), self.executable.compiled.schema, False
        )
        df = DataFrame(jdf, self._session)
        if self._must_run_once and not consumed_once:
            self._kept = df.persist()
            self._kept.count()
        return df

    def done(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()
            self._kept = None
