"""The time from ``start()`` to the first committed batch of a query with 1,000,000 keys of state.

Each engine builds its state once: a batch of all keys and a few of 1,000. Each round starts the query on a
copy of that checkpoint, with batches of 1,000 rows, and waits for the file that commits the first one.
Tidemill could continue with the copy of the state on the executor's own disk, so the benchmark deletes that
copy first, as if the query moved to another machine; for information, it also measures with the copy.
Structured Streaming loads its state for every run of a query.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.peers import verdict
from benchmarks.structured_peers import (
    TIDEMILL,
    Peers,
    peers,
    print_values,
    rate_rows,
    ratio_of,
    start,
    wait_for_batch,
    wait_until,
)

KEYS, ROWS, BATCHES_BEFORE, ROUNDS = 1_000_000, 1_000, 5, 3
WITH_LOCAL_COPY = "tidemill, same machine"


def aggregation(session: SparkSession, rows_per_batch: int) -> DataFrame:
    key = (sql.col("value") % KEYS).alias("k")
    return rate_rows(session, rows_per_batch).groupBy(key).agg(sql.count("*"), sql.sum("value"))


def make_state(session: SparkSession, checkpoint: Path) -> None:
    writer = aggregation(session, KEYS).writeStream.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    query = start(aggregation(session, ROWS), checkpoint, "update")
    try:
        wait_for_batch(query, BATCHES_BEFORE)
    finally:
        query.stop()


def _committed(checkpoint: Path) -> int:
    """Return the last committed batch, or -1 if there is none."""
    folder = checkpoint / "commits"
    names = os.listdir(folder) if folder.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def restart_s(session: SparkSession, checkpoint: Path) -> float:
    before = _committed(checkpoint)
    began = time.perf_counter()
    query = start(aggregation(session, ROWS), checkpoint, "update")
    try:
        wait_until(lambda: _committed(checkpoint) > before, "no committed batch", look_s=0.005)
        return time.perf_counter() - began
    finally:
        query.stop()


def forget_local_state(session: SparkSession) -> None:
    """Delete the copies of the state on the executors' own disks."""
    sc = session.sparkContext
    [folder] = sc.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()
    for root in folder.split(","):
        shutil.rmtree(Path(root) / "tidemill-state", ignore_errors=True)


def measure(here: Peers) -> dict[str, list[float]]:
    names = here.names(stateful=True)
    made = {name: here.new_folder() for name in names}
    for name in names:
        make_state(here.sessions[name], made[name])
    times: dict[str, list[float]] = {name: [] for name in [*names, WITH_LOCAL_COPY]}
    for _ in range(ROUNDS):
        for name in times:
            peer = TIDEMILL if name == WITH_LOCAL_COPY else name
            copy = here.new_folder()
            shutil.copytree(made[peer], copy)
            if name == TIDEMILL:
                forget_local_state(here.sessions[TIDEMILL])
            times[name].append(restart_s(here.sessions[peer], copy))
    return times


def main() -> bool:
    print(f"Restart with {KEYS:,} keys of state, until the first committed batch", flush=True)
    with peers() as here:
        medians = print_values(measure(here), "s")
    same_machine = medians.pop(WITH_LOCAL_COPY)
    print(f"  on the same machine: {same_machine:.2f} s (for information)")
    return verdict("ratio of times", ratio_of(medians, min), 1.0, at_most=True)
