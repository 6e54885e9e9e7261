"""State on Spark: executors lose their disks and their processes, tasks run more than once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.manual_stream import Stream
from tidemill.batches.state_maintenance import StateMaintenance
from tidemill.common.fault_points import COUNTERS, PLAN
from tidemill.state.operators import StateOperators
from tidemill.state.reader import read_state
from tidemill.streaming import StateSpec

KEYS = 20


def in_a_worker(sc: SparkContext, question: Callable[[], Any]) -> set[Any]:
    return set(sc.parallelize(range(2), 2).map(lambda _: question()).collect())


def local_folders(sc: SparkContext) -> list[Path]:
    """Return the folder in which the workers keep the state of all streams."""
    (folders,) = in_a_worker(sc, lambda: os.environ["SPARK_LOCAL_DIRS"])
    return [Path(folder) / "tidemill-state" for folder in folders.split(",")]


class Totals:
    """Counts batches for every key, and lets idle keys go; after each batch all must add up."""

    def __init__(self, stream: Stream, checkpoint: Path, batches: int) -> None:
        self.stream = stream
        stream.ssc.checkpoint(str(checkpoint))
        records = stream.ssc.queueStream(
            [[(f"key {k}", 1) for k in range(KEYS) if n % (k + 1) == 0] for n in range(batches)]
        )
        records.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).setName(
            "totals"
        ).foreachRDD(lambda rdd: None)

        def count(key: str, value: int | None, state: Any) -> Any:
            if not state.isTimingOut():
                state.update(state.getOption() or 0)
                state.update(state.get() + 1)

        spec = StateSpec.function(count).timeout(5).numPartitions(2)
        records.mapWithState(spec).setName("recent").foreachRDD(lambda rdd: None)
        stream.ssc.start()
        self.done = 0

    def run(self, batches: int = 1) -> None:
        self.stream.driver.run(batches)
        self.done += batches
        self.check()

    def check(self) -> None:
        totals: dict[str, int] = {}
        recent: dict[str, tuple[int, int]] = {}
        for n in range(self.done):
            for k in range(KEYS):
                if n % (k + 1) == 0:
                    key = f"key {k}"
                    totals[key] = totals.get(key, 0) + 1
                    recent[key] = (recent.get(key, (0, 0))[0] + 1, n)
            recent = {key: (count, at) for key, (count, at) in recent.items() if n - at <= 5}
        read = self.stream.ssc.readState
        assert dict(read("totals").collect()) == totals
        assert dict(read("recent").collect()) == {key: count for key, (count, _) in recent.items()}

    @property
    def operators(self) -> StateOperators:
        operators = self.stream.ssc._graph.state
        assert operators is not None
        return operators


def test_state_survives_the_loss_of_the_executors_disk(
    new_stream: Callable[..., Stream], sc: SparkContext, tmp_path: Path
) -> None:
    totals = Totals(new_stream(), tmp_path / "checkpoint", 8)
    totals.run(2)
    for _ in range(2):
        found = [folder for folder in local_folders(sc) if folder.exists()]
        assert found
        for folder in found:
            shutil.rmtree(folder)
        totals.run(2)


def test_state_survives_the_death_of_the_workers(
    new_stream: Callable[..., Stream], sc: SparkContext, tmp_path: Path
) -> None:
    totals = Totals(new_stream(), tmp_path / "checkpoint", 6)
    totals.run(2)
    for _ in range(2):
        workers = in_a_worker(sc, os.getpid)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        reaped = threading.Event()
        while any(os.path.exists(f"/proc/{pid}") for pid in workers):
            reaped.wait(0.01)
        totals.run(2)


def files_of(totals: Totals, operator: str, partition: int) -> set[str]:
    files = totals.operators.state_of(operator).files(partition)
    return set(files.storage.list(files.folder))


def test_snapshots_are_taken_beside_the_batches_and_only_the_superfluous_goes(
    new_stream: Callable[..., Stream], sc: SparkContext, tmp_path: Path
) -> None:
    totals = Totals(new_stream(), tmp_path / "checkpoint", 9)
    operators = totals.operators
    ids = {name: node.operator_id for name, node in _stateful(totals).items()}
    maintenance = StateMaintenance(sc, operators)
    totals.run(3)
    for operator in ids.values():
        maintenance.take(operator, [0, 1])
    totals.run(3)
    # Batch 2 has a snapshot; what lies before it is needed by nobody once batch 3 is the oldest.
    operators.forget_before(4)
    for operator in ids.values():
        maintenance.take(operator, [1])
        for partition in (0, 1):
            batches = {
                (int(n.split(".")[0]), n.split(".")[2])
                for n in files_of(totals, operator, partition)
            }
            if partition == 0:  # no snapshot was asked for: nothing was looked at
                assert batches == {(2, "snapshot"), *((n, "changes") for n in range(6))}
            else:
                assert batches == {
                    (2, "snapshot"),
                    (5, "snapshot"),
                    *((n, "changes") for n in range(3, 6)),
                }
    # Every batch that is kept can be read, by executors that have nothing.
    for folder in local_folders(sc):
        shutil.rmtree(folder, ignore_errors=True)
    for operator in ids.values():
        for batch_id in range(operators.oldest_kept, 6):
            versions = operators.versions_at(operator, batch_id)
            assert versions is not None
            for partition, version in enumerate(versions):
                assert operators.state_of(operator).files(partition).chain(version).base is None
    totals.check()
    totals.run(2)


def test_a_stream_that_stops_takes_its_local_copies_along_and_no_others(
    new_stream: Callable[..., Stream], sc: SparkContext, tmp_path: Path
) -> None:
    other = local_folders(sc)[0] / "another-stream" / "totals"
    other.mkdir(parents=True)
    totals = Totals(new_stream(), tmp_path / "checkpoint", 4)
    totals.run(2)
    copies = [folder / totals.operators.stream_id for folder in local_folders(sc)]
    assert [path.name for copy in copies if copy.exists() for path in copy.iterdir()]
    totals.stream.ssc.stop(stopSparkContext=False)
    assert [copy for copy in copies if copy.exists()] == []
    assert other.exists()
    other.rmdir()


def _stateful(totals: Totals) -> dict[str, Any]:
    from tidemill.streaming.graph.state import StatefulNode

    nodes = totals.stream.ssc._graph.operators()
    return {name: node for name, node in nodes.items() if isinstance(node, StatefulNode)}


PROGRAM = """
import json, os, signal, sys
import tidemill
from tidemill.common.processes import parent_of
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.testing import BatchDriver, ManualClock, collected

