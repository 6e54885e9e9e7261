"""A driver that the cluster itself runs and supervises: killed, it goes on from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.standalone import StandaloneCluster
from tests.cluster.submitted import SubmittedRun, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.only_in("test-cluster")

KILLS = [("jvm", signal.SIGKILL), ("python", signal.SIGKILL), ("python", signal.SIGTERM)]


@pytest.fixture
def run(cluster: StandaloneCluster, tmp_path: Path) -> Iterator[SubmittedRun]:
    running = SubmittedRun(cluster, tmp_path / "run")
    yield running
    running.sender.close()
    running.end()


def counted(run: SubmittedRun) -> Counter[int]:
    counts: Counter[int] = Counter()
    for path in (run.folder / "output").iterdir():
        counts.update(json.loads(path.read_text() or "[]"))
    return counts


def test_a_supervised_driver_that_is_killed_counts_every_number_once(run: SubmittedRun) -> None:
    run.more_acknowledged()
    for name, number in KILLS:
        receivers = len(run.sender.pids)
        os.kill(run.jvm() if name == "jvm" else run.python(), number)
        run.new_receiver_after(receivers)
        run.more_acknowledged()
    run.sender.close()
    wait_for(lambda: run.sender.acknowledged <= set(counted(run)), "all acknowledged numbers", 60)
    run.end()
    counts = counted(run)
    assert run.sender.acknowledged <= set(counts)
    assert [number for number, count in counts.items() if count > 1] == []


def test_spark_refuses_a_python_file_itself(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """That is why docs/running.md submits Spark's PythonRunner. If it works one day, submit the file."""
    refused = submit(cluster.master, str(tmp_path / "app.py"))
    assert refused.returncode == 1
    assert "Cluster deploy mode is currently not supported for python" in refused.stderr
