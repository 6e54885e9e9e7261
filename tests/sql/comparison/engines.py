"""Runs a query on Spark's own streaming engine, or on Tidemill, and records what came of it.

Both have one API, so an engine is a session: one that is attached to Tidemill, or one that is not.
"""

from __future__ import annotations

import os
import pickle
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.types import StructType

from tests.sql.comparison.inputs import schema_of
from tests.sql.comparison.pending import STATE
from tests.sql.comparison.queries import Query, Run
from tests.sql.streams import plans, settings_of

BUILDING, STARTING, RUNNING = "building", "start()", "running"
"""When an error came: while the DataFrame was built, from ``start()``, or from a batch."""


# Spark counts the rows that leave a scan, which are fewer where a filter has been pushed into it.
_UNFILTERED = {
    "spark.sql.json.filterPushdown.enabled": False,
    "spark.sql.csv.filterPushdown.enabled": False,
    "spark.sql.parquet.filterPushdown": False,
}


@dataclass(frozen=True)
class Failure:
    """When a query failed, and with what condition of Spark's, where it has one with a name."""

    moment: str
    condition: str | None
    # The types of PySpark's by which a program catches it; whether it is Tidemill's UnsupportedError.
    types: frozenset[str] = field(default=frozenset(), compare=False)
    is_unsupported: bool = field(default=False, compare=False)
    message: str = field(default="", compare=False)


@dataclass
class Record:
    """All that a user of a query sees."""

    schema: StructType | None = None
    batch_schema: StructType | None = None
    """The schema that ``foreachBatch`` sees."""
    batches: dict[int, list[Row]] = field(default_factory=dict)
    tables: list[list[Row]] = field(default_factory=list)
    progress: dict[int, dict[str, Any]] = field(default_factory=dict)
    failure: Failure | None = None


class Engine:
    """Runs queries on one session."""

    def __init__(self, name: str, session: SparkSession) -> None:
        self.name = name
        self.session = session

    def run(self, query: Query, run: Run, files: Sequence[Path], folder: Path) -> Record:
        """Run a query over files, each of which is one batch, with a restart where ``run`` says so."""
        return _Running(self, query, run, files, folder / self.name).record


class BatchEngine:
    """Gives the answer of Spark's batch engine after every file, for queries that Spark refuses to stream.

    That is the result in complete mode, or in append mode if all batches are added up.
    """

    name = "batch"

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def run(self, query: Query, run: Run, files: Sequence[Path], folder: Path) -> Record:
        record = Record()
        reader = self.session.read.format(run.file_format).schema(schema_of(run.file_format))
        for number in range(len(files)):
            df = query.build(
                self.session, [reader.load([str(path) for path in files[: number + 1]])]
            )
            record.schema = df.schema
            record.batches[number] = df.collect()
        return record


