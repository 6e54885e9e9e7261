"""Word-count capacity in lines per second, 10 words per line, from large files and large lists.

Words follow Zipf's law, as in natural text. A batch is two files, or one list, with a million lines in
total; the engines take turns and get the same data.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import ENGINES, PYSPARK, TIDEMILL, Times, context, spark_for_one_run, verdict

LINES, BATCHES, ROUNDS, VOCABULARY, INTERVAL_S = 1_000_000, 2, 2, 5_000, 1.0


def make_lines() -> list[str]:
    generator = random.Random(1)
    words = [f"word{n}" for n in range(VOCABULARY)]
    weights = [1 / (n + 1) for n in range(VOCABULARY)]
    stream = iter(generator.choices(words, weights, k=10 * LINES))
    return [" ".join(line) for line in zip(*[stream] * 10, strict=True)]


def word_count(lines: Any, counted: list[int]) -> None:
    (
        lines.flatMap(lambda line: line.split(" "))
        .map(lambda word: (word, 1))
        .reduceByKey(lambda a, b: a + b)
        .foreachRDD(lambda rdd: counted.append(sum(n for _, n in rdd.collect())))
    )


def from_directory(engine: str, sc: Any, lines: list[str], scratch: Path) -> float:
    """Return the lines per second of a batch that finds two new files."""
    incoming, staged = scratch / "incoming", scratch / "staged"
    for directory in (incoming, staged):
        directory.mkdir(exist_ok=True)
        for old in directory.iterdir():
            old.unlink()
    for number in (0, 1):
        (staged / f"part-{number}").write_text("\n".join(lines[number::2]) + "\n")
    times = Times()
    counted: list[int] = []
    ssc = context(engine, sc, INTERVAL_S, times)
    word_count(ssc.textFileStream(incoming.as_uri()), counted)
    ssc.start()
    times.wait_for(lambda: len(times.by_batch) >= 1)
    for part in sorted(staged.iterdir()):
        os.utime(part)
        part.rename(incoming / part.name)
    times.wait_for(lambda: sum(counted) == 10 * len(lines))
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    # Both files are in one batch, or in two consecutive ones.
    busy = [at for at, count in zip(sorted(times.by_batch), counted, strict=False) if count]
    return len(lines) / sum(times.by_batch[at] for at in busy) * 1000


def from_queue(engine: str, sc: Any, lines: list[str], scratch: Path) -> float:
    times = Times()
    counted: list[int] = []
    ssc = context(engine, sc, INTERVAL_S, times)
    word_count(ssc.queueStream([lines]), counted)
    ssc.start()
    times.wait_for(lambda: len(times.by_batch) >= 1)
    ssc.stop(stopSparkContext=False)
    assert counted[0] == 10 * len(lines), f"{engine} counted wrong"
    return len(lines) / times.by_batch[min(times.by_batch)] * 1000


def main() -> bool:
    lines = make_lines()
    met = True
    with tempfile.TemporaryDirectory() as scratch:
        for title, run in (("directory", from_directory), ("queue of lists", from_queue)):
            print(f"Word-count capacity from a {title}, {LINES:,} lines per batch")
            rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            for _ in range(ROUNDS):
                for engine in ENGINES:
                    with spark_for_one_run() as sc:
                        run(engine, sc, lines, Path(scratch))  # warm up
                        rates[engine] += [
                            run(engine, sc, lines, Path(scratch)) for _ in range(BATCHES)
                        ]
            for engine, values in rates.items():
                print(f"  {engine:<18} median {statistics.median(values):>9,.0f} lines/s   "
                      f"best {max(values):>9,.0f}   {len(values)} batches")  # fmt: skip
            ratio = statistics.median(rates[TIDEMILL]) / statistics.median(rates[PYSPARK])
            if run is from_directory:
                met = verdict("ratio of rates", ratio, 2.0, at_most=False)
            else:
                print(f"  ratio of rates: {ratio:.2f} (for information)\n")
    return met
