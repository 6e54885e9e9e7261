"""The program with two queries, on a cluster.

python -m tests.cluster.query_program <folder> <steps> <master>
"""

from __future__ import annotations

import os
import sys

from tests.cluster.program import cluster_conf
from tests.faults import query_program
from tidemill.common.fault_points import COUNTERS, PLAN


def main(folder: str, steps: str, master: str) -> None:
    settings = dict(cluster_conf(master).getAll())
    for name in (PLAN, COUNTERS):
        settings[f"spark.executorEnv.{name}"] = os.environ[name]
    # Executors are lost on purpose, one after the other.
    settings["spark.task.maxFailures"] = "20"
    query_program.main(folder, int(steps), master, settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