checkpoint = sys.argv[1]
spark = tidemill.session("attempts", master="local-cluster[2,1,1024]", config={
    "spark.ui.enabled": False, "spark.executor.memory": "512m",
    "spark.speculation": True, "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": 0.5, "spark.speculation.multiplier": 1.1}, quiet=True)
sc = spark.sparkContext
clock = ManualClock()
ssc = StreamingContext(sc, 1, clock=clock)
ssc.checkpoint(checkpoint)
sums = []

def add_up(rdd):
    if len(sums) % 2:
        rdd.unpersist(blocking=True)  # what was kept is lost: it is computed once more
    sums.append(rdd.values().sum())

def count(key, value, state):
    state.update((state.getOption() or 0) + 1)
    return key, state.get()

records = ssc.queueStream([[(k, n) for k in range(10)] for n in range(1, 6)])
totals = records.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).setName("totals")
totals.foreachRDD(add_up)
counted = collected(records.mapWithState(StateSpec.function(count).numPartitions(2)).setName("counts"))
ssc.start()
driver = BatchDriver(ssc, clock)
driver.run(3, timeout_s=100)

def executor(_):
    return parent_of(os.getppid())

os.kill(sc.parallelize([0], 1).map(executor).first(), signal.SIGKILL)
driver.run(2, timeout_s=100)
print(json.dumps({
    "sums": sums,
    "counted": [sorted(batch) for batch in counted],
    "totals": sorted(ssc.readState("totals").collect()),
}))
ssc.stop()
"""


@pytest.mark.only_in("test-cluster")
def test_on_a_cluster_tasks_fail_after_writing_and_executors_die(tmp_path: Path) -> None:
    """Speculation is on, but copies run only with more than one host: see test_processes.py."""
    import pyspark

    faults = tmp_path / "faults"
    faults.mkdir()
    checkpoint = tmp_path / "checkpoint"
    points = [3, 5, 6]  # which of the versions that are written
    environment = {
        **os.environ,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        PLAN: ";".join(f"state.after-version@{n}=error" for n in points),
        COUNTERS: str(faults),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["sums"] == [10 * sum(range(1, n + 1)) for n in range(1, 6)]
    assert result["counted"] == [[[k, n] for k in range(10)] for n in range(1, 6)]
    assert result["totals"] == [[k, 15] for k in range(10)]
    assert read_state(str(checkpoint), "totals").values == dict.fromkeys(range(10), 15)
    # It did happen: more versions were written than the four of each batch that count.
    written = (faults / "state.after-version").stat().st_size
    assert len(list(checkpoint.glob("state/*/*/*.changes"))) == written
    assert written >= 5 * 4 + len(points) + 2 * 2