class _Running:
    def __init__(
        self, engine: Engine, query: Query, run: Run, files: Sequence[Path], folder: Path
    ) -> None:
        self._session = engine.session
        self._query = query
        self._run = run
        self._inputs = [folder / f"in-{number}" for number in range(run.streams)]
        self._folder = folder
        self._out = str(folder / "out")
        self._name = f"compared_{uuid.uuid4().hex}"
        self.record = Record()
        for path in self._inputs:
            path.mkdir(parents=True)
        settings = {"spark.sql.shuffle.partitions": run.partitions, **_UNFILTERED}
        settings["spark.sql.streaming.noDataMicroBatches.enabled"] = run.no_data_batches
        with (
            settings_of(self._session, **settings),
            plans(lambda batch_id: bool(run.parallel >> batch_id % 4 & 1)),
        ):
            for start, end in run.parts(len(files)):
                if self.record.failure is None:
                    self._part(files[start:end], start)
        self._session.catalog.dropTempView(self._name)
        if run.sink == "table":
            self._session.sql(f"DROP TABLE IF EXISTS {self._name}")

    def _part(self, files: Sequence[Path], first: int) -> None:
        """Start the query, feed it, and stop it."""
        with self._failing(BUILDING):
            df = self._query.build(self._session, self._streams())
            self.record.schema = df.schema
            writer = self._writer(df)
        if self.record.failure is not None:
            return
        available_now = self._run.available_now
        if available_now:
            writer = writer.trigger(availableNow=True)
            self._link(files, first)
        with self._failing(STARTING):
            query = self._start(writer)
        if self.record.failure is not None:
            return
        try:
            with self._failing(RUNNING):
                if available_now:
                    query.awaitTermination()
                    self._look()
                else:
                    for number, path in enumerate(files, first):
                        self._link([path], number)
                        query.processAllAvailable()
                        self._look()
        finally:
            for progress in query.recentProgress:
                if "addBatch" in progress.durationMs:  # not the progress of an idle trigger
                    self.record.progress[progress.batchId] = _figures(progress)
            query.stop()

    @contextmanager
    def _failing(self, moment: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.record.failure = Failure(moment, condition_of(error), message=str(error))

    def _streams(self) -> list[DataFrame]:
        file_format = self._run.file_format
        reader = self._session.readStream.format(file_format).option("maxFilesPerTrigger", 1)
        return [reader.schema(schema_of(file_format)).load(str(path)) for path in self._inputs]

    def _link(self, files: Sequence[Path], first: int) -> None:
        for number, path in enumerate(files, first):
            os.link(path, self._inputs[number % len(self._inputs)] / path.name)

    def _writer(self, df: DataFrame) -> Any:
        writer = df.writeStream.outputMode(self._query.mode)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        match self._run.sink:
            case "foreachBatch":
                return writer.foreachBatch(self._keep)
            case "foreach":
                return writer.foreach(RowsInFiles(self._out))
            case "memory":
                return writer.format("memory").queryName(self._name)
            case "table":
                return writer.format("parquet")
        return writer.format(self._run.sink)

    def _start(self, writer: Any) -> Any:
        match self._run.sink:
            case "table":
                return writer.option("path", self._out).toTable(self._name)
            case "foreachBatch" | "foreach" | "memory":
                return writer.start()
        return writer.start(self._out)

    def _keep(self, df: DataFrame, batch_id: int) -> None:
        self.record.batch_schema = df.schema
        self.record.batches[batch_id] = df.collect()

    def _look(self) -> None:
        """Read what the sink has now."""
        match self._run.sink:
            case "foreachBatch":
                pass
            case "foreach":
                self.record.batches = RowsInFiles.read(self._out)
            case "memory" | "table":
                self.record.tables.append(self._session.table(self._name).collect())
            case file_format:
                assert self.record.schema is not None
                reader = self._session.read.format(file_format).schema(self.record.schema)
                self.record.tables.append(reader.load(self._out).collect())


class RowsInFiles:
    """A ``foreach`` writer that keeps the rows of each task in a file."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, f"{epoch}-{partition}")
        self.rows: list[Row] = []
        return True

    def process(self, row: Row) -> None:
        self.rows.append(row)

    def close(self, error: Exception | None) -> None:
        if error is None:
            with open(self.path, "wb") as file:
                pickle.dump(self.rows, file)

    @staticmethod
    def read(folder: str) -> dict[int, list[Row]]:
        batches: dict[int, list[Row]] = {}
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                rows = pickle.load(file)  # noqa: S301  # this test has written it
            batches.setdefault(int(name.split("-")[0]), []).extend(rows)
        return {batch_id: rows for batch_id, rows in batches.items() if rows}


_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]")

_AROUND = {
    "STREAM_FAILED",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "TASK_WRITE_FAILED",
    "PYTHON_EXCEPTION",
}
"""Conditions that say where another one came from."""


def condition_of(error: BaseException) -> str | None:
    """Return Spark's name for the condition of an error: for a failed query, of what made it fail."""
    if isinstance(error, StreamingQueryException):
        named = [name for name in _CONDITION.findall(str(error)) if name not in _AROUND]
        return named[0] if named else None
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return None if condition is None or condition.startswith("_LEGACY") else condition


def _figures(progress: StreamingQueryProgress) -> dict[str, Any]:
    """Return the figures of a batch that do not depend on the machine."""
    return {
        "numInputRows": progress.numInputRows,
        "numInputRows of the sources": [source.numInputRows for source in progress.sources],
        "eventTime": dict(progress.eventTime),
        STATE: [
            {
                name: getattr(operator, name)
                for name in (
                    "operatorName", "numRowsTotal", "numRowsUpdated", "numRowsRemoved",
                    "numRowsDroppedByWatermark",
                )
            }
            for operator in progress.stateOperators
        ],
        "numOutputRows": progress.sink.numOutputRows,
        "observedMetrics": {name: row.asDict() for name, row in progress.observedMetrics.items()},
    }  # fmt: skip
