"""Count words over the whole life of a stream: every batch updates a count for each word."""

from __future__ import annotations

import sys
import tempfile

import tidemill
from tidemill.state.reader import read_state
from tidemill.streaming import StreamingContext

LINES = [["to be or not to be"], ["that is the question"], ["to sleep"]]


def count(new: list[int], total: int | None) -> int:
    return sum(new) + (total or 0)


def main(checkpoint: str) -> None:
    spark = tidemill.session("update-state", master="local[2]", quiet=True)
    ssc = StreamingContext(spark.sparkContext, 1)
    # The stream keeps its state here: with state, a checkpoint directory is required.
    ssc.checkpoint(checkpoint)
    words = ssc.queueStream(LINES).flatMap(str.split).map(lambda word: (word, 1))
    words.updateStateByKey(count).setName("totals").foreachRDD(lambda rdd: None)
    ssc.start()
    ssc.awaitTermination(len(LINES) + 0.5)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)
    # Any program can read the state, even when the stream does not run.
    totals = read_state(checkpoint, "totals").values
    for word, total in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))[:3]:
        print(word, total)
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{directory}/checkpoint")
