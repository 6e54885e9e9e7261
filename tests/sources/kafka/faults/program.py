"""A program that is killed: from a topic, through state, into files.

    python -m tests.sources.kafka.faults.program <folder> <limit>

It reads the topic of the environment, at most ``limit`` records a batch, leaves out what it has seen before,
and appends the rest to parquet files::

    rows/                   the sink
    checkpoint/             the query
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import functions as F

import tidemill
from tidemill.common.fault_points import fault_point

ADDRESS, TOPIC = "TIDEMILL_TEST_KAFKA", "TIDEMILL_TEST_TOPIC"
SETTINGS = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": False,
    "spark.sql.streaming.minBatchesToRetain": 2,
}


def passing(number):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
    fault_point("program.in-task")
    return number


def main(folder: str, limit: str) -> None:
    spark = tidemill.session("kafka faults", master="local[2,3]", config=dict(SETTINGS), quiet=True)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ[ADDRESS])
        .option("subscribe", os.environ[TOPIC])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", limit)
        # A task fetches a few records at a time, so that there is something to interrupt.
        .option("kafka.queued.min.messages", 1)
        .option("kafka.max.partition.fetch.bytes", 2000)
        .load()
    )
    number = F.udf(passing, "long")(F.col("value").cast("string").cast("long"))
    query = (
        records.select(number.alias("number"))
        .dropDuplicates(["number"])
        .writeStream.trigger(availableNow=True)
        .format("parquet")
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .start(str(Path(folder) / "rows"))
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
