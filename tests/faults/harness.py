"""Runs the program in its own process, kills it where a plan says, starts it again, and watches.

A fault is data: a point, the occurrence at which it strikes, and what happens then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import DEADLINE_S
from tidemill.common.fault_points import COUNTERS, PLAN
from tidemill.errors import CheckpointError
from tidemill.state.reader import read_state

ROOT = Path(__file__).parents[2]
BATCHES = 10

DRIVER_POINTS = [
    "start.before-program",
    "start.after-program",
    "batch.before-offsets",
    "batch.after-offsets",
    "batch.before-run",
    "program.after-output",
    "output.before-rename",
    "output.after-rename",
    "output.after-mark",
    "batch.after-run",
    "batch.before-commit",
    "batch.after-commit",
    "batch.after-sources",
    "batch.over",
    "batch.purge",
    "state.before-cleanup",
    "storage.write",
]
TASK_POINTS = [
    "program.in-job",
    "program.in-output",
    "state.before-version",
    "state.after-version",
    "state.before-snapshot",
    "state.after-snapshot",
]
POINTS = DRIVER_POINTS + TASK_POINTS


@dataclass(frozen=True)
class Planned:
    point: str
    occurrence: int
    action: str = "kill"

    def __str__(self) -> str:
        return f"{self.point}@{self.occurrence}={self.action}"


def packed(faults: list[Planned], most: int = 5) -> list[list[Planned]]:
    """Return plans of at most ``most`` faults each, all at different points, in the order given."""
    left, plans = list(faults), []
    while left:
        plan: list[Planned] = []
        for fault in list(left):
            # Two occurrences of a point in one program could fall together.
            if len(plan) < most and all(fault.point != other.point for other in plan):
                plan.append(fault)
                left.remove(fault)
        plans.append(plan)
    return plans


@dataclass
class Outcome:
    kills: int = 0
    failures: list[str] = field(default_factory=list)
    states_seen: int = 0


class Program:
    """One folder with the input, the output and the checkpoint of a program."""

    module = "tests.faults.program"
    arguments: list[str] = []
    deadline_s = 400

    def __init__(self, folder: Path, batches: int = BATCHES) -> None:
        self.folder = folder
        self.batches = batches
        self.environment: dict[str, str] = {}
        self.counters = folder / "faults"
        self.counters.mkdir(parents=True)
        self.checkpoint = folder / "checkpoint"
        self._stdout = folder / "stdout"

    def start(self, faults: list[Planned]) -> subprocess.Popen[str]:
        with self._stdout.open("a") as stdout:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", self.module, str(self.folder), str(self.batches)),
                    *self.arguments,
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    **self.environment,
                    PLAN: ";".join(map(str, faults)),
                    COUNTERS: str(self.counters),
                },
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

    def run_once(self, faults: list[Planned]) -> tuple[int, str]:
        process = self.start(faults)
        try:
            _, errors = process.communicate(timeout=self.deadline_s)
            return process.returncode, errors
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def run(self, faults: list[Planned], expected: Any = None) -> Outcome:
        """Run to the end, starting again after every death, and check that every fault has struck."""
        outcome = Outcome()
        watcher = self.watcher(expected) if expected is not None else None
        try:
            for _ in range(len(faults) + 1):
                code, errors = self.run_once(faults)
                if code == 0:
                    break
                if code == -signal.SIGKILL:
                    outcome.kills += 1
                else:
                    outcome.failures.append(errors)
            assert code == 0, f"the program did not come to its end: {code}\n{errors}"
        finally:
            if watcher is not None:
                watcher.stop()
        if watcher is not None:
            assert watcher.problem is None, watcher.problem
            outcome.states_seen = watcher.states_seen
        missed = [fault for fault in faults if not self.has_struck(fault)]
        assert not missed, f"the program never got to {missed}"
        return outcome

    def watcher(self, expected: Any) -> Watcher:
        return Watcher(self.checkpoint, expected)

    def has_struck(self, fault: Planned) -> bool:
        passed = self.counters / fault.point
        return passed.exists() and passed.stat().st_size >= fault.occurrence

    def outputs(self) -> dict[str, bytes]:
        """Return every file that was written, by its path, but for checksums and Spark's marks."""
        out = self.folder / "out"
        files = {str(path.relative_to(out)): path for path in sorted(out.rglob("*"))}
        return {
            name: path.read_bytes()
            for name, path in files.items()
            if path.is_file() and not name.endswith(".crc") and path.name != "_SUCCESS"
        }

    def printed(self) -> dict[str, set[str]]:
        """Return what ``pprint`` has printed of each batch: one text, however often it was printed."""
        printed: dict[str, set[str]] = {}
        blocks = self._stdout.read_text().split(f"{'-' * 43}\nTime: ")
        for block in blocks[1:]:
            time, _, records = block.partition(f"\n{'-' * 43}\n")
            records = records.partition("\n\n")[0]
            printed.setdefault(time, set()).add("\n".join(sorted(records.split("\n"))))
        return printed

    def states_by_batch(self) -> dict[str, Any]:
        """Return the state after each batch, as the undisturbed run had it."""
        return {
            str(int(name[7:10]) - 1): dict(json.loads(data))
            for name, data in self.outputs().items()
            if name.startswith("totals-")
        }


class Watcher:
    """A concurrent reader, which must always see exactly the state of some committed batch."""

    pause_s = 0.2

    def __init__(self, checkpoint: Path, expected: dict[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._expected = expected
        self._stopped = threading.Event()
        self.states_seen = 0
        self.problem: str | None = None
        self._last = -1
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(DEADLINE_S)

    def _watch(self) -> None:
        while not self._stopped.wait(self.pause_s) and self.problem is None:
            self._look()

    def _look(self) -> None:
        if not (self._checkpoint / "program").exists():
            return
        try:
            state = read_state(str(self._checkpoint), "totals")
        except CheckpointError as error:
            self.problem = f"the reader was refused: {error}"
            return
        expected = {} if state.batch_id < 0 else self._expected[str(state.batch_id)]
        if state.values != expected:
            self.problem = f"after batch {state.batch_id}: {state.values}, not {expected}"
        if state.batch_id < self._last:
            self.problem = f"batch {state.batch_id} after batch {self._last}"
        self._last = state.batch_id
        self.states_seen += 1
