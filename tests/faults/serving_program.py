"""A query that runs until it is told to stop: one file a batch, at intervals, from files to files.

    tidemill run tests/faults/serving_program.py <folder> <interval>

It is the query ``windows`` of ``tests/faults/query_program.py``; see there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.query_program import SCHEMA, make_limits_small, new_session, start_windows


def main(folder_name: str, every: str) -> None:
    make_limits_small()
    folder = Path(folder_name)
    # A busy machine takes longer than the minute that a graceful stop has by default.
    spark = new_session(
        "local[2]",
        3,
        {
            "spark.streaming.gracefulStopTimeout": "240s",
            "spark.streaming.stopGracefullyOnShutdown": "true",
        },
    )
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    query = start_windows(stream.json(str(folder / "incoming")), folder, every)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
