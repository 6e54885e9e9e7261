"""Runs on a cluster a program that tests kill, which otherwise runs in one process.

    python -m tests.cluster.killed_program <arguments of the program> <module of the program> <master>

The ``main`` of the module also takes the master, and more settings.
"""

from __future__ import annotations

import importlib
import os
import sys

from tests.cluster.program import cluster_conf
from tests.cluster.standalone import StandaloneCluster
from tests.faults.harness import ROOT, Program
from tidemill.common.fault_points import COUNTERS, PLAN


def on_cluster(program: Program, cluster: StandaloneCluster) -> None:
    """Let a program run on a cluster."""
    program.arguments = [*program.arguments, program.module, cluster.master]
    program.module = "tests.cluster.killed_program"
    program.environment |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def main(*arguments: str) -> None:
    *own, module, master = arguments
    settings = dict(cluster_conf(master).getAll())
    for name in (PLAN, COUNTERS):
        settings[f"spark.executorEnv.{name}"] = os.environ[name]
    # Executors are lost on purpose, one after the other.
    settings["spark.task.maxFailures"] = "20"
    importlib.import_module(module).main(*own, master=master, more=settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
