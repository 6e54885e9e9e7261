"""10,000 idle batches on a manual clock: neither the driver's memory nor the time per batch may grow.

The program is a windowed word count over an empty directory, so that every part of the engine has
something to keep or forget.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time

from pyspark import SparkContext

from benchmarks.peers import spark_for_one_run
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock

BATCHES, STEP = 10_000, 1_000


def resident_mb() -> float:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> bool:
    with spark_for_one_run() as sc:
        return measure(sc)


def measure(sc: SparkContext) -> bool:
    clock = ManualClock()
    ssc = StreamingContext(sc, 1, clock=clock)
    seen = [0]

    def look(rdd: object) -> None:
        seen[0] += 1

    with tempfile.TemporaryDirectory() as directory:
        pairs = ssc.textFileStream(directory).flatMap(str.split).map(lambda word: (word, 1))
        pairs.reduceByKey(lambda a, b: a + b).foreachRDD(look)
        pairs.reduceByKeyAndWindow(lambda a, b: a + b, lambda a, b: a - b, 30).foreachRDD(look)
        ssc.start()
        driver = BatchDriver(ssc, clock)
        print(f"{BATCHES:,} idle batches")
        print("  batches   ms per batch   driver memory")
        rows = []
        for done in range(STEP, BATCHES + 1, STEP):
            started = time.perf_counter()
            driver.run(STEP, timeout_s=600)
            per_batch_ms = (time.perf_counter() - started) * 1000 / STEP
            rows.append((per_batch_ms, resident_mb()))
            print(f"  {done:>7,}   {per_batch_ms:>12.2f}   {rows[-1][1]:>9.1f} MB", flush=True)
        ssc.stop(stopSparkContext=False)
    assert seen[0] == 2 * BATCHES
    # The first thousand warm up; the last thousand must not cost more than the second.
    (second_ms, second_mb), (last_ms, last_mb) = rows[1], rows[-1]
    print(f"  from 2,000 to 10,000: time per batch x{last_ms / second_ms:.2f}, "
          f"memory {last_mb - second_mb:+.1f} MB")  # fmt: skip
    flat = last_ms <= 1.5 * second_ms and last_mb - second_mb <= 8
    print(f"  no growth: {'met' if flat else 'MISSED'}\n")
    return flat
