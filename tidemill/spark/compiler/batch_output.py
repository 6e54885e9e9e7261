"""The rows of one batch, for its sinks: computed once, completely, by whichever way a sink asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tidemill.spark.compiler.compiled_plan import ExecutablePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.tasks.batch_context import BatchContext


class ComputedOutput:
    """Implements :class:`tidemill.batches.sink.BatchOutput`.

    ``context`` is what the tasks of the batch have to know; the thread that runs the batch has published it.
    ``must_run_once`` is for a plan that makes state or watches event times on its way: whatever a sink does
    with its rows, all of them have to be computed. ``is_shared`` is for several sinks: the first computes the
    rows, and they are kept for the others.
    """

    def __init__(
        self,
        session: SparkSession,
        executable: ExecutablePlan,
        context: BatchContext,
        replaces: bool,
        must_run_once: bool,
        is_shared: bool = False,
    ) -> None:
        self.batch_id = context.batch_id
        self.replaces = replaces
        self.rows_collected: int | None = None
        self.executable = executable
        self._session = session
        self._context = context
        self._c = executable.catalyst
        self._must_run_once = must_run_once
        self._is_shared = is_shared
        # The rows as a JVM RDD, once they are computed.
        self._rows: Any = None

    def count(self) -> int:
        return self.dataframe().count() if self._is_shared else self.executable.count()

    def collected(self) -> DataFrame:
        if self._is_shared:
            rows = self.dataframe()._jdf.queryExecution().executedPlan().executeCollectPublic()
        else:
            rows = self.executable.collect()
        self.rows_collected = len(rows)
        return self._on_driver(rows)

    def _on_driver(self, rows: Any) -> DataFrame:
        wrapped = self._c.module("scala.collection.immutable.ArraySeq").unsafeWrapArray(rows)
        as_list = self._c.module("scala.jdk.javaapi.CollectionConverters").asJava(wrapped)
        jdf = self._session._jsparkSession.createDataFrame(as_list, self.executable.compiled.schema)
        return DataFrame(jdf, self._session)

    def dataframe(
        self, consumed_once: bool = False, session: SparkSession | None = None
    ) -> DataFrame:
        if self._is_shared or (self._must_run_once and not consumed_once):
            if self._rows is None:
                self._rows = self.executable.compute(self._context)
            return self._as_dataframe(self._rows, session)
        rows = self.executable.execute(None if consumed_once else self._context)
        return self._as_dataframe(rows, session)

    def _as_dataframe(self, rows: Any, session: SparkSession | None) -> DataFrame:
        session = self._session if session is None else session
        jdf = session._jsparkSession.internalCreateDataFrame(
            rows, self.executable.compiled.schema, False
        )
        return DataFrame(jdf, session)
