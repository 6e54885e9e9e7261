"""Running the program of numbers with its sender, and reading the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.sender import Sender
from tests.waiting import DEADLINE_S, wait_for

ROOT = Path(__file__).parents[2]


class Run:
    """The program, its sender, and their results."""

    def __init__(
        self,
        master: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        module: str = "tests.cluster.program",
    ) -> None:
        self._module = module
        self._master = master
        self._folder = folder
        self._environment = dict(environment or {})
        self.sender = Sender()
        self.start()

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", self._module, self._master),
                    *(str(self._folder), "127.0.0.1", str(self.sender.port)),
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    **self._environment,
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    def more_acknowledged(self, count: int = 400, timeout_s: float = 120.0) -> None:
        goal = len(self.sender.acknowledged) + count
        wait_for(
            lambda: len(self.sender.acknowledged) >= goal or self.process.poll() is not None,
            f"{count} more numbers to be acknowledged",
            timeout_s,
        )
        assert self.process.poll() is None, self.log()

    def receiver_pid(self) -> int:
        return self.sender.pids[-1]

    def new_receiver_after(self, starts: int) -> None:
        wait_for(lambda: len(self.sender.pids) > starts, "a new receiver")

    def kill(self) -> None:
        """Kill the driver and all processes that it has started on this machine."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finish(self) -> None:
        self.sender.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(DEADLINE_S) == 128 + signal.SIGTERM, self.log()
        finally:
            self.kill()

    def counted(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for path in (self._folder / "output").iterdir():
            counts.update(json.loads(path.read_text()))
        return counts

    def check(self, at_least: int = 1000) -> None:
        counts = self.counted()
        missing = sorted(self.sender.acknowledged - set(counts))
        assert missing == [], f"{len(missing)} acknowledged numbers are missing"
        assert [number for number, count in counts.items() if count > 1] == []
        assert len(self.sender.acknowledged) > at_least
