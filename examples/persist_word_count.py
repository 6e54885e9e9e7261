"""Write the word counts of each batch to a database table, with one connection per partition."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from datetime import datetime
from pathlib import Path

from pyspark import RDD

import tidemill
from tidemill.streaming import StreamingContext

LINES = [["to be or not to be"], ["that is the question"], ["to sleep"]]


def main(database: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE word_count (at TEXT, word TEXT, count INTEGER)")

    def save(at: datetime, rdd: RDD[tuple[str, int]]) -> None:
        def save_partition(counts: Iterable[tuple[str, int]]) -> None:
            # Open the connection inside the task: it cannot travel from the driver.
            with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
                rows = [(at.isoformat(), word, count) for word, count in counts]
                connection.executemany("INSERT INTO word_count VALUES (?, ?, ?)", rows)

        rdd.foreachPartition(save_partition)

    ssc = StreamingContext(
        tidemill.session("persist", master="local[2]", quiet=True).sparkContext, 1
    )
    ssc.queueStream(LINES).flatMap(str.split).countByValue().foreachRDD(save)
    ssc.start()
    ssc.awaitTermination(len(LINES) + 0.5)
    ssc.stop(stopGraceFully=True)
    with closing(sqlite3.connect(database)) as connection:
        totals = "SELECT word, sum(count) FROM word_count GROUP BY word ORDER BY 2 DESC, 1 LIMIT 3"
        for word, count in connection.execute(totals):
            print(word, count)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "words.db"))
