"""A query from Kafka to Kafka, exactly once, that is killed: it ends when it has copied what was there.

python -m tests.sinks.kafka.copy_program <folder> <batches> <address> <from> <to> <tasks> [<master>]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import tidemill
from tidemill.common.fault_points import fault_point

ROWS = 40
"""So many rows has a batch."""
PATIENCE_MS = 300_000


def passing(value):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
    fault_point("program.in-task")
    return value


def main(
    folder: str,
    batches: str,
    address: str,
    source: str,
    target: str,
    tasks: str,
    master: str = "local[2,3]",
    *,
    more: dict[str, Any] | None = None,
) -> None:
    assert batches
    spark = tidemill.session(
        "kafka faults",
        master=master,
        config={**(more or {}), "spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2},
        quiet=True,
    )
    servers = {"kafka.bootstrap.servers": address}
    rows = (
        spark.readStream.format("kafka")
        .options(**servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS)
        .option("kafkaConsumer.pollTimeoutMs", PATIENCE_MS)
        .load()
    )
    value = F.udf(passing, "string")(F.col("value").cast("string"))
    query = (
        rows.select(value.alias("value"))
        .writeStream.format("kafka")
        .options(**servers)
        .option("topic", target)
        .option("exactlyOnce", True)
        .option("exactlyOnceTasks", tasks)
        .option("kafka.delivery.timeout.ms", PATIENCE_MS)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
