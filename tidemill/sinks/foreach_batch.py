"""Hand every batch to a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.batches.sink import BatchOutput, Sink
from tidemill.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ForeachBatchSink(Sink):
    """Calls ``func(df, batch_id)`` on the driver, once for each batch, with an ordinary DataFrame.

    A batch that runs again after a crash comes again with the same id and the same rows: a function that
    remembers the last id together with what it writes has its effects exactly once. An error of the
    function is raised as it is.
    """

    exactly_once = False

    def __init__(self, func: Callable[[DataFrame, int], Any]) -> None:
        if not callable(func):
            raise SinkError(
                "foreachBatch takes a function of a DataFrame and a batch id, "
                f"not {type(func).__name__}"
            )
        self._func = func

    def description(self) -> str:
        return "ForeachBatchSink"

    def stage(self, output: BatchOutput) -> int | None:
        self._func(output.dataframe(), output.batch_id)
        return None

    def commit(self, batch_id: int) -> None:
        pass
