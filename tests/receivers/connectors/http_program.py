"""Numbers that are posted to two receivers of one stream, behind one another's backs.

Each batch writes the numbers that it had to a file named after its time, so that a batch that runs again
leaves what it left before.

    python -m tests.receivers.connectors.http_program FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext, StorageLevel

from tests.cluster.program import INTERVAL_S, cluster_conf
from tidemill.receivers import HttpReceiver
from tidemill.streaming import StreamingContext

RECEIVERS = 2


def make(folder: Path) -> StreamingContext:
    conf = cluster_conf(f"local[{RECEIVERS + 1}]").set(
        "spark.streaming.receiverRestartDelay", "50ms"
    )
    ssc = StreamingContext(SparkContext(conf=conf), INTERVAL_S)
    ssc.checkpoint(str(folder / "checkpoint"))
    streams = [
        ssc.receiverStream(
            HttpReceiver(
                storageLevel=StorageLevel.MEMORY_AND_DISK,
                gather_ms=10,
                shared_keys="numbers",
                address_file=str(folder / f"address-{number}"),
            )
        )
        for number in range(RECEIVERS)
    ]
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)

    def write(time: Any, rdd: Any) -> None:
        numbers = rdd.map(int).collect()
        if numbers:
            (output / f"{time:%H%M%S.%f}.json").write_text(json.dumps(numbers))

    ssc.union(*streams).foreachRDD(write)
    return ssc


def main(folder: str) -> None:
    path = Path(folder)
    ssc = StreamingContext.getOrCreate(str(path / "checkpoint"), lambda: make(path))
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
