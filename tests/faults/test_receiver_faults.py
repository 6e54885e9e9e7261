"""Kills at every step from the arrival of a record to its batch. Run by ``make test-faults``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.run import Run
from tests.faults.harness import Planned
from tests.waiting import wait_for
from tidemill.common.fault_points import COUNTERS, PLAN

# Each far enough from the one before for the program to have got going again.
FAULTS = [
    Planned("log.append", 30),
    Planned("block.logged", 60),
    Planned("block.stored", 100),
    Planned("block.before-add", 150),
    Planned("block.after-add", 200),
    Planned("batch.after-offsets", 40),
    Planned("batch.before-commit", 50),
    Planned("log.appended", 700),
]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    counters = tmp_path / "faults"
    counters.mkdir()
    plan = {PLAN: ";".join(map(str, FAULTS)), COUNTERS: str(counters)}
    running = Run("local[2]", tmp_path / "run", plan)
    yield running
    running.sender.close()
    running.kill()


def test_killed_at_every_step_of_a_block(run: Run, tmp_path: Path) -> None:
    for _ in FAULTS:
        wait_for(lambda: run.process.poll() is not None, "the next fault", 300)
        assert run.process.poll() == -9, run.log()
        run.kill()
        run.start()
    starts = len(run.sender.pids)
    run.new_receiver_after(starts - 1)
    run.more_acknowledged(1000)
    run.finish()
    run.check()
    for fault in FAULTS:
        passed = (tmp_path / "faults" / fault.point).stat().st_size
        assert passed >= fault.occurrence
