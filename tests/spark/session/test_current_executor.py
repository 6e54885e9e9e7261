"""Which executor a Python worker belongs to, found in a process tree that the test makes up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.spark.session.executors import current_executor

WORKER = ["python3", "-m", "pyspark.daemon"]
EXECUTOR = [
    "/usr/lib/jvm/java-17/bin/java",
    "-Xmx1g",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    *("--driver-url", "spark://CoarseGrainedScheduler@driver:4040"),
    *("--executor-id", "12"),
    *("--hostname", "node7"),
    *("--cores", "4"),
]
DRIVER = ["/usr/bin/java", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
SHELL = ["/bin/bash", "-c", "java --executor-id 12 --hostname node7"]


def draw(proc: Path, *commands: list[str], name: str = "python3") -> int:
    """Write a line of processes, the youngest first, as /proc shows it. Return the id of the youngest."""
    for index, command in enumerate(reversed(commands)):
        pid, parent = index + 1, index
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560")
        (proc / str(pid) / "cmdline").write_bytes(b"".join(f"{a}\0".encode() for a in command))
    return len(commands)


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        pytest.param([WORKER, WORKER, EXECUTOR, SHELL], ("12", "node7"), id="a forked worker"),
        pytest.param([WORKER, EXECUTOR], ("12", "node7"), id="the JVM is process 1"),
        pytest.param([WORKER, WORKER, DRIVER, WORKER], ("driver", "localhost"), id="local mode"),
        pytest.param(
            [WORKER, DRIVER, WORKER, EXECUTOR],
            ("driver", "localhost"),
            id="local mode inside a task of a cluster",
        ),
        pytest.param([WORKER, EXECUTOR, DRIVER], ("12", "node7"), id="an executor below a driver"),
        pytest.param([WORKER], ("driver", "localhost"), id="no parent"),
        pytest.param([WORKER, [], EXECUTOR], ("12", "node7"), id="a process without command"),
        pytest.param(
            [WORKER, ["java", "--hostname", "node7", "--executor-id"]],
            ("driver", "localhost"),
            id="an option without its value",
        ),
    ],
)
def test_the_process_tree_tells(
    tmp_path: Path, commands: list[list[str]], expected: tuple[str, str]
) -> None:
    assert current_executor(tmp_path, draw(tmp_path, *commands), {}) == expected


def test_a_process_name_may_look_like_anything(tmp_path: Path) -> None:
    pid = draw(tmp_path, WORKER, EXECUTOR, name="py) S 99 (thon 3")
    assert current_executor(tmp_path, pid, {}) == ("12", "node7")


def test_a_tree_that_cannot_be_seen_has_no_executor(tmp_path: Path) -> None:
    pid = draw(tmp_path, WORKER, EXECUTOR)
    (tmp_path / "1" / "cmdline").unlink()
    assert current_executor(tmp_path, pid, {}) == ("driver", "localhost")
    assert current_executor(tmp_path / "not there", pid, {}) == ("driver", "localhost")


def test_the_environment_names_the_executor(tmp_path: Path) -> None:
    pid = draw(tmp_path, WORKER, EXECUTOR)
    named = {"SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_POD_IP": "10.0.0.5"}
    assert current_executor(tmp_path, pid, named) == ("3", "node7")
    assert current_executor(tmp_path / "not there", pid, named) == ("3", "10.0.0.5")
    only_id = current_executor(tmp_path / "not there", pid, {"SPARK_EXECUTOR_ID": "3"})
    assert only_id == ("3", os.uname().nodename)


def test_this_process_is_no_executor() -> None:
    assert current_executor(environment={}) == ("driver", "localhost")
