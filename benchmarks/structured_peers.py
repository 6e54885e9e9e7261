"""Structured queries on both engines, in one process and one JVM, so that they can take turns.

Tidemill runs the queries of an attached session. Structured Streaming runs those of ``newSession()``, once
with each of its state stores; the better result counts. Both have two cores, two shuffle partitions, Unix
domain sockets, and checkpoints on the same local disk. The queries have no Python code of their own, so
Structured Streaming runs entirely inside the JVM.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tidemill

TIDEMILL = "tidemill"
HDFS_BACKED = "spark, HDFS-backed"
ROCKS_DB = "spark, RocksDB"
STATE_STORE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
SPARK_SETTINGS: Mapping[str, Mapping[str, str]] = {
    HDFS_BACKED: {f"{STATE_STORE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"},
    ROCKS_DB: {
        f"{STATE_STORE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider",
        # Otherwise every batch would upload whole files of the store.
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
LOOK_S = 0.05
LONGEST_S = 300.0

Operation = Callable[[DataFrame], DataFrame]


@dataclass
class Peers:
    """A session for each engine, and a folder for their checkpoints."""

    sessions: dict[str, SparkSession]
    folder: Path
    _made: int = field(default=0)

    def names(self, stateful: bool) -> list[str]:
        """Return the engines to compare: without state, Spark's two state stores make no difference."""
        return [TIDEMILL, HDFS_BACKED, ROCKS_DB] if stateful else [TIDEMILL, HDFS_BACKED]

    def new_folder(self) -> Path:
        self._made += 1
        return self.folder / str(self._made)


@contextmanager
def peers() -> Iterator[Peers]:
    spark = tidemill.session(
        "benchmarks",
        master="local[2]",
        config={
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.streaming.numRecentProgressUpdates": 1000,
            "spark.driver.memory": "2g",
        },
        quiet=True,
    )
    sessions = {TIDEMILL: spark}
    for name, settings in SPARK_SETTINGS.items():
        sessions[name] = spark.newSession()
        for key, value in settings.items():
            sessions[name].conf.set(key, value)
    folder = Path(tempfile.mkdtemp(prefix="tidemill-benchmark-"))
    try:
        yield Peers(sessions, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def rate_rows(session: SparkSession, rows_per_batch: int) -> DataFrame:
    """Return a stream ``timestamp, value`` with ``rows_per_batch`` rows per batch; ``value`` counts up."""
    reader = session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    return reader.load()


def start(df: DataFrame, checkpoint: Path, mode: str = "append") -> Any:
    """Start a query that computes one batch after the other and keeps nothing."""
    writer = df.writeStream.format("noop").outputMode(mode)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def last_batch(query: Any) -> int:
    """Return the number of the last completed batch, or -1 if there is none."""
    failure = query.exception()
    if failure is not None:
        raise failure
    progress = query.lastProgress
    return -1 if progress is None else int(progress.batchId)


def wait_for_batch(query: Any, batch_id: int) -> None:
    wait_until(lambda: last_batch(query) >= batch_id, f"no batch {batch_id}")


def wait_until(condition: Callable[[], bool], failure: str, look_s: float = LOOK_S) -> None:
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > LONGEST_S:
            raise TimeoutError(f"{failure} within {LONGEST_S:.0f} s")
        time.sleep(look_s)


@dataclass
class Batches:
    """Times and rows from the progress reports of a query, without its first batches."""

    trigger_ms: list[float]
    apart_ms: list[float]
    rows: list[int]

    @classmethod
    def from_progress(cls, progress: Sequence[Any], first_batch: int, end: int) -> Batches:
        reports = [each for each in progress if first_batch <= each.batchId < end]
        started = [
            datetime.fromisoformat(each.timestamp.replace("Z", "+00:00")) for each in reports
        ]
        return cls(
            [float(each.durationMs["triggerExecution"]) for each in reports],
            [(b - a).total_seconds() * 1000 for a, b in pairwise(started)],
            [each.numInputRows for each in reports],
        )


def run_batches(df: DataFrame, checkpoint: Path, mode: str, warm_up: int, batches: int) -> Batches:
    """Run a new query and measure its batches after the warm-up."""
    query = start(df, checkpoint, mode)
    try:
        wait_for_batch(query, warm_up + batches)
        return Batches.from_progress(query.recentProgress, warm_up, warm_up + batches)
    finally:
        query.stop()


def ratio_of(values: Mapping[str, float], better: Callable[[Iterable[float]], float]) -> float:
    """Return the ratio of Tidemill to Spark's better state store: ``min`` of times, ``max`` of rates."""
    others = [value for name, value in values.items() if name != TIDEMILL]
    return values[TIDEMILL] / better(others)


def print_values(found: Mapping[str, Sequence[float]], unit: str) -> dict[str, float]:
    """Print a line for each engine and return the medians."""
    digits = 2 if unit == "s" else 1 if unit == "ms" else 0
    for name, values in found.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"  {name:<24} median {middle:10,.{digits}f} {unit}   quartiles {low:,.{digits}f} to "
              f"{high:,.{digits}f}   minimum {min(values):,.{digits}f}   {len(values)} values",
              flush=True)  # fmt: skip
    return {name: statistics.median(values) for name, values in found.items()}
