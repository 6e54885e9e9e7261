"""Batches that touch 1,000 keys, with 10,000 keys in the state and with 5,000,000.

The same program runs in turns on two states, on a manual clock. It measures the time of a batch, from
logging its ranges to its commit, and the private memory of a Python worker. Both states are on disk; only
the keys of a batch are ever in memory.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from benchmarks.peers import spark_for_one_run, verdict
from tidemill.streaming import StateSpec, StreamingContext
from tidemill.tasks.worker import used_memory_mb
from tidemill.testing import BatchDriver, ManualClock

SIZES = (10_000, int(os.environ.get("TIDEMILL_BENCH_KEYS", 5_000_000)))
TOUCHED, ROUNDS, WARM_UP, BATCHES = 1_000, 4, 3, 25


class Stream:
    """A durable stream with ``keys`` keys of state that can be started and stopped many times."""

    def __init__(self, sc: SparkContext, folder: Path, keys: int) -> None:
        self._sc = sc
        self._folder = str(folder)
        self._keys = keys
        self.clock = ManualClock()

    def setup(self) -> StreamingContext:
        keys = self._keys
        chance = random.Random(7)
        batches = [
            [(f"key-{chance.randrange(keys):08d}", 1) for _ in range(TOUCHED)]
            for _ in range(2 + ROUNDS * (WARM_UP + BATCHES))
        ]

        def count(key: str, one: int, state: Any) -> None:
            state.update((state.getOption() or 0) + one)

        initial = self._sc.range(keys, numSlices=8).map(lambda n: (f"key-{n:08d}", 0))
        spec = StateSpec.function(count).numPartitions(2).initialState(initial)
        ssc = StreamingContext(self._sc, 1, clock=self.clock)
        ssc.queueStream(batches).mapWithState(spec).foreachRDD(lambda rdd: None)
        return ssc

    def run(self, batches: int) -> list[float]:
        """Run batches and return the milliseconds of each."""
        self.clock = ManualClock(self.clock.now_ms())
        ssc = StreamingContext.getOrCreate(self._folder, self.setup, clock=self.clock)
        ssc.start()
        driver = BatchDriver(ssc, self.clock)
        times = []
        for _ in range(batches):
            started = time.perf_counter()
            driver.run(1, timeout_s=600)
            times.append((time.perf_counter() - started) * 1000)
        ssc.stop(stopSparkContext=False)
        return times


def worker_memory_mb(sc: SparkContext) -> float:
    return max(sc.parallelize(range(8), 8).map(lambda _: used_memory_mb()).collect())


def main() -> bool:
    with spark_for_one_run() as sc, tempfile.TemporaryDirectory() as folder:
        print(f"Batches that touch {TOUCHED:,} keys, median of {ROUNDS} rounds of {BATCHES}")
        streams = {keys: Stream(sc, Path(folder) / str(keys), keys) for keys in SIZES}
        for keys, stream in streams.items():
            (first, *_) = stream.run(2)
            print(f"  {keys:>9,} keys: first batch, which loads the state: {first / 1000:.1f} s")
        times: dict[int, list[float]] = {keys: [] for keys in SIZES}
        memory: dict[int, float] = dict.fromkeys(SIZES, 0.0)
        for _ in range(ROUNDS):
            for keys, stream in streams.items():
                times[keys] += stream.run(WARM_UP + BATCHES)[WARM_UP:]
                memory[keys] = max(memory[keys], worker_memory_mb(sc))
        medians = {keys: statistics.median(times[keys]) for keys in SIZES}
        for keys in SIZES:
            print(f"  {keys:>9,} keys: {medians[keys]:.1f} ms, worker memory {memory[keys]:.0f} MB")
        small, large = SIZES
        flat = verdict("memory ratio of large to small", memory[large] / memory[small], 1.3, True)
        fast = verdict("time ratio of large to small", medians[large] / medians[small], 1.3, True)
        return flat and fast
