"""A stream that survives its driver: started again with the same command, it continues where it stopped.

    python examples/streaming_checkpoint.py incoming checkpoint

counts the words of files that you move into ``incoming``. Kill it in any way you like, move more files
in, and start it again. ``tidemill run --supervise examples/streaming_checkpoint.py incoming checkpoint``
restarts it automatically.
"""

from __future__ import annotations

import sys
from datetime import datetime

from pyspark import RDD

import tidemill
from tidemill.streaming import StreamingContext


def main(incoming: str, checkpoint: str, seconds: float | None) -> None:
    def setup() -> StreamingContext:
        """Build the stream. Called once in its life; after that, the checkpoint has the program."""
        spark = tidemill.session("survivor", master="local[2]", quiet=True)
        ssc = StreamingContext(spark.sparkContext, 1)
        words = ssc.textFileStream(incoming).flatMap(str.split).map(lambda word: (word, 1))
        totals = words.updateStateByKey(lambda new, total: sum(new) + (total or 0))
        totals.setName("totals").foreachRDD(show)
        return ssc

    ssc = StreamingContext.getOrCreate(checkpoint, setup)
    ssc.start()
    ssc.awaitTermination(seconds)
    ssc.stop(stopGraceFully=True)


def show(time: datetime, rdd: RDD[tuple[str, int]]) -> None:
    print(
        f"{time:%H:%M:%S}",
        *(f"{word}={total}" for word, total in sorted(rdd.collect())),
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} <directory of files> <checkpoint directory> [seconds]")
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else None)
