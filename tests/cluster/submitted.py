"""The program of numbers, submitted to the cluster, which runs and supervises its driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.class_archive import java_options
from tests.cluster.run import ROOT
from tests.cluster.sender import Sender
from tests.cluster.standalone import SPARK_HOME, StandaloneCluster
from tests.waiting import wait_for
from tidemill.common.processes import ancestors_of

DRIVER = "org.apache.spark.deploy.worker.DriverWrapper"


def submit(master: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``spark-submit --deploy-mode cluster --supervise``: returns when the cluster runs the driver."""
    return subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", master),
            *("--deploy-mode", "cluster", "--supervise", *arguments),
        ],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class SubmittedRun:
    """The program as ``org.apache.spark.deploy.PythonRunner`` runs it, and its sender."""

    def __init__(self, cluster: StandaloneCluster, folder: Path) -> None:
        self.folder = folder
        self.sender = Sender()
        # Spark asks for a jar; any will do that every machine has.
        (jar,) = (SPARK_HOME / "jars").glob("spark-tags_*[0-9].jar")
        submitted = submit(
            cluster.master,
            *("--class", "org.apache.spark.deploy.PythonRunner"),
            *("--conf", f"spark.pyspark.python={sys.executable}"),
            *("--conf", "spark.driver.memory=512m", "--conf", "spark.driver.cores=1"),
            *("--conf", f"spark.driver.extraJavaOptions={java_options()}"),
            *(f"file:{jar}", str(ROOT / "tests" / "cluster" / "program.py"), str(ROOT)),
            *(cluster.master, str(folder), "127.0.0.1", str(self.sender.port)),
        )
        assert submitted.returncode == 0, submitted.stderr[-4000:]
        self._master = cluster.master
        self._is_over = False
        (self._driver_id,) = set(re.findall(r"driver-\d+-\d+", submitted.stderr))

    def _processes(self) -> list[int]:
        program = str(ROOT / "tests" / "cluster" / "program.py")
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _command(pid)[1:2] == [program] and str(self.folder) in _command(pid)
        ]

    def python(self) -> int:
        """The process that runs the program now."""
        (found,) = self._processes()
        return found

    def jvm(self) -> int:
        """The process that the worker watches: it runs the JVM and the program."""
        python = self.python()
        return next(pid for pid, command in ancestors_of(python) if DRIVER in command)

    def more_acknowledged(self, count: int = 400) -> None:
        goal = len(self.sender.acknowledged) + count
        wait_for(
            lambda: len(self.sender.acknowledged) >= goal, f"{count} more numbers", timeout_s=180
        )

    def new_receiver_after(self, starts: int) -> None:
        wait_for(lambda: len(self.sender.pids) > starts, "a receiver of a new driver", 180)

    def end(self) -> None:
        """Tell the master to kill the driver, which is then not started again. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        ended = subprocess.run(
            [
                *(str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.Client"),
                *("kill", self._master, self._driver_id),
            ],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        wait_for(lambda: not self._processes(), "the end of the driver")


def _environment() -> dict[str, str]:
    return {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
