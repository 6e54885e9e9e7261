"""With the write-ahead log on, every record that was acknowledged to its sender is counted exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.sender import Sender
from tests.cluster.standalone import StandaloneCluster, executor_of
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


class Run:
    """The program, its sender, and what comes of them."""

    def __init__(self, master: str, folder: Path) -> None:
        self._master = master
        self._folder = folder
        self.sender = Sender()
        self.start()

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.cluster.program", self._master),
                    *(str(self._folder), "127.0.0.1", str(self.sender.port)),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return (self._folder / "log").read_text()[-4000:]

    def more_acknowledged(self, count: int = 400) -> None:
        goal = len(self.sender.acknowledged) + count
        wait_for(
            lambda: len(self.sender.acknowledged) >= goal or self.process.poll() is not None,
            f"{count} more numbers to be acknowledged",
        )
        assert self.process.poll() is None, self.log()

    def receiver_pid(self) -> int:
        return self.sender.pids[-1]

    def new_receiver_after(self, starts: int) -> None:
        wait_for(lambda: len(self.sender.pids) > starts, "a new receiver")

    def finish(self) -> None:
        self.sender.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(120) == 128 + signal.SIGTERM, self.log()
        finally:
            self.process.kill()

    def counted(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for path in (self._folder / "output").iterdir():
            counts.update(json.loads(path.read_text()))
        return counts

    def check(self) -> None:
        counts = self.counted()
        missing = sorted(self.sender.acknowledged - set(counts))
        assert missing == [], f"{len(missing)} acknowledged numbers are missing"
        assert [number for number, count in counts.items() if count > 1] == []
        assert len(self.sender.acknowledged) > 1000


@pytest.fixture
def run(cluster: StandaloneCluster, tmp_path: Path) -> Iterator[Run]:
    running = Run(cluster.master, tmp_path / "run")
    yield running
    running.sender.close()
    running.process.kill()
    running.process.wait()


def kill_worker(run: Run) -> None:
    os.kill(run.receiver_pid(), signal.SIGKILL)


def kill_executor(run: Run) -> None:
    os.kill(executor_of(run.receiver_pid()), signal.SIGKILL)


def kill_driver(run: Run) -> None:
    run.process.kill()
    run.process.wait()
    run.start()


KILLS = {"worker": kill_worker, "executor": kill_executor, "driver": kill_driver}
# make test-cluster: a longer run, in another order each round.
ROUNDS = int(os.environ.get("TIDEMILL_CLUSTER_ROUNDS", "1"))


def test_killed_one_after_the_other(run: Run) -> None:
    run.more_acknowledged()
    for round_ in range(ROUNDS):
        names = list(KILLS)
        random.Random(round_).shuffle(names)
        for name in names:
            starts = len(run.sender.pids)
            KILLS[name](run)
            run.new_receiver_after(starts)
            run.more_acknowledged()
    run.finish()
    run.check()
