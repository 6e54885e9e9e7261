"""Count the words that a TCP server sends, as a query. Start ``nc -lk 9999`` in another terminal, then::

python examples/structured_network_word_count.py localhost 9999
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as sql

import tidemill


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words that a TCP server sends.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    arguments = parser.parse_args()

    spark = tidemill.session("network words", master="local[2]", quiet=True)
    lines = (
        spark.readStream.format("socket")
        .option("host", arguments.host)
        .option("port", arguments.port)
        .load()
    )
    words = lines.select(sql.explode(sql.split("value", r"\s+")).alias("word")).where("word != ''")
    counts = words.groupBy("word").count().orderBy(sql.desc("count"), "word")
    query = counts.writeStream.outputMode("complete").format("console").start()
    query.awaitTermination(arguments.seconds)
    query.stop()


if __name__ == "__main__":
    main()
