"""Python data sources that note their calls, for both engines; and mistakes that people make in them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType


class Calls:
    """The calls of one run, in a file of its folder: readers and writers live in many processes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def note(self, method: str, *arguments: Any) -> None:
        with open(os.path.join(self.folder, "calls"), "a") as calls:
            calls.write(json.dumps([method, *arguments]) + "\n")

    def end(self) -> int:
        """Return how many rows the source has."""
        return int(Path(self.folder, "end").read_text())

    @staticmethod
    def noted(folder: Path) -> list[list[Any]]:
        found = folder / "calls"
        lines = found.read_text().splitlines() if found.exists() else []
        return [json.loads(line) for line in lines]


class Noting(DataSource):
    """Numbers up to what the file ``end`` of its folder says, a partition each."""

    def schema(self) -> str:
        return "n int"

    @property
    def calls(self) -> Calls:
        return Calls(self.options["Folder"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Reader(self.calls)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        self.calls.note("streamWriter", schema.simpleString(), overwrite)
        return Writer(self.calls, self.options.get("failing", ""))


class Reader(DataSourceStreamReader):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def initialOffset(self) -> dict[str, int]:
        self.calls.note("initialOffset")
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        self.calls.note("getDefaultReadLimit")
        return ReadMaxRows(3)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self.calls.note("latestOffset", start, str(limit))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1000
        return {"n": min(self.calls.end(), start["n"] + most)}

    def reportLatestOffset(self) -> dict[str, int]:
        self.calls.note("reportLatestOffset")
        return {"n": self.calls.end()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self.calls.note("partitions", start, end)
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        self.calls.note("read", partition.value)
        yield (partition.value,)

    def commit(self, end: dict[str, int]) -> None:
        self.calls.note("commit", end)


class PreparedReader(Reader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None:
        self.calls.note("prepareForTriggerAvailableNow")


class Prepared(Noting):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PreparedReader(self.calls)


class UnlimitedReader(Reader):
    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # as it was until Spark 4.1
        self.calls.note("latestOffset")
        return {"n": self.calls.end()}


class Unlimited(Noting):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return UnlimitedReader(self.calls)


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def initialOffset(self) -> dict[str, int]:
        self.calls.note("initialOffset")
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        self.calls.note("simple read", start)
        end = min(self.calls.end(), start["n"] + 3)
        return iter([(n,) for n in range(start["n"], end)]), {"n": end}

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[tuple[int]]:
        self.calls.note("readBetweenOffsets", start, end)
        return iter([(n,) for n in range(start["n"], end["n"])])

    def commit(self, end: dict[str, int]) -> None:
        self.calls.note("commit", end)


class Simple(Noting):
    streamReader = DataSource.streamReader

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleReader(self.calls)


class PreparedSimpleReader(SimpleReader, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None:
        self.calls.note("prepareForTriggerAvailableNow")


class PreparedSimple(Simple):
    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return PreparedSimpleReader(self.calls)


class Written(WriterCommitMessage):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows


class Writer(DataSourceStreamWriter):
    """Notes the rows that a batch has. ``failing`` is the method that raises, once."""

    def __init__(self, calls: Calls, failing: str) -> None:
        self.calls = calls
        self.failing = failing

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        rows = [row.asDict() for row in iterator]
        self._may_fail("write")
        return Written(rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._note("writer.commit", messages, batchId)
        self._may_fail("commit")

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._note("writer.abort", messages, batchId)

    def _note(self, method: str, messages: list[Any], batch_id: int) -> None:
        rows = [row for message in messages if message for row in message.rows]
        self.calls.note(method, batch_id, sorted(rows, key=str))

    def _may_fail(self, method: str) -> None:
        if self.failing == method:
            raise ValueError(f"{method} fails")


SOURCES = (Noting, Prepared, Unlimited, Simple, PreparedSimple)


# -- mistakes --------------------------------------------------------------------------------------


def boom(*arguments: Any) -> Any:
    raise ValueError("boom")


def giving(value: Any) -> Callable[..., Any]:
    return lambda *arguments: value


class Good(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"n": 2}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(n) for n in range(start["n"], end["n"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield (partition.value,)


class GoodWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


READER_MISTAKES: dict[str, dict[str, Any]] = {
    "latestOffset raises": {"latestOffset": lambda self, start, limit: boom()},
    "no initialOffset": {"initialOffset": DataSourceStreamReader.initialOffset},
    "no latestOffset": {"latestOffset": DataSourceStreamReader.latestOffset},
    "no partitions": {"partitions": DataSourceStreamReader.partitions},
    "initialOffset raises": {"initialOffset": boom},
    "getDefaultReadLimit raises": {"getDefaultReadLimit": boom},
    "reportLatestOffset raises": {"reportLatestOffset": boom},
    "partitions raises": {"partitions": boom},
    "read raises": {"read": boom},
    "stop raises": {"stop": boom},
    "an offset that is a number": {"latestOffset": lambda self, start, limit: 7},
    "an offset that is no JSON": {"latestOffset": lambda self, start, limit: {"n": {1}}},
    "latestOffset(start)": {"latestOffset": lambda self, start: {"n": 2}},
    "a limit that is a number": {"getDefaultReadLimit": giving(5)},
    "a limit of ones own": {"getDefaultReadLimit": lambda self: type("Own", (ReadLimit,), {})()},
    "a report that is a text": {"reportLatestOffset": giving("x")},
    "no partition": {"partitions": giving([])},
    "None for partitions": {"partitions": giving(None)},
    "a generator of partitions": {"partitions": lambda *_: (InputPartition(n) for n in range(1))},
    "texts for partitions": {"partitions": giving(["x"])},
    "a list of rows": {"read": giving([(1,)])},
    "numbers for rows": {"read": lambda *_: iter([1])},
    "rows with too many columns": {"read": lambda *_: iter([(1, 2)])},
    "rows of other names": {"read": lambda *_: iter([Row(m=1)])},
    "rows of other types": {"read": lambda *_: iter([("x",)])},
}
WRITER_MISTAKES: dict[str, dict[str, Any]] = {
    "write returns None": {"write": giving(None)},
    "write raises": {"write": boom},
    "commit raises": {"commit": boom},
    "abort raises": {"abort": boom},
    "a message with a lock": {"write": lambda *_: _with_lock()},
}


def _with_lock() -> WriterCommitMessage:
    message = WriterCommitMessage()
    message.lock = threading.Lock()  # type: ignore[attr-defined]
    return message


def mistaken(number: int, base: type, methods: dict[str, Any]) -> type[DataSource]:
    """Return a data source whose reader or writer has these methods."""
    part = type("Mistaken", (base,), methods)
    make = (
        {"streamReader": lambda self, schema: part()}
        if issubclass(base, DataSourceStreamReader)
        else {"streamWriter": lambda self, schema, overwrite: part()}
    )
    name = f"mistaken_{base.__name__.lower()}_{number}"
    return type(name, (DataSource,), {**make, "schema": lambda self: "n int"})
