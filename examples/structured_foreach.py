"""Write rows to a database exactly once, with a custom writer.

Every task has a copy of the writer. ``open`` gets the numbers of the partition and the batch: a batch that
runs again after a crash has the same numbers, so the writer skips partitions that are already in the
database.

The program starts the same query three times, as if it had been killed in between; each run has one batch.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import tidemill


class ToDatabase:
    def __init__(self, path: str) -> None:
        self.path = path  # this runs on the driver: open() makes the connection

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self.connection.execute("BEGIN IMMEDIATE")
        written = self.connection.execute(
            "INSERT OR IGNORE INTO written VALUES (?, ?)", (epoch_id, partition_id)
        ).rowcount
        return written == 1  # False: an earlier attempt has written this partition

    def process(self, row: Any) -> None:
        self.connection.execute("INSERT INTO numbers VALUES (?)", (row.value,))

    def close(self, error: Exception | None) -> None:
        self.connection.execute("COMMIT" if error is None else "ROLLBACK")
        self.connection.close()


def main(directory: Path) -> None:
    path = str(directory / "numbers.sqlite")
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE numbers (value INTEGER)")
    database.execute(
        "CREATE TABLE written (epoch INTEGER, partition INTEGER, UNIQUE (epoch, partition))"
    )
    database.commit()

    spark = tidemill.session("foreach", master="local[2]", quiet=True)
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    for _ in range(3):
        query = (
            numbers.writeStream.foreach(ToDatabase(path))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    count, total = database.execute("SELECT count(*), sum(value) FROM numbers").fetchone()
    database.close()
    print(f"{count} rows with a sum of {total}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
