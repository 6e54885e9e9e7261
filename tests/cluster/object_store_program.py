"""The stream of numbers (:mod:`tests.cluster.program`), and beside it a query with state that counts lines.

    python -m tests.cluster.object_store_program MASTER FOLDER HOST PORT

Both keep their checkpoints where the environment says. The query reads ``FOLDER/incoming``, and
``FOLDER/counts.json`` has what it has counted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidemill
from tests.cluster.program import CHECKPOINT, checkpoint_of, make
from tidemill.streaming import StreamingContext

QUERY_CHECKPOINT = f"{CHECKPOINT}_OF_QUERY"


def main(master: str, folder: str, host: str, port: str) -> None:
    path = Path(folder)
    ssc = StreamingContext.getOrCreate(
        checkpoint_of(path), lambda: make(master, path, host, int(port), 1)
    )
    spark = tidemill.attach(SparkSession(ssc.sparkContext))
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    (path / "incoming").mkdir(exist_ok=True)

    def write(df: Any, batch_id: int) -> None:
        counts = {row["value"]: row["count"] for row in df.collect()}
        (path / "counts.new").write_text(json.dumps(counts))
        (path / "counts.new").rename(path / "counts.json")

    lines = spark.readStream.text(str(path / "incoming"))
    writer = lines.groupBy("value").count().writeStream.outputMode("complete").foreachBatch(write)
    writer.option("checkpointLocation", os.environ[QUERY_CHECKPOINT]).start()
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
