"""Count the hottest words of the last ten seconds, every second.

The program generates its stream: each batch is a list of lines in which one word is in fashion.
Run it with ``make demo``; Ctrl-C stops it after the current batch.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from datetime import datetime

from pyspark import RDD

import tidemill
from tidemill.errors import SetupError
from tidemill.streaming import StreamingContext

WORDS = ("spark", "tide", "mill", "river", "stream", "batch", "wheel", "stone", "grain", "sluice")
BATCHES = 24 * 3600
LINES_PER_BATCH = 200


def lines_of_batch(number: int) -> Iterator[str]:
    """Generate the lines on the executors: the queue of the stream holds only the number of each batch."""
    generator = random.Random(number)
    in_fashion = WORDS[number // 5 % len(WORDS)]
    for _ in range(LINES_PER_BATCH):
        yield " ".join([in_fashion, *generator.choices(WORDS, k=4)])


def print_line(at: datetime, hottest: RDD[tuple[str, int]]) -> None:
    top = hottest.takeOrdered(5, key=lambda pair: (-pair[1], pair[0]))
    words = "   ".join(f"{word:<6} {count:>5}" for word, count in top)
    print(f"{at:%H:%M:%S}  {words}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="stop after this many seconds")
    seconds = parser.parse_args().seconds

    try:
        spark = tidemill.session("hot words", master="local[2]", quiet=True)
    except SetupError as error:
        print(f"tidemill: {error}", file=sys.stderr)
        return 1
    ssc = StreamingContext(spark.sparkContext, 1)
    numbers = ssc.queueStream([number] for number in range(BATCHES))
    words = numbers.flatMap(lines_of_batch).flatMap(str.split)
    words.countByValueAndWindow(10, 1).foreachRDD(print_line)

    print("Words of the last ten seconds, hottest first. Press Ctrl-C to stop.", flush=True)
    ssc.start()
    try:
        ssc.awaitTermination(seconds)
    except KeyboardInterrupt:
        print("\nStopping after the current batch.", flush=True)
    ssc.stop(stopGraceFully=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
