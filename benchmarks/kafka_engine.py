"""One engine of the Kafka benchmarks: a process that runs queries, told by lines of JSON.

    PYTHON benchmarks/kafka_engine.py tidemill|spark|bare SERVERS

The peer runs this file in an environment of its own, so it imports nothing of this project but what it
measures. Each line of its input is a query, and it answers with a line when the query runs::

    {"topic": "small", "query": "count", "batch": 250000, "checkpoint": "/tmp/..."}

An empty line ends the query. ``bare`` is no engine: it consumes the topic in a loop, and answers at its end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any


def session(engine: str) -> Any:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if engine == "tidemill":
        import tidemill

        return tidemill.session("kafka benchmark", master="local[1]", config=settings, quiet=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.jars", os.environ["JARS"])
    builder = builder.config("spark.driver.extraClassPath", os.environ["JARS"].replace(",", ":"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start(spark: Any, servers: str, order: dict[str, Any]) -> Any:
    from pyspark.sql import functions as sql

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", order["topic"]).option("startingOffsets", "earliest")
    if order["batch"]:
        reader = reader.option("maxOffsetsPerTrigger", order["batch"])
    df = reader.load()
    if order["query"] == "count":
        result = df.groupBy().count()
    elif order["query"] == "window":
        timed = df.withWatermark("timestamp", "1 minute")
        result = timed.groupBy(sql.window("timestamp", "10 seconds")).count()
    else:
        result = df.select(sql.length("value").alias("bytes"))
    mode = "append" if order["query"] == "lengths" else "update"
    writer = result.writeStream.format("noop").outputMode(mode)
    return writer.option("checkpointLocation", order["checkpoint"]).start()


def consume(servers: str, topic: str, count: int) -> None:
    """Take messages from a topic and do nothing with them: nothing in Python is faster."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 0,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    gc.disable()  # which is half of the limit
    found = 0
    while found < count:
        found += len(consumer.consume(10_000, 1.0))
    consumer.close()


def main(engine: str, servers: str) -> None:
    spark = None if engine == "bare" else session(engine)
    query = None
    print("ready", flush=True)
    for line in sys.stdin:
        if query is not None:
            query.stop()
            query = None
        if line.strip():
            order = json.loads(line)
            if spark is None:
                consume(servers, order["topic"], order["batch"])
            else:
                query = start(spark, servers, order)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
