"""The messages of a task, kept until they are sent: a transaction that fails sends them again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa

MOST_IN_MEMORY = 32 << 20
"""How many bytes a task keeps in memory. The others are in a file on the local disk, which has no name."""


class Spool:
    """``with Spool(batches) as kept:`` takes all batches at once; each iteration gives them from the first.

    Nothing is sent before the last row is there. So a row that cannot be computed leaves no trace, and a
    transaction, which readers have to wait for, is not open while rows are computed.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.rows = 0
        self._in_memory: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        memory = 0
        try:
            for batch in batches:
                self.rows += batch.num_rows
                memory += batch.nbytes
                if memory <= MOST_IN_MEMORY:
                    self._in_memory.append(batch)
                else:
                    self._write(batch)
            if self._writer is not None:
                self._writer.close()
        except BaseException:
            self.close()
            raise

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="tidemill-kafka-")  # noqa: SIM115, see close()
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._in_memory
        if self._file is not None:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._in_memory = []
        file, self._file = self._file, None
        if file is not None:
            file.close()
