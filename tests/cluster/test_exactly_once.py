"""With the write-ahead log on, every record that was acknowledged to its sender is counted exactly once."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.run import Run
from tests.cluster.standalone import StandaloneCluster, executor_of


@pytest.fixture
def run(cluster: StandaloneCluster, tmp_path: Path) -> Iterator[Run]:
    running = Run(cluster.master, tmp_path / "run")
    yield running
    running.sender.close()
    running.kill()


def kill_worker(run: Run) -> None:
    os.kill(run.receiver_pid(), signal.SIGKILL)


def kill_executor(run: Run) -> None:
    os.kill(executor_of(run.receiver_pid()), signal.SIGKILL)


def kill_driver(run: Run) -> None:
    run.kill()
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
