"""Senders that post each number until it is acknowledged, to whichever receiver they find."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from http.client import HTTPException
from pathlib import Path

from tests.faults.harness import ROOT, Planned
from tests.receivers.connectors.http_program import RECEIVERS
from tests.waiting import DEADLINE_S, wait_for
from tidemill.common.fault_points import COUNTERS, PLAN

SENDERS = 4
PAUSE_S = 0.05
ANSWER_S = 5.0


class Senders:
    """Threads that post numbers, each with a key, and repeat what was not answered with 200."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._next = 0
        self._is_closed = threading.Event()
        self.acknowledged: set[int] = set()
        self.retried: set[int] = set()
        self.recognised: set[int] = set()
        self._threads = [
            threading.Thread(target=self._send_all, args=(seed,), daemon=True)
            for seed in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def _send_all(self, seed: int) -> None:
        choice = random.Random(seed)
        while not self._is_closed.is_set():
            with self._lock:
                number = self._next
                self._next += 1
            while not self._send(number, choice.randrange(RECEIVERS)):
                with self._lock:
                    self.retried.add(number)
                if self._is_closed.wait(PAUSE_S):
                    return

    def _send(self, number: int, receiver: int) -> bool:
        try:
            address = (self._folder / f"address-{receiver}").read_text().strip()
            request = urllib.request.Request(
                address,
                data=str(number).encode(),
                headers={"Idempotency-Key": f"number-{number}", "Content-Type": "text/plain"},
            )
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                is_repeated = "repeated" in json.loads(answer.read())
        except (OSError, ValueError, HTTPException):
            return False
        with self._lock:
            self.acknowledged.add(number)
            if is_repeated:
                self.recognised.add(number)
        return True

    def close(self) -> None:
        self._is_closed.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


class HttpRun:
    """The program, its senders, and their results."""

    def __init__(self, folder: Path, faults: list[Planned]) -> None:
        self._folder = folder
        self._faults = faults
        self.counters = folder / "faults"
        self.counters.mkdir(parents=True)
        self.senders = Senders(folder)
        self.start()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.receivers.connectors.http_program",
                    str(self._folder),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    PLAN: ";".join(map(str, self._faults)),
                    COUNTERS: str(self.counters),
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    def run_through_all_faults(self) -> None:
        """Start the program again whenever it dies, until every fault has struck."""
        while not all(map(self._has_struck, self._faults)):
            wait_for(
                lambda: self.process.poll() is not None or all(map(self._has_struck, self._faults)),
                "the next fault",
                300,
            )
            self._start_again()

    def _has_struck(self, fault: Planned) -> bool:
        passed = self.counters / fault.point
        return passed.exists() and passed.stat().st_size >= fault.occurrence

    def _start_again(self) -> None:
        if self.process.poll() is not None:
            assert self.process.poll() == -signal.SIGKILL, self.log()
            self.kill()
            self.start()

    def more_acknowledged(self, count: int) -> None:
        goal = len(self.senders.acknowledged) + count

        def are_there() -> bool:
            self._start_again()  # a fault may strike a moment after it was counted
            return len(self.senders.acknowledged) >= goal

        wait_for(are_there, f"{count} more numbers to be acknowledged", 300)

    def kill(self) -> None:
        """Kill the driver and all processes that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        self.senders.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(DEADLINE_S) == 128 + signal.SIGTERM, self.log()
        finally:
            self.kill()

    def stored(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for path in (self._folder / "output").iterdir():
            counts.update(json.loads(path.read_text()))
        return counts

    def check(self) -> None:
        stored = self.stored()
        assert sorted(self.senders.acknowledged - set(stored)) == [], "acknowledged, and lost"
        assert [number for number, count in stored.items() if count > 1] == [], "stored twice"
