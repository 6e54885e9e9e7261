"""Data sources that write, in PySpark's own Python interface."""

from __future__ import annotations

import json
import os
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """The file of a task, and how many rows it has."""

    file: str
    rows: int


class Folder(DataSource):
    """Writes to the folder of its option ``path``: a file for each batch, whatever comes twice."""

    @classmethod
    def name(cls) -> str:
        return "test_folder"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FolderWriter(self.options["path"], overwrite, self.options.get("Poison"))


class FolderWriter(DataSourceStreamWriter):
    """Stages a file for each task, and has seen a batch when the file of its id is there.

    Notes its calls on the driver in ``calls``.
    """

    def __init__(self, path: str, overwrite: bool, poison: str | None = None) -> None:
        self.path = path
        self.overwrite = overwrite
        self.poison = poison

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        rows = list(iterator)
        if any(str(row[0]) == self.poison for row in rows):
            raise ValueError("a poisonous row")
        os.makedirs(self.path, exist_ok=True)
        file = os.path.join(self.path, f"staged-{uuid.uuid4()}")
        with open(file, "wb") as staged:
            pickle.dump([tuple(row) for row in rows], staged)
        return Written(file, len(rows))

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.note("commit", messages, batchId)
        target = Path(self.path, f"batch-{batchId}")
        if not target.exists():
            rows = [row for message in messages for row in _load(message.file)]
            partial = Path(self.path, "partial")
            partial.write_bytes(pickle.dumps(rows))
            if self.overwrite:
                for old in Path(self.path).glob("batch-*"):
                    old.unlink()
            partial.rename(target)
        self._clear(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        self.note("abort", messages, batchId)
        self._clear(messages)

    def _clear(self, messages: list[Any]) -> None:
        for message in filter(None, messages):
            os.remove(message.file)

    def note(self, method: str, messages: list[Any], batch_id: int) -> None:
        os.makedirs(self.path, exist_ok=True)
        rows = [message and message.rows for message in messages]
        with open(os.path.join(self.path, "calls"), "a") as calls:
            calls.write(json.dumps([method, rows, batch_id]) + "\n")


class ArrowFolder(Folder):
    @classmethod
    def name(cls) -> str:
        return "test_arrow_folder"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ArrowFolderWriter(self.options["path"])


class ArrowFolderWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        columns = [(batch.schema.names, batch.num_rows) for batch in iterator]
        return Written(json.dumps(columns), sum(rows for _, rows in columns))

    def commit(self, messages: list[Any], batchId: int) -> None:
        Path(self.path).write_text("\n".join(message.file for message in messages))


def calls_in(path: Path) -> list[Any]:
    """Return the calls of commit and abort: the method, the rows of each message, the id of the batch."""
    found = path / "calls"
    return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []


def rows_in(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of all committed batches."""
    return [row for file in sorted(path.glob("batch-*")) for row in _load(file)]


def _load(file: str | Path) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = pickle.loads(Path(file).read_bytes())  # noqa: S301  # a test wrote it
    return rows
