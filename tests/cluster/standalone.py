"""A real Spark cluster on the loopback address: a master and workers, from the installed PySpark."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType

import pyspark

from tests.class_archive import java_options
from tests.waiting import wait_for
from tidemill.common.processes import ancestors_of

SPARK_HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class StandaloneCluster:
    """``with StandaloneCluster(folder, workers=2, cores=2) as cluster:`` gives ``cluster.master``, a URL."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 2) -> None:
        self._folder = folder
        self._port = free_port()
        self._cores = cores
        self._workers = workers
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._named: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> StandaloneCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._start(
            "master",
            "org.apache.spark.deploy.master.Master",
            ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"],
            "I have been elected leader",
        )
        for number in range(self._workers):
            self.add_worker(number)
        return self

    def add_worker(self, number: int) -> None:
        self._start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            [
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", str(self._cores)),
                *("--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")),
                self.master,
            ],
            "Successfully registered with master",
        )

    def lose_worker(self, number: int) -> None:
        """Kill a machine: the worker, its executors, and everything on its disk."""
        process = self._named.pop(f"worker-{number}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._processes.remove(process)
        shutil.rmtree(self._folder / f"worker-{number}-disk", ignore_errors=True)

    def _start(self, name: str, main: str, arguments: list[str], ready: str) -> None:
        log = self._folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-disk"),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), main, *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(process)
        self._named[name] = process
        wait_for(
            lambda: process.poll() is not None or re.search(ready, log.read_text()) is not None,
            f"{name} to start",
        )
        assert process.poll() is None, log.read_text()[-2000:]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def executor_of(pid: int) -> int:
    """Return the pid of the JVM of the executor that a Python worker belongs to."""
    for ancestor, command in ancestors_of(pid):
        if "--executor-id" in command:
            return ancestor
    raise AssertionError("this is no process of an executor")
