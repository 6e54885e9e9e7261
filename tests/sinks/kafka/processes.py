"""Processes that stand still, and going on with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.faults.harness import ROOT
from tests.waiting import DEADLINE_S, wait_for
from tidemill.common.fault_points import AWAKE, COUNTERS, PLAN


def session_of(leader: int) -> Iterator[tuple[int, str]]:
    """Yield the number and the state of each process in the session of ``leader``."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # pid (name) state parent group session ...
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader:
                yield int(stat.parent.name), state


def standing_still(leader: int) -> list[int]:
    return [pid for pid, state in session_of(leader) if state == "T"]


def wake(counters: Path, *pids: int) -> None:
    """Let processes go on that stand still at a fault point."""
    (counters / AWAKE).touch()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill(leader: int, *, but: list[int] = []) -> None:  # noqa: B006, never changed
    """Kill everything in a session at once, except some that stand still."""
    while others := [pid for pid, state in session_of(leader) if pid not in but and state != "Z"]:
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class WriterProcess:
    """A sink task in a process of its own: :mod:`tests.sinks.kafka.writer`."""

    def __init__(self, counters: Path, faults: str, *arguments: object) -> None:
        counters.mkdir(parents=True, exist_ok=True)
        self.counters = counters
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sinks.kafka.writer", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, PLAN: faults, COUNTERS: str(counters)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_until_it_stands_still(self) -> None:
        wait_for(
            lambda: standing_still(self.process.pid) or self.process.poll() is not None, "the pause"
        )
        assert self.process.poll() is None, self.process.communicate()

    def wake(self) -> None:
        wake(self.counters, self.process.pid)

    def ended(self) -> tuple[int, list[int], str]:
        """Return the exit code, the batches that were done, and the errors."""
        try:
            printed, errors = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
        return self.process.returncode, [int(line) for line in printed.split()], errors
