"""A stream of numbers from Kafka that is killed: into state, and into a file for each batch.

    python -m tests.kafka.faults.program <folder> <total> <direct or receivers> <address> <topic> [<master>]

It ends when its files have ``total`` numbers.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tidemill
from tests.faults.program import write_output
from tests.waiting import wait_for
from tidemill.batches import durable
from tidemill.common.fault_points import fault_point
from tidemill.state import operators
from tidemill.streaming import StreamingContext
from tidemill.streaming.kafka import KafkaUtils
from tidemill.testing import BatchDriver, ManualClock


def written(folder: str) -> list[int]:
    """Return the numbers in the files of all batches."""
    out = os.path.join(folder, "out")
    names = [name for name in os.listdir(out) if name.startswith("batch-") and name[-5:] == ".json"]
    found: list[int] = []
    for name in names:
        with open(os.path.join(out, name)) as file:
            found += json.load(file)
    return found


def in_a_job(number: int) -> tuple[int, int]:
    fault_point("program.in-job")
    return number, 1


def build(spark_context: Any, clock: Any, folder: str, kind: str, address: str, topic: str) -> Any:
    given = {
        "bootstrap.servers": address,
        "auto.offset.reset": "smallest",
        "group.id": f"g-{topic}",
    }
    if kind == "direct":
        ssc = StreamingContext(spark_context, 1, clock=clock)
        numbers = KafkaUtils.createDirectStream(
            ssc, [topic], given, messageHandler=lambda m: int(m.message), commitOffsets=True
        )
    else:
        # Long enough for a busy machine to keep up.
        ssc = StreamingContext(spark_context, 2)
        streams = [
            KafkaUtils.createStream(ssc, address, f"g-{topic}", {topic: 1}, given).map(
                lambda pair: int(pair[1])
            )
            for _ in range(2)
        ]
        numbers = ssc.union(*streams)
    pairs = numbers.map(in_a_job)
    totals = pairs.updateStateByKey(lambda new, old: sum(new) + (old or 0), 2).setName("totals")
    totals.foreachRDD(lambda rdd: None)
    out = os.path.join(folder, "out")

    def save(time: Any, rdd: Any) -> None:
        found = rdd.collect()
        if found:
            name = f"batch-{int(time.timestamp() * 1000):014d}.json"
            write_output(os.path.join(out, name), found)
        fault_point("program.after-output")

    numbers.foreachRDD(save)
    return ssc


def main(
    folder: str,
    total: str,
    kind: str,
    address: str,
    topic: str,
    master: str = "local[4]",
    *,
    more: dict[str, Any] | None = None,
) -> None:
    durable.KEEP = 3
    operators.SNAPSHOT_EVERY = 2
    os.makedirs(os.path.join(folder, "out"), exist_ok=True)
    config = {
        **(more or {}),
        "spark.ui.enabled": False,
        "spark.streaming.kafka.maxRatePerPartition": 10,
        "spark.streaming.gracefulStopTimeout": "300s",
    }
    spark = tidemill.session("kafka", master=master, config=config, quiet=True)
    clock = ManualClock() if kind == "direct" else None
    ssc = StreamingContext.getOrCreate(
        os.path.join(folder, "checkpoint"),
        lambda: build(spark.sparkContext, clock, folder, kind, address, topic),
        clock=clock,
    )
    ssc.start()
    if clock is not None:
        driver = BatchDriver(ssc, clock)
        driver.run(0, timeout_s=300)
        while len(set(written(folder))) < int(total):
            driver.run(1, timeout_s=300)
    else:

        def is_done() -> bool:
            ssc.awaitTerminationOrTimeout(0)  # raises the error of a batch
            return len(set(written(folder))) >= int(total)

        wait_for(is_done, "all numbers", 1000)
    ssc.stop(stopSparkContext=False, stopGraceFully=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
