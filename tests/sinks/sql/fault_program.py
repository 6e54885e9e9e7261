"""A query into a table of a database: kill it at any step.

    python -m tests.sinks.sql.fault_program <folder> <batches> <options of the sink as JSON>

Reads ``incoming``, a file a batch, each with a hundred new numbers, and adds them to ``numbers``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tidemill

ROWS = 100


def main(folder_name: str, batches: int, options: dict[str, str]) -> None:
    folder = Path(folder_name)
    spark = tidemill.session("sql sink", master="local[2]", quiet=True)
    incoming = folder / "incoming"
    incoming.mkdir(exist_ok=True)
    for batch in range(batches):
        lines = [json.dumps({"n": batch * ROWS + n, "batch": batch}) for n in range(ROWS)]
        (folder / "partial").write_text("\n".join(lines))
        (folder / "partial").rename(incoming / f"{batch:03d}.json")
    numbers = (
        spark.readStream.schema("n long, batch long")
        .option("maxFilesPerTrigger", 1)
        .json(str(incoming))
        .repartition(2)
    )
    query = (
        numbers.writeStream.format("sql")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))
