"""The numbers of a Kinesis stream. Each batch writes those that it had to a file named after its time, so
that a batch that runs again leaves what it left before.

    python -m tests.receivers.connectors.kinesis.program FOLDER URL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext, StorageLevel

from tests.cluster.program import INTERVAL_S, cluster_conf
from tests.receivers.connectors.kinesis.server import REGION, STREAM
from tidemill.receivers import EnvironmentSecret
from tidemill.streaming import StreamingContext
from tidemill.streaming.kinesis import InitialPositionInStream, KinesisUtils, MetricsLevel


def make(folder: Path, url: str) -> StreamingContext:
    conf = cluster_conf("local[2]").set("spark.streaming.receiverRestartDelay", "50ms")
    ssc = StreamingContext(SparkContext(conf=conf), INTERVAL_S)
    ssc.checkpoint(str(folder / "checkpoint"))
    numbers = KinesisUtils.createStream(
        ssc,
        "numbers-app",
        STREAM,
        url,
        REGION,
        InitialPositionInStream.TRIM_HORIZON,  # type: ignore[arg-type]  # as PySpark declares it
        2,
        MetricsLevel.NONE,
        StorageLevel.MEMORY_AND_DISK,
        "key",
        EnvironmentSecret("AWS_SECRET_ACCESS_KEY"),  # type: ignore[arg-type]
        decoder=lambda data: int(data or b""),
    )
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)

    def write(time: Any, rdd: Any) -> None:
        found = rdd.collect()
        if found:
            (output / f"{time:%Y%m%d%H%M%S.%f}.json").write_text(json.dumps(found))

    numbers.foreachRDD(write)
    return ssc


def main(folder: str, url: str) -> None:
    path = Path(folder)
    ssc = StreamingContext.getOrCreate(str(path / "checkpoint"), lambda: make(path, url))
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
