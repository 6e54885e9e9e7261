"""Runs a program with a checkpoint directory, straight through or with restarts, faults and kills.

    python -m tests.streaming.comparison.durable <folder> <batches>

runs the program that :func:`write_program` has left in the folder, for :mod:`tests.faults.harness` to kill.

The clock stands still but for the batches, and the input of a batch is made when its time comes, always the
same. So what a program writes depends on nothing but the number of batches.
"""

from __future__ import annotations

import os
import pickle
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark import RDD, SparkContext

import tidemill
from tests.faults.harness import Planned
from tests.streaming.comparison.comparing import differences
from tests.streaming.comparison.engines import TIMEOUT_S, Record, feed, input_folders
from tests.streaming.comparison.feeding import BASE_MS, BATCH_MS
from tests.streaming.comparison.programs import Program
from tidemill.batches import durable
from tidemill.common import fault_points
from tidemill.state import operators
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.testing import BatchDriver, ManualClock

PROGRAM, OUT, SAVED = "program.pickle", "out", "saved"


@dataclass(frozen=True)
class Stop:
    """The program is stopped after so many batches, and started again."""

    batches: int
    gracefully: bool = False


class DurableRun:
    """One folder with the input, the output and the checkpoint of a program."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        self._folder = folder
        (folder / OUT).mkdir(parents=True, exist_ok=True)

    def run(self, sc: SparkContext, stops: Sequence[Stop] = ()) -> None:
        """Run the program to its end, with stops on the way. An error ends the run, to be called again."""
        waiting = list(stops)
        while not self._run_until_stop(sc, waiting):
            pass

    def run_with_faults(self, sc: SparkContext, stops: Sequence[Stop], points: list[str]) -> None:
        """Run to the end, and start again after each error. Each fault strikes at most once."""
        counters = self._folder / "faults"
        counters.mkdir()
        os.environ[fault_points.COUNTERS] = str(counters)
        fault_points._plan = fault_points.parse_plan(";".join(f"{each}=error" for each in points))
        try:
            for _ in points:
                try:
                    self.run(sc, stops)
                except Exception as error:
                    if "a fault was asked for" not in f"{error} {getattr(error, 'cause', '')}":
                        raise
            self.run(sc)
        finally:
            fault_points._plan = {}
            del os.environ[fault_points.COUNTERS]

    def _run_until_stop(self, sc: SparkContext, stops: list[Stop]) -> bool:
        """Start the program; return True at its end, False at a stop, which is taken from ``stops``."""
        # At every start the clock shows the beginning: for a recovered stream it has been set back.
        clock = ManualClock(BASE_MS)
        folders = input_folders(self._program, self._folder)
        ssc = StreamingContext.getOrCreate(
            str(self._folder / "checkpoint"), lambda: self._build(sc, clock, folders), clock=clock
        )
        stop = Stop(self._program.batches)
        try:
            ssc.start()
            driver = BatchDriver(ssc, clock)
            driver.run(0, TIMEOUT_S)
            while (done := (clock.now_ms() - BASE_MS) // BATCH_MS) < self._program.batches:
                if stops and done >= stops[0].batches:
                    stop = stops.pop(0)
                    return False
                feed(self._program, folders, done)
                driver.run(1, TIMEOUT_S)
            return True
        finally:
            ssc.stop(stopSparkContext=False, stopGraceFully=stop.gracefully)

    def _build(self, sc: SparkContext, clock: ManualClock, folders: list[Path]) -> StreamingContext:
        ssc = StreamingContext(sc, BATCH_MS // 1000, clock=clock)
        inputs = [
            each.open(ssc, path) for each, path in zip(self._program.inputs, folders, strict=True)
        ]
        out = str(self._folder / OUT)
        saved = str(self._folder / SAVED)

        def keep(name: str, stream: Any) -> None:
            def write(time: datetime, rdd: RDD[Any]) -> None:
                second = round(time.timestamp()) - BASE_MS // 1000
                # Another file each time: a batch that runs again has to give the same again.
                path = os.path.join(out, f"{name}-{second}-{uuid.uuid4().hex}")
                with open(f"{path}.tmp", "wb") as file:
                    pickle.dump(rdd.collect(), file)
                os.rename(f"{path}.tmp", path)

            stream.foreachRDD(write)
            stream.map(repr).saveAsTextFiles(f"{saved}-{name}", "txt")

        self._program.build(ssc, inputs, keep, {"StateSpec": StateSpec})
        return ssc

    def record(self) -> Record:
        """Return what the outputs have written; fail if a batch that ran again has written something else."""
        record: Record = {name: {} for name in self._program.outputs}
        for path in sorted((self._folder / OUT).glob("*-*-*")):
            if path.suffix == ".tmp":
                continue  # killed while it wrote
            name, second, _ = path.name.split("-")
            with path.open("rb") as file:
                records = pickle.load(file)  # noqa: S301  # this test has written it
            before = record[name].setdefault(int(second), records)
            assert sorted(map(repr, before)) == sorted(map(repr, records)), (
                f"batch {second} of {name} ran again and gave something else: {before}, {records}"
            )
        return record

    def saved(self) -> Record:
        """Return what ``saveAsTextFiles`` has written: the ``repr`` of each record."""
        record: Record = {name: {} for name in self._program.outputs}
        for folder in self._folder.glob(f"{SAVED}-*.txt"):
            _, name, milliseconds = folder.stem.split("-")
            second = (int(milliseconds) - BASE_MS) // 1000
            lines = [
                line for part in folder.glob("part-*") for line in part.read_text().splitlines()
            ]
            record[name][second] = lines
        return record


def straight_through(program: Program, sc: SparkContext, folder: Path) -> Record:
    """Return what an undisturbed run of the program writes."""
    run = DurableRun(program, folder)
    run.run(sc)
    record = run.record()
    compare(program, record, run, "straight through")
    return record


def _as_text(record: Record) -> Record:
    return {
        name: {second: list(map(repr, records)) for second, records in batches.items()}
        for name, batches in record.items()
    }


def compare(program: Program, expected: Record, run: DurableRun, how: object) -> None:
    """Assert that a run that was interrupted has written what is expected."""
    names = ("straight through", "interrupted")
    found = differences(program, names, expected, run.record())
    found += differences(program, (*names[:1], "saved"), _as_text(expected), run.saved())
    assert not found, "\n".join(["", str(how), *found])


def write_program(program: Program, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(pickle.dumps(program))


def keep_little() -> None:
    """Let a short run purge its log and take snapshots of its state."""
    durable.KEEP = 3
    operators.SNAPSHOT_EVERY = 2


KILL_POINTS = [
    "start.before-program",
    "start.after-program",
    "batch.before-offsets",
    "batch.after-offsets",
    "batch.before-run",
    "batch.after-run",
    "batch.before-commit",
    "batch.after-commit",
    "batch.after-sources",
    "batch.over",
    "storage.write",
]
"""The points that every program passes, at least once in each batch but for the first two."""


def planned(point: str, occurrence: int) -> Planned:
    return Planned(point, 1 if point.startswith("start.") else occurrence)


def main(folder: Path) -> None:
    keep_little()
    program: Program = pickle.loads((folder / PROGRAM).read_bytes())  # noqa: S301
    config = {"spark.ui.enabled": False}
    spark = tidemill.session("durable", master="local[2]", config=config, quiet=True)
    DurableRun(program, folder).run(spark.sparkContext)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
