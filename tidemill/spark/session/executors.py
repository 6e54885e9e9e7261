"""The executors of a Spark application: on the driver, which ones there are; in a task, which one this is."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.common.processes import PROC, ancestors_of
from tidemill.spark.java_names import java_names
from tidemill.spark.session.executor_info import ExecutorInfo

if TYPE_CHECKING:
    from pyspark import SparkContext

DRIVER = "driver"
"""The executor id of the driver. In local mode the driver is the only executor."""


class SparkExecutors:
    """Lists, requests and kills executors. Lives on the driver."""

    def __init__(self, spark_context: SparkContext) -> None:
        self._sc = spark_context

    def executors(self) -> list[ExecutorInfo]:
        """Return the executors that are alive now. The driver is one of them in local mode only."""
        context = self._context()
        in_local_mode = context.isLocal()
        summaries = context.statusStore().executorList(True)
        found = []
        for index in range(summaries.size()):
            summary = summaries.apply(index)
            executor_id = str(summary.id())
            if summary.isActive() and (executor_id != DRIVER or in_local_mode):
                host = str(summary.hostPort()).rpartition(":")[0]
                found.append(ExecutorInfo(executor_id, host, int(summary.totalCores())))
        return found

    def is_local(self) -> bool:
        """Return True if everything runs in the driver's own JVM."""
        return bool(self._context().isLocal())

    def request_total(self, n: int) -> bool:
        """Ask for ``n`` executors in all, which come later. Return False if the cluster refuses."""
        jvm = java_names(self._sc)
        no_preferences = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
        return bool(self._context().requestTotalExecutors(n, 0, no_preferences))

    def kill(self, executor_id: str) -> bool:
        """Give an executor back, without a replacement. Return False if the cluster refuses."""
        return bool(self._context().killExecutor(executor_id))

    def _context(self) -> Any:
        return self._sc._jsc.sc()


def task_slots(spark_context: SparkContext) -> int:
    """Return how many tasks can run at the same time on the executors that are alive now."""
    context: Any = spark_context._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


def current_executor(
    proc: Path = PROC,
    pid: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, str]:
    """Return the id and the host of the executor that this task runs on. Call it in a Python worker.

    Spark does not tell its Python workers. But under every cluster manager it starts the JVM of an
    executor as ``java ... --executor-id 3 --hostname node7 ...``, and the worker is a descendant of
    that JVM. On Kubernetes, ``SPARK_EXECUTOR_ID`` has the id as well.

    IF the worker descends from no such JVM, it is one of a driver in local mode: return ``driver`` and
    ``localhost``.
    """
    named_id = environment.get("SPARK_EXECUTOR_ID")
    options = _executor_options(proc, os.getpid() if pid is None else pid)
    if named_id:
        host = options[1] if options else environment.get("SPARK_EXECUTOR_POD_IP")
        return named_id, host or socket.gethostname()
    return options or (DRIVER, "localhost")


def _executor_options(proc: Path, pid: int) -> tuple[str, str] | None:
    """Return the executor id and the host name on the command line of the JVM above process ``pid``."""
    for _, command in ancestors_of(pid, proc):
        executor_id, host = _option(command, "--executor-id"), _option(command, "--hostname")
        if executor_id and host:
            return executor_id, host
        if command and os.path.basename(command[0]) == "java":
            # The JVM of a driver. If a task has started that driver, the task's executor is not ours.
            return None
    return None


def _option(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command[:-1] else None
