"""A program with two structured queries that is killed: files in, files out, and state on the way.

    python -m tests.faults.query_program <folder> <steps> [<master>]

In a step a file is added to the input, always the same one, and both queries work on it until they find
nothing more to do. So what they write depends on nothing but the number of steps, however often the
program was killed:

- ``windows`` drops duplicates, counts by window and kind behind a watermark, and appends to parquet files. It
  has a task for each state partition;
- ``counts`` counts and sums by kind in update mode, for a function that writes a file for each batch. One
  task works on all of its state partitions.

::

    incoming/step-001.json
    windows/                        the sink
    counts/batch-000.json           what the function was given
    state/windows-003.json          the state after a step
    checkpoints/windows, checkpoints/counts
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidemill
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.storage import open_storage
from tidemill.common import processes
from tidemill.common.fault_points import fault_point
from tidemill.sql.execution import query_pipeline
from tidemill.state import operators
from tidemill.state.local_store import scratch_store
from tidemill.state.partition_files import PartitionFiles

KINDS = ["tide", "mill", "sluice", "gate"]
SCHEMA = "id long, at timestamp, kind string, amount long"
# Small, so that a short run compacts and purges.
SETTINGS = {
    "spark.sql.streaming.fileSink.log.compactInterval": 3,
    "spark.sql.streaming.fileSink.log.cleanupDelay": 0,
    "spark.sql.streaming.fileSource.log.compactInterval": 3,
    "spark.sql.streaming.fileSource.log.cleanupDelay": 0,
    "spark.sql.streaming.minBatchesToRetain": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": False,
}
FIRST_FILE_S = 1_772_366_400
ELSEWHERE = "TIDEMILL_TEST_ELSEWHERE"
"""Set in a program that is to believe that it runs on another machine."""


def rows_of(step: int) -> list[dict[str, Any]]:
    """Return twenty seconds of events, with duplicates from the step before and one late event."""
    rows = []
    for k in range(12):
        second = step * 20 + (k * 7) % 20
        kind = KINDS[(step + k * k + k // 3) % len(KINDS)]
        rows.append({"id": step * 100 + k, "at": second, "kind": kind, "amount": k * step % 11})
    rows += [dict(row) for row in rows[:2]]
    if step > 1:
        rows += [{**rows[0], "id": (step - 1) * 100, "at": (step - 1) * 20, "kind": "tide"}]
        rows += [{"id": step * 100 + 50, "at": 5, "kind": "mill", "amount": 1}]
    for row in rows:
        row["at"] = f"2026-03-01T12:{row['at'] // 60:02d}:{row['at'] % 60:02d}Z"
    return rows


def add_input(incoming: Path, step: int) -> None:
    """Write the file of a step, unless an earlier run has written it."""
    target = incoming / f"step-{step:03d}.json"
    if not target.exists():
        # Files of one time would be read in the order of the listing, which is any.
        write(target, "".join(f"{json.dumps(row)}\n" for row in rows_of(step)), FIRST_FILE_S + step)


def write(target: Path, text: str, modified_s: int | None = None) -> None:
    """Write a file whole or not at all, and the same the second time: that makes the output exactly once."""
    staged = target.with_name(f".{target.name}.staged")
    staged.write_text(text)
    if modified_s is not None:
        os.utime(staged, (modified_s, modified_s))
    staged.rename(target)


def passing(amount):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
    fault_point("program.in-task")
    return amount


def windows(stream: DataFrame) -> DataFrame:
    amount = F.udf(passing, "long")("amount")
    return (
        stream.withColumn("amount", amount)
        .withWatermark("at", "10 seconds")
        .dropDuplicates(["id", "at"])
        .groupBy(F.window("at", "10 seconds"), "kind")
        .agg(F.count("*").alias("events"), F.sum("amount").alias("amount"))
        .select(F.col("window.start").alias("start"), "kind", "events", "amount")
    )


def start_windows(stream: DataFrame, folder: Path, every: str = "0 seconds") -> Any:
    return (
        windows(stream)
        .writeStream.queryName("windows")
        .trigger(processingTime=every)
        .format("parquet")
        .partitionBy("kind")
        .option("checkpointLocation", str(folder / "checkpoints" / "windows"))
        .start(str(folder / "windows"))
    )


def start_counts(stream: DataFrame, folder: Path) -> Any:
    def save(df: DataFrame, batch_id: int) -> None:
        fault_point("program.in-function")
        rows = sorted(json.dumps(row.asDict()) for row in df.collect())
        write(folder / "counts" / f"batch-{batch_id:03d}.json", "\n".join(rows))
        fault_point("program.after-function")

    counted = stream.groupBy("kind").agg(F.count("*").alias("events"), F.sum("amount").alias("sum"))
    return (
        counted.writeStream.queryName("counts")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoints" / "counts"))
        .foreachBatch(save)
        .start()
    )


def committed_state(checkpoint: Path) -> dict[str, Any]:
    """Return all keys and values of all operators after the last committed batch, and its id."""
    storage = open_storage(str(checkpoint))
    logged = BatchLog(storage).load()
    if logged.last_committed is None:
        return {"batch": -1}
    result: dict[str, Any] = {"batch": logged.last_committed}
    for operator, versions in logged.commits[logged.last_committed].state.items():
        pairs = []
        for partition, version in enumerate(versions):
            with scratch_store(str(checkpoint.parent / ".scratch"), timed=False) as store:
                store.catch_up(PartitionFiles(storage, operator, partition), version)
                with store.reading() as reader:
                    pairs += [(r.key.hex(), (r.value or b"").hex()) for r in reader.scan()]
        result[operator] = sorted(pairs)
    return result


def new_session(master: str, partitions: int, more: dict[str, Any] | None = None) -> SparkSession:
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": partitions, **(more or {})}
    return tidemill.session("query faults", master=master, config=settings, quiet=True)


def make_limits_small() -> None:
    operators.SNAPSHOT_EVERY = 2
    query_pipeline.MOST_PARTITIONS_IN_ONE_TASK = 2
    if os.environ.get(ELSEWHERE):
        processes._machine = lambda: "elsewhere"  # type: ignore[attr-defined]


def main(
    folder_name: str,
    last_step: str,
    master: str = "local[2,3]",
    *,
    more: dict[str, Any] | None = None,
) -> None:
    make_limits_small()
    steps = int(last_step)
    folder = Path(folder_name)
    for name in ("incoming", "counts", "state", "checkpoints"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    spark = new_session(master, 3, more)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    incoming = folder / "incoming"
    in_windows = start_windows(stream.json(str(incoming)), folder)
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    queries = [in_windows, start_counts(stream.json(str(incoming)), folder)]
    step = len(list(incoming.glob("step-*")))
    while True:
        for query in queries:
            query.processAllAvailable()
            assert query._execution._resources.pipeline.state.drain(300)
            state = committed_state(folder / "checkpoints" / query.name)
            write(folder / "state" / f"{query.name}-{step:03d}.json", json.dumps(state))
        if step == steps:
            break
        step += 1
        add_input(incoming, step)
    for query in queries:
        query.stop(graceful=True)
        assert query.exception() is None


if __name__ == "__main__":
    main(*sys.argv[1:])
