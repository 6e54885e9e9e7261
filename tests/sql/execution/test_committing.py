"""Which batches of a query are committed, and how a batch runs that was not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.sql.batches import Batches, stopped_at_end
from tests.sql.execution.numbers import read
from tests.waiting import DEADLINE_S, wait_for
from tidemill.batches import runner
from tidemill.sql.query_errors import QueryFailedError
from tidemill.testing import MemoryStream


def committed(checkpoint: Path) -> set[int]:
    return {int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")}


# -- stopping --------------------------------------------------------------------------------------


class Swallowing:
    """A function that runs a slow job, and goes on as if nothing had been when the job is cancelled."""

    def __init__(self, gate: Path, jobs: int = 1, group: str | None = None) -> None:
        self.gate = gate
        self.jobs = jobs
        self.group = group
        self.began = threading.Event()
        self.swallowed = threading.Event()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        gate = str(self.gate)

        def wait(rows: Any) -> Any:
            import os
            import threading as worker_threading

            never = worker_threading.Event()
            while not os.path.exists(gate):
                never.wait(0.05)
            return rows

        if self.group is not None:
            df.sparkSession.sparkContext.setJobGroup(self.group, "the user's", True)
        self.began.set()
        for _ in range(self.jobs):
            try:
                df.rdd.mapPartitions(wait).count()
            except Exception:
                self.swallowed.set()


@pytest.mark.parametrize(("jobs", "group"), [(1, None), (2, "of the user")])
def test_a_stop_does_not_commit_the_batch_that_it_cancels(
    jobs: int, group: str | None, spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    """Even if the user's function hides that its write was cancelled, goes on with another one, or has put
    its jobs into a group of its own."""
    checkpoint = tmp_path / "checkpoint"
    numbers.add([(1,), (2,)])
    swallowing = Swallowing(tmp_path / "gate", jobs, group)
    query = Batches(on_batch=swallowing).start(read(spark, numbers), checkpoint)
    assert swallowing.began.wait(DEADLINE_S)
    query.stop()
    assert swallowing.swallowed.is_set()
    assert query.exception() is None
    assert committed(checkpoint) == set()
    again = Batches()
    query = again.start(read(spark, numbers), checkpoint)
    with stopped_at_end(query):
        query.processAllAvailable()
    assert {n: sorted(row.n for row in rows) for n, rows in again.rows.items()} == {0: [1, 2]}


def test_the_jobs_of_a_batch_are_in_the_group_of_the_query(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    """Also after a batch whose function has set a group of its own."""
    sc = spark.sparkContext
    groups: list[str | None] = []

    def note(df: DataFrame, batch_id: int) -> None:
        groups.append(sc.getLocalProperty("spark.jobGroup.id"))
        sc.setJobGroup("of the user", "the user's")
        sc.clearJobTags()

    query = Batches(on_batch=note).start(read(spark, numbers), tmp_path / "checkpoint")
    with stopped_at_end(query):
        for number in range(2):
            numbers.add([(number,)])
            query.processAllAvailable()
    assert groups == [query.runId, query.runId]


def test_a_stop_inside_the_function_commits_its_batch(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    numbers.add([(1,)])
    batches = Batches()
    batches.on_batch = lambda df, batch_id: batches.query.stop()
    query = batches.query = batches.start(read(spark, numbers), checkpoint)
    query.awaitTermination(60)
    assert not query.isActive
    assert committed(checkpoint) == {0}
    numbers.add([(2,)])
    again = Batches()
    query = again.start(read(spark, numbers), checkpoint)
    with stopped_at_end(query):
        query.processAllAvailable()
    assert {n: [row.n for row in rows] for n, rows in again.rows.items()} == {1: [2]}


def test_an_error_after_a_stop_inside_the_function_is_an_error(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    numbers.add([(1,)])
    batches = Batches()

    def stop_and_fail(df: DataFrame, batch_id: int) -> None:
        batches.query.stop()
        raise ValueError("the write failed after stop()")

    batches.on_batch = stop_and_fail
    query = batches.query = batches.start(read(spark, numbers), tmp_path / "checkpoint")
    with pytest.raises(QueryFailedError, match="the write failed after stop"):
        query.awaitTermination(60)
    assert committed(tmp_path / "checkpoint") == set()


def test_a_graceful_stop_of_one_batch_runs_no_second_one(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    numbers.add([(1,)])
    began, go_on = threading.Event(), threading.Event()

    def wait(df: DataFrame, batch_id: int) -> None:
        began.set()
        assert go_on.wait(DEADLINE_S)

    batches = Batches(on_batch=wait)
    query = batches.start(read(spark, numbers), tmp_path / "checkpoint", trigger={"once": True})
    assert began.wait(DEADLINE_S)
    numbers.add([(2,)])
    stopping = threading.Thread(target=lambda: query.stop(graceful=True))
    stopping.start()
    wait_for(lambda: query.status["message"].startswith("Stopping"), "the stop to begin")
    go_on.set()
    stopping.join(DEADLINE_S)
    assert batches.runs == [0]


# -- running again ---------------------------------------------------------------------------------


class Recorder:
    """A writer that notes which rows came under which ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.key = f"{epoch_id}-{partition_id}"
        self.rows: list[int] = []
        return True

    def process(self, row: Any) -> None:
        self.rows.append(row.n)

    def close(self, error: Any) -> None:
        task = TaskContext.get()
        assert task is not None
        file = Path(self.folder) / f"{self.key}-{task.taskAttemptId()}"
        file.write_text(json.dumps(sorted(self.rows)))

    def seen(self) -> dict[str, list[list[int]]]:
        """All that came under each epoch and partition, attempt by attempt."""
        found: dict[str, list[list[int]]] = {}
        for path in sorted(Path(self.folder).iterdir()):
            key = path.name.rpartition("-")[0]
            found.setdefault(key, []).append(json.loads(path.read_text()))
        return found


