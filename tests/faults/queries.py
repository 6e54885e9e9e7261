"""Runs the program with two queries, and compares its results."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.faults.harness import ROOT, Program, Watcher

ALL = os.environ.get("TIDEMILL_ALL_FAULTS") == "1"
STEPS = 6 if ALL else 5
STEP_S = 20
"""A step adds so many seconds of events, and closes the windows of the one before."""

Rows = list[tuple[Any, ...]]


class QueryProgram(Program):
    module = "tests.faults.query_program"

    def __init__(self, folder: Path, spark: SparkSession, steps: int = STEPS) -> None:
        super().__init__(folder, steps)
        self.environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        self._spark = spark.newSession()  # reads as any program of Spark's would

    def watcher(self, expected: Any) -> Watcher:
        return SinkWatcher(self, expected)

    def rows(self) -> Rows | None:
        """Return the rows that a reader of the sink sees now, or None if there is no sink yet."""
        target = self.folder / "windows"
        if not (target / "_spark_metadata").exists():
            return None
        try:
            return sorted(tuple(row) for row in self._spark.read.parquet(str(target)).collect())
        except AnalysisException as error:
            # Batches that close no window have no files: there is nothing that says what columns there are.
            if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
                return []
            raise

    def outputs(self) -> dict[str, bytes]:
        """Return the rows passed to the function, and the state after each step."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for name in ("counts", "state")
            for path in sorted((self.folder / name).glob("[!.]*"))
        }

    def data_files(self) -> set[str]:
        """Return the files that a reader without knowledge of the manifest would read."""
        target = self.folder / "windows"
        return {str(path.relative_to(target)) for path in target.glob("kind=*/*.parquet")}


class SinkWatcher(Watcher):
    """A concurrent reader of the sink, which must always see all windows of the first steps and no others."""

    pause_s = 0.5

    def __init__(self, program: QueryProgram, expected: Rows) -> None:
        self._program = program
        self._prefixes = prefixes(expected)
        super().__init__(program.checkpoint, {})

    def _look(self) -> None:
        try:
            rows = self._program.rows()
        except Exception as error:
            self.problem = f"the reader failed: {error}"
            return
        if rows is None:
            return
        if rows not in self._prefixes:
            self.problem = f"these are no whole batches: {rows}"
            return
        steps = self._prefixes.index(rows)
        if steps < self._last:
            self.problem = f"the rows of {steps} steps after those of {self._last}"
        self._last = steps
        self.states_seen += 1


def prefixes(rows: Rows) -> list[Rows]:
    """Return the rows that are visible after each batch that closes windows."""
    began = datetime.fromisoformat("2026-03-01T12:00:20")  # of step 1

    def step(row: tuple[Any, ...]) -> int:
        return int((row[0] - began).total_seconds() // STEP_S)

    return [[row for row in rows if step(row) < steps] for steps in range(max(map(step, rows)) + 2)]


def check(program: QueryProgram, quiet: QueryProgram) -> None:
    """Check that a user cannot tell one run from the other."""
    assert program.rows() == quiet.rows()
    assert program.outputs() == quiet.outputs()
    assert len(program.data_files()) == len(quiet.data_files()), "files that no manifest lists"
    assert not (program.folder / "windows" / "_tidemill_staging").exists()
