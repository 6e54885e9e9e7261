"""A query with two file sinks, from one computation: kill it between their commits.

    python -m tests.faults.two_sinks_program <folder> <batches>

Reads ``incoming``, a file a batch, drops duplicate keys, and writes ``first`` and ``second``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F

import tidemill
from tidemill.sinks.files.file_sink import FileSink

SCHEMA = "k long, v string"


def main(folder_name: str, batches: int) -> None:
    folder = Path(folder_name)
    spark = tidemill.session("two sinks", master="local[2]", quiet=True)
    incoming = folder / "incoming"
    incoming.mkdir(exist_ok=True)
    for batch in range(batches):
        lines = [f'{{"k": {batch * 2 + n}, "v": "row {batch}-{n}"}}' for n in range(4)]
        (folder / "partial").write_text("\n".join(lines))
        (folder / "partial").rename(incoming / f"{batch:03d}.json")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(incoming))
    computed = stream.dropDuplicates(["k"]).withColumn("random", F.rand())
    query = spark.streams.start_query(  # type: ignore[attr-defined]
        computed,
        sinks=[FileSink("json", str(folder / name)) for name in ("first", "second")],
        options={"checkpointLocation": str(folder / "checkpoint")},
    )
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
