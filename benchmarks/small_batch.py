"""The processing time of a small batch: a word count of 100 lines.

The engines take turns, so that a noisy neighbour hits both. The input is a queue of lists, and then a queue
of RDDs with two partitions, which Tidemill does not repartition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext

from benchmarks.peers import ENGINES, PYSPARK, TIDEMILL, Times, context, spark_for_one_run, verdict

BATCHES, WARM_UP, ROUNDS, INTERVAL_S = 25, 5, 3, 0.4
LINES = [" ".join(f"word{(i * 7 + j * 13) % 50}" for j in range(10)) for i in range(100)]


def batch_times_ms(engine: str, sc: SparkContext, queue: list[Any]) -> list[int]:
    times = Times()
    ssc = context(engine, sc, INTERVAL_S, times)
    counted: list[int] = []
    (
        ssc.queueStream(queue)
        .flatMap(lambda line: line.split(" "))
        .map(lambda word: (word, 1))
        .reduceByKey(lambda a, b: a + b)
        .foreachRDD(lambda rdd: counted.append(sum(n for _, n in rdd.collect())))
    )
    ssc.start()
    times.wait_for(lambda: len(times.by_batch) >= BATCHES)
    ssc.stop(stopSparkContext=False)
    assert counted[:BATCHES] == [1000] * BATCHES, f"{engine} counted wrong"
    return [times.by_batch[at] for at in sorted(times.by_batch)][WARM_UP:BATCHES]


def compare(title: str, entry: Callable[[SparkContext], Any]) -> float:
    print(title)
    results: dict[str, list[int]] = {engine: [] for engine in ENGINES}
    for _ in range(ROUNDS):
        for engine in ENGINES:
            with spark_for_one_run() as sc:
                results[engine] += batch_times_ms(engine, sc, [entry(sc)] * (BATCHES + 20))
    medians = {engine: statistics.median(values) for engine, values in results.items()}
    for engine, values in results.items():
        quartiles = statistics.quantiles(values, n=4)
        print(f"  {engine:<18} median {medians[engine]:6.0f} ms   quartiles {quartiles[0]:.0f} to "
              f"{quartiles[2]:.0f} ms   {len(values)} batches")  # fmt: skip
    return medians[TIDEMILL] / medians[PYSPARK]


def main() -> bool:
    ratio = compare("Word count of 100 lines from a queue of lists", lambda _: LINES)
    met = verdict("ratio of processing times", ratio, 0.45, at_most=True)
    ratio = compare(
        "The same from a queue of RDDs with two partitions", lambda sc: sc.parallelize(LINES, 2)
    )
    print(f"  ratio of processing times: {ratio:.2f} (for information)\n")
    return met
