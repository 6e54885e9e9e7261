"""The rows of one batch, for its sinks: computed once, completely, by whichever way a sink asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tidemill.spark.compiler.compiled_plan import ExecutablePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ComputedOutput:
    """Implements :class:`tidemill.batches.sink.BatchOutput`.

    ``must_run_once`` is for a plan that makes state or watches event times on its way: whatever a sink does
    with its rows, all of them have to be computed. ``is_shared`` is for several sinks: the first computes the
    rows, and they are kept for the others.
    """

    def __init__(
        self,
        session: SparkSession,
        executable: ExecutablePlan,
        batch_id: int,
        replaces: bool,
        must_run_once: bool,
        is_shared: bool = False,
    ) -> None:
        self.batch_id = batch_id
        self.replaces = replaces
        self.executable = executable
        self._session = session
        self._c = executable.catalyst
        self._must_run_once = must_run_once
        self._is_shared = is_shared
        self._kept: DataFrame | None = None

    def count(self) -> int:
        return self._keep().count() if self._is_shared else self.executable.count()

    def collected(self) -> DataFrame:
        if self._is_shared:
            rows = self._keep()._jdf.queryExecution().executedPlan().executeCollectPublic()
        else:
            rows = self.executable.collect()
        return self._on_driver(rows)

    def _on_driver(self, rows: Any) -> DataFrame:
        wrapped = self._c.module("scala.collection.immutable.ArraySeq").unsafeWrapArray(rows)
        as_list = self._c.module("scala.jdk.javaapi.CollectionConverters").asJava(wrapped)
        jdf = self._session._jsparkSession.createDataFrame(as_list, self.executable.compiled.schema)
        return DataFrame(jdf, self._session)

    def dataframe(self, consumed_once: bool = False) -> DataFrame:
        if self._is_shared or (self._must_run_once and not consumed_once):
            return self._keep()
        return self._computed_when_used()

    def _keep(self) -> DataFrame:
        """Compute all rows, the first time, and keep them until :meth:`done`."""
        if self._kept is None:
            self._kept = self._computed_when_used().persist()
            self._kept.count()
        return self._kept

    def _computed_when_used(self) -> DataFrame:
        jdf = self._session._jsparkSession.internalCreateDataFrame(
            self.executable.execute(), self.executable.compiled.schema, False
        )
        return DataFrame(jdf, self._session)

    def done(self) -> None:
        """Release the rows that were kept. Called when the batch has been staged."""
        if self._kept is not None:
            self._kept.unpersist()
            self._kept = None
