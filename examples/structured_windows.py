"""Mean temperatures over ten minutes, by the time of the measurement, not of its arrival.

Readings arrive in five files. Some are out of order, and one is so late that its window has already been
written. The query writes a window once, when the watermark (the latest reading minus five minutes) has
passed its end.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import functions as sql

import tidemill

ARRIVALS = [
    [("12:01", 20.0), ("12:04", 22.0)],
    [("12:11", 24.0), ("12:08", 21.0)],  # 12:08 is out of order, but in time
    [("12:19", 26.0)],  # moves the watermark to 12:14:
    [("12:21", 25.0)],  # writes 12:00 to 12:10
    [("12:02", 99.0), ("12:31", 18.0)],  # 12:02 is too late and is dropped
]


def main(directory: Path) -> None:
    for number, arrival in enumerate(ARRIVALS):
        lines = [json.dumps({"at": f"2026-03-01 {at}:00", "celsius": c}) for at, c in arrival]
        file = directory / f"{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # the query reads files in the order of their times

    spark = tidemill.session("windows", master="local[2]", quiet=True)
    readings = (
        spark.readStream.schema("at timestamp, celsius double")
        .option("maxFilesPerTrigger", 1)
        .option("maxFileAge", "36500d")
        .json(str(directory))
    )
    means = (
        readings.withWatermark("at", "5 minutes")
        .groupBy(sql.window("at", "10 minutes"))
        .agg(sql.avg("celsius").alias("mean"), sql.count("*").alias("readings"))
    )
    query = (
        means.select(
            sql.date_format("window.start", "HH:mm").alias("from"),
            sql.date_format("window.end", "HH:mm").alias("to"),
            "mean",
            "readings",
        )
        .writeStream.format("memory")
        .queryName("means")
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("means").orderBy("from").show()
    late = sum(p.stateOperators[0].numRowsDroppedByWatermark for p in query.recentProgress)
    print(f"{late} reading was too late and was dropped")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
