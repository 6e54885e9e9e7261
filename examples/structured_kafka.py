"""From Kafka to Kafka, exactly once: the number of orders of each product, as they come.

    python examples/structured_kafka.py localhost:9092 orders counts [checkpoint]

Start a broker with ``make kafka``, which says its address, and create both topics or let the broker do so.
Kill the program whenever you like and start it again: a reader with ``isolation.level=read_committed`` sees
every update once.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as sql

import tidemill


def main(servers: str, orders: str, counts: str, checkpoint: str = "checkpoints/counts") -> None:
    spark = tidemill.session("structured kafka", master="local[2]", quiet=True)
    products = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .load()
        .select(sql.col("value").cast("string").alias("product"))
    )
    counted = products.groupBy("product").count()
    query = (
        counted.select(
            sql.col("product").alias("key"),
            sql.to_json(sql.struct("product", "count")).alias("value"),
        )
        .writeStream.outputMode("update")
        .format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", counts)
        .option("exactlyOnce", True)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
