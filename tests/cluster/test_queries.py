"""Queries on a cluster that loses executors, workers with their disks, and drivers."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.killed_program import on_cluster
from tests.cluster.standalone import StandaloneCluster
from tests.faults.harness import Planned
from tests.faults.queries import QueryProgram, check
from tests.waiting import wait_for

ROUNDS = int(os.environ.get("TIDEMILL_CLUSTER_ROUNDS", "1"))
STEPS = 8

# Where a task is when its executor dies, and how often a step at least passes the point.
IN_TASKS = {
    "program.in-task": 12,
    "state.step": 12,
    "state.before-version": 8,
    "state.after-version": 8,
    "state.before-snapshot": 2,
}
IN_DRIVER = ["batch.after-offsets", "batch.before-run", "sink.moved", "batch.before-commit"]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> QueryProgram:
    """The undisturbed program, which needs no cluster."""
    program = QueryProgram(tmp_path_factory.mktemp("quiet") / "run", spark, STEPS)
    program.run([])
    return program


def plan_of(round_: int) -> list[Planned]:
    """Executors die in some steps, in the middle of a task, and the driver in one."""
    chance = random.Random(round_)
    steps = chance.sample(range(1, STEPS), 4)
    points = chance.sample(list(IN_TASKS), len(steps))
    plan = [
        Planned(point, step * IN_TASKS[point] + 1, "executor")
        for point, step in zip(points, steps, strict=True)
    ]
    return [*plan, Planned(chance.choice(IN_DRIVER), STEPS)]


@pytest.mark.only_in("test-cluster")
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_executors_a_disk_and_the_driver_are_lost(
    cluster: StandaloneCluster,
    quiet: QueryProgram,
    tmp_path: Path,
    spark: SparkSession,
    round_: int,
) -> None:
    program = QueryProgram(tmp_path / "run", spark, STEPS)
    on_cluster(program, cluster)
    losing = threading.Thread(target=lose_a_worker, args=(cluster, program, round_ % 2))
    losing.start()
    outcome = program.run(plan_of(round_), quiet.rows())
    losing.join()
    # Spark has run the tasks of lost executors again: only the driver had to be started again.
    assert (outcome.kills, outcome.failures) == (1, [])
    check(program, quiet)


def lose_a_worker(cluster: StandaloneCluster, program: QueryProgram, number: int) -> None:
    """Kill a worker in the middle of a run; after a while there is another machine."""
    after = program.folder / "state" / f"windows-{STEPS // 2:03d}.json"
    wait_for(after.exists, "the program to get going", 600)
    cluster.lose_worker(number)
    cluster.add_worker(number)
