"""Count the words that a TCP server sends, every second. Start ``nc -lk 9999`` in another terminal, then::

python examples/network_word_count.py localhost 9999
"""

from __future__ import annotations

import argparse

import tidemill
from tidemill.streaming import StreamingContext


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words that a TCP server sends.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    arguments = parser.parse_args()

    # One core for the receiver, one for the batches.
    spark = tidemill.session("network words", master="local[2]", quiet=True)
    ssc = StreamingContext(spark.sparkContext, 1)
    lines = ssc.socketTextStream(arguments.host, arguments.port)
    lines.flatMap(str.split).countByValue().pprint()
    ssc.start()
    ssc.awaitTermination(arguments.seconds)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()
