"""Print every batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tidemill.batches.sink import BatchOutput, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LINE = "-" * 43


class ConsoleSink(Sink):
    """Prints what Spark's console sink prints, to the standard output of the driver's Python::

        -------------------------------------------
        Batch: 0
        -------------------------------------------
        +-----+-----+
        | word|count|
        +-----+-----+
        |hello|    2|
        +-----+-----+

    A batch is printed when it is committed. One that was printed just before a crash is printed again.
    """

    exactly_once = False

    def __init__(self, num_rows: int = 20, truncate: bool = True) -> None:
        self._num_rows = num_rows
        self._truncate = truncate
        self._staged: tuple[int, DataFrame] | None = None

    def description(self) -> str:
        return f"ConsoleTable[numRows={self._num_rows}, truncate={str(self._truncate).lower()}]"

    def stage(self, output: BatchOutput) -> int | None:
        self._staged = output.batch_id, output.collected()
        return output.rows_collected

    def commit(self, batch_id: int) -> None:
        if self._staged is None or self._staged[0] != batch_id:
            return
        rows = self._staged[1]
        self._staged = None
        sys.stdout.write(f"{LINE}\nBatch: {batch_id}\n{LINE}\n")
        rows.show(self._num_rows, self._truncate)
