"""Drivers that are told to stop, that come second, or that wake up when another has taken over."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.harness import ROOT, Planned
from tests.faults.queries import ALL, QueryProgram
from tests.faults.query_program import ELSEWHERE, add_input, rows_of
from tests.waiting import wait_for
from tidemill.checkpoint.ownership import LEASE_MS, LOCK
from tidemill.common.fault_points import AWAKE, COUNTERS, PLAN

SIGNALS = [signal.SIGTERM, signal.SIGINT] if ALL else [signal.SIGTERM]
PAUSES = [
    "sink.journaled",
    *(["batch.before-offsets", "batch.before-run", "sink.staged", "sink.committed"] if ALL else []),
]
BEGAN = "2026-03-01T12:00:20Z"


class Serving:
    """A folder, and the drivers that run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoints" / "windows"
        (folder / "incoming").mkdir(parents=True)
        (folder / "faults").mkdir()
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, every: str = "0 seconds", fault: str = "", **environment: str) -> Driver:
        number = len(self.processes)
        log = self.folder / f"log-{number}"
        with log.open("w") as output:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidemill.cli.main", "run"),
                    *("tests/faults/serving_program.py", str(self.folder), every),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    PLAN: fault,
                    COUNTERS: str(self.folder / "faults"),
                    **environment,
                },
                stdout=subprocess.DEVNULL,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return Driver(process, log)

    def add(self, *steps: int) -> None:
        for step in steps:
            add_input(self.folder / "incoming", step)

    def batches(self) -> int:
        """Return the number of committed batches."""
        commits = self.checkpoint / "commits"
        return max((int(p.name) + 1 for p in commits.glob("[0-9]*")), default=0)

    def files(self) -> dict[str, bytes]:
        """Return everything that a driver could have written, except the time of the owner's record."""
        return {
            str(path): path.read_bytes()
            for root in (self.checkpoint, self.folder / "windows")
            for path in root.rglob("*")
            if path.is_file()
        }

    def nobody_writes(self) -> bool:
        """Return True if the paused owner is not in the middle of a write: then a driver can take over."""
        with (self.checkpoint / f".{LOCK}").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def owner(self) -> dict[str, object]:
        record: dict[str, object] = json.loads(
            (self.checkpoint / "owner").read_text().split("\n", 1)[1]
        )
        return record


class Driver:
    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    def errors(self) -> str:
        return self._log.read_text()

    def wait_until(self, condition: object, what: str) -> None:
        assert callable(condition)
        wait_for(lambda: condition() or self.process.poll() is not None, what, 300)
        assert condition(), f"{what}: {self.errors()}"

    def stands_still(self) -> bool:
        return any(state == "T" for _, state in session_of(self.process.pid))

    def go_on(self) -> None:
        send_to_session(self.process.pid, signal.SIGCONT)

    def ended(self) -> int:
        return self.process.wait(300)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    running = Serving(tmp_path / "run")
    yield running
    for process in running.processes:
        send_to_session(process.pid, signal.SIGKILL)
        process.wait()


def session_of(leader: int) -> Iterator[tuple[int, str]]:
    """``tidemill run``, the program, which is in another process group, and all that it has started: the
    number and the state of each."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent group session ...
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader:
                yield int(stat.parent.name), state


def send_to_session(leader: int, number: int) -> None:
    for pid, _ in session_of(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_a_query_gracefully_and_a_second_driver_disturbs_nobody(
    serving: Serving, spark: SparkSession, number: int
) -> None:
    serving.add(1)
    driver = serving.start(every="1 hour")
    driver.wait_until(lambda: serving.batches() == 1, "the first batch")
    second = serving.start()
    assert second.ended() == 1
    assert "CheckpointInUseError" in second.errors()
    assert "Stop that program first" in second.errors()
    serving.add(2, 3)  # nobody would look at them for an hour
    driver.process.send_signal(number)
    assert driver.ended() == 128 + number, driver.errors()
    assert serving.owner()["released"] is True
    # The file of each step, and the windows that they have closed.
    assert serving.batches() >= 4
    program = QueryProgram(serving.folder / "reader", spark)
    program.folder = serving.folder
    rows = program.rows()
    assert rows is not None
    on_time = {row["id"] for step in (1, 2) for row in rows_of(step) if row["at"] >= BEGAN}
    assert sum(row[1] for row in rows if row[0] >= datetime.fromisoformat(BEGAN[:-1])) == len(
        on_time
    )


@pytest.mark.only_in("test-faults")
@pytest.mark.parametrize("point", PAUSES)
def test_a_driver_that_slept_while_another_took_over_writes_nothing(
    serving: Serving, point: str
) -> None:
    serving.add(1)
    # In the fourth batch, which closes windows.
    sleeper = serving.start(fault=str(Planned(point, 4, "pause")))
    sleeper.wait_until(lambda: serving.batches() == 2, "the first step")
    serving.add(2)
    passed = serving.folder / "faults" / point
    sleeper.wait_until(lambda: passed.exists() and passed.stat().st_size >= 4, "the pause")
    sleeper.wait_until(sleeper.stands_still, "the pause")
    while (
        not serving.nobody_writes()
    ):  # a thread that keeps files in order, of all moments just now
        sleeper.go_on()
        sleeper.wait_until(sleeper.stands_still, "the next pause")
    then_s = os.stat(serving.checkpoint / "owner").st_mtime - LEASE_MS / 1000 - 1
    os.utime(serving.checkpoint / "owner", (then_s, then_s))
    successor = serving.start(**{ELSEWHERE: "1"})
    successor.wait_until(lambda: serving.batches() >= 4, "the second step")
    serving.add(3)
    successor.wait_until(lambda: serving.batches() >= 6, "the third step")
    successor.process.send_signal(signal.SIGTERM)
    assert successor.ended() == 128 + signal.SIGTERM, successor.errors()
    before = serving.files()
    (serving.folder / "faults" / AWAKE).touch()
    sleeper.go_on()
    assert sleeper.ended() == 1, sleeper.errors()
    assert "OwnershipLostError" in sleeper.errors()
    after = serving.files()
    staged = [path for path in after if "_tidemill_staging" in path]
    assert {path: data for path, data in after.items() if path not in staged} == before
