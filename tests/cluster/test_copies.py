"""Copies of blocks on other executors, and executors that come and go, on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.standalone import StandaloneCluster

ROOT = Path(__file__).parents[2]


@pytest.mark.only_in("test-cluster")
def test_a_copy_on_another_executor_is_enough(cluster: StandaloneCluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.copies", cluster.master, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["cores"], seen["slots"]) == ([2, 2], 4)
    assert (seen["killed"], seen["requested"]) == (True, True)
    # The copy has no path: it was read from the block server of the executor that has it.
    assert seen["copies"] == {"executors": 2, "paths": [True, False], "records": list(range(100))}