def rows_of(df: Any) -> Any:
    return df


def distinct_rows_of(df: Any) -> Any:
    return df.dropDuplicates(["n"])


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("query_of", [rows_of, distinct_rows_of])
def test_partition_and_epoch_mean_the_same_rows_after_a_crash(
    spark: SparkSession,
    numbers: MemoryStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    query_of: Callable[[Any], Any],
    large: bool,
) -> None:
    """Whatever the restarted program would choose for a new batch, and wherever it runs."""
    checkpoint = tmp_path / "checkpoint"
    (tmp_path / "seen").mkdir()
    recorder = Recorder(tmp_path / "seen")

    def start() -> Any:
        writer = query_of(read(spark, numbers)).writeStream.foreach(recorder)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    numbers.add([(n,) for n in range(20)])
    query = start()
    query.processAllAvailable()

    size = 50_000 if large else 20
    crashed = threading.Event()

    def crash(name: str) -> None:
        if name == "batch.after-run" and not crashed.is_set():
            crashed.set()
            raise RuntimeError("the driver dies here")

    with monkeypatch.context() as patched:
        patched.setattr(runner, "fault_point", crash)
        numbers.add([(n,) for n in range(100, 100 + size)])
        with pytest.raises(QueryFailedError, match="the driver dies here"):
            query.awaitTermination(60)
    assert committed(checkpoint) == {0}

    with monkeypatch.context() as patched:
        cores = spark.sparkContext.defaultParallelism
        patched.setattr(type(spark.sparkContext), "defaultParallelism", cores + 3)
        query = start()
        with stopped_at_end(query):
            query.processAllAvailable()
    wait_for(lambda: committed(checkpoint) == {0, 1}, "the commit of the batch")
    second = {key: rows for key, rows in recorder.seen().items() if key.startswith("1-")}
    assert sorted(n for rows in second.values() for n in rows[0]) == list(range(100, 100 + size))
    for key, attempts in second.items():
        assert len(attempts) == 2, f"{key} came twice: before the crash and after it"
        assert attempts[0] == attempts[1]
