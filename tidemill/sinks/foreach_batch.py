"""Hand every batch to a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.batches.sink import BatchOutput, Sink, SinkRuntime
from tidemill.errors import SinkError
from tidemill.spark.session.cloned_session import ClonedSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ForeachBatchSink(Sink):
    """Calls ``func(df, batch_id)`` on the driver, once for each batch, with an ordinary DataFrame.

    The DataFrame has the rows of its batch, for any use: in threads, in parts, more than once, and after the
    batch as long as its source has them. It belongs to a session of the query's own (``df.sparkSession``),
    so that temporary views and settings of the function stay out of the user's.

    A batch that runs again after a crash comes again with the same id and the same rows: a function that
    remembers the last id together with what it writes has its effects exactly once. An error of the
    function is raised as it is.
    """

    exactly_once = False
    failure_condition = "FOREACH_BATCH_USER_FUNCTION_ERROR"

    def __init__(self, func: Callable[[DataFrame, int], Any]) -> None:
        if not callable(func):
            raise SinkError(
                "foreachBatch takes a function of a DataFrame and a batch id, "
                f"not {type(func).__name__}"
            )
        self._func = func
        self._session: ClonedSession | None = None

    def description(self) -> str:
        return "ForeachBatchSink"

    def start(self, runtime: SinkRuntime) -> None:
        self._session = ClonedSession(runtime.session)

    def stage(self, output: BatchOutput) -> int | None:
        assert self._session is not None
        rows = output.dataframe(session=self._session.session)
        with self._session.active():
            self._func(rows, output.batch_id)
        return None

    def commit(self, batch_id: int) -> None:
        pass

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
