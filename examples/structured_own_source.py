"""A custom source: the new rows of a database table, in the order of their ids.

An offset is the last id that has been read. The driver asks how far a batch can go; tasks read the rows
between two offsets. The query logs the offsets of a batch before it runs it, so after a restart it reads no
row twice and skips none.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import tidemill
from tidemill.batches.batch import AdmissionLimit, OffsetRange, RangeSize
from tidemill.batches.table_source import SplitReader, SplitSource


class Orders(SplitSource):
    known_options = frozenset({"path"})

    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options["path"]

    def schema(self) -> StructType:
        return StructType(
            [
                StructField("id", LongType()),
                StructField("customer", StringType()),
                StructField("amount", DoubleType()),
            ]
        )

    def initial_offset(self) -> int:
        return 0

    def latest_offset(self, start: int, limit: AdmissionLimit, time_ms: int) -> int:
        with sqlite3.connect(self._path) as database:
            (last,) = database.execute("SELECT coalesce(max(id), 0) FROM orders").fetchone()
        if limit.max_records is not None:  # backpressure, or maxRatePerSecond
            last = min(last, start + limit.max_records)
        return max(start, int(last))

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(records=range_.end - range_.start)

    def splits(self, range_: OffsetRange, parallelism: int) -> Sequence[Any]:
        step = max(1, -(-(range_.end - range_.start) // parallelism))
        return [
            [self._path, after, min(after + step, range_.end)]
            for after in range(range_.start, range_.end, step)
        ]

    def split_reader(self) -> SplitReader:
        return read_orders


def read_orders(split: Any) -> Iterator[pa.RecordBatch]:
    path, after, up_to = split
    with sqlite3.connect(path) as database:
        found = database.execute(
            "SELECT id, customer, amount FROM orders WHERE id > ? AND id <= ?", (after, up_to)
        ).fetchall()
    ids, customers, amounts = zip(*found, strict=True) if found else ((), (), ())
    yield pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(customers, pa.string()),
            "amount": pa.array(amounts, pa.float64()),
        }
    )


def main(directory: Path) -> None:
    path = str(directory / "orders.sqlite")
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL)")

    spark = tidemill.session("orders", master="local[2]", quiet=True)
    tidemill.register_source("orders", Orders)
    orders = spark.readStream.format("orders").option("path", path).load()
    totals = orders.groupBy("customer").agg(sql.sum("amount").alias("total")).orderBy("customer")
    for new in ([("ann", 10.0), ("bob", 5.0)], [("ann", 2.5), ("cid", 7.0)]):
        database.executemany("INSERT INTO orders (customer, amount) VALUES (?, ?)", new)
        database.commit()
        query = (
            totals.writeStream.format("console")
            .outputMode("complete")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    database.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
