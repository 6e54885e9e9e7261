"""A query from a Python data source into another one: kill it wherever it writes.

    python -m tests.sinks.python_writer_program <folder> <batches>

A batch has 25 numbers, and is a file of ``out``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tidemill
from tests.sinks.python_writers import Folder
from tests.sources.python_sources import Counter

ROWS_PER_BATCH = 25


def main(folder: Path, batches: int) -> None:
    spark = tidemill.session("python writer", master="local[2]", quiet=True)
    for cls in (Counter, Folder):
        spark.dataSource.register(cls)
    numbers = spark.readStream.format("test_counter").load(upTo=batches * ROWS_PER_BATCH)
    query = (
        numbers.writeStream.format("test_folder")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "out"))
    )
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
