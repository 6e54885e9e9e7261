"""Print every batch."""

from __future__ import annotations

import sys

from tidemill.batches.sink import BatchOutput, Sink

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

    A batch that runs again after a crash is printed again.
    """

    exactly_once = False

    def __init__(self, num_rows: int = 20, truncate: bool = True) -> None:
        self._num_rows = num_rows
        self._truncate = truncate

    def description(self) -> str:
        return f"ConsoleTable[numRows={self._num_rows}, truncate={str(self._truncate).lower()}]"

    def write(self, output: BatchOutput) -> int | None:
        rows = output.collected()
        sys.stdout.write(f"{LINE}\nBatch: {output.batch_id}\n{LINE}\n")
        rows.show(self._num_rows, self._truncate)
        return None
