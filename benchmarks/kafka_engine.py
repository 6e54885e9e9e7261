"""One engine of the Kafka benchmarks: a process that runs queries, told by lines of JSON.

    PYTHON benchmarks/kafka_engine.py tidemill|spark|bare SERVERS

The peer runs this file in an environment of its own, so it imports nothing of this project but what it
measures. Each line of its input is a query, and it answers with a line when the query runs::

    {"topic": "small", "query": "count", "batch": 250000, "checkpoint": "/tmp/..."}

``copy`` has a topic ``output`` as well, and may have a ``trigger``. ``direct`` is a direct stream, for
Tidemill only, and notes its batches as queries do, in ``commits``. An empty line ends the query. ``bare`` is
no engine: it consumes the topic in a loop, and answers at its end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATE = 400_000  # messages per second that a direct stream is offered, which is more than it takes


def session(engine: str) -> Any:
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.streaming.kafka.maxRatePerPartition": str(RATE),
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


def start(spark: Any, servers: str, order: dict[str, Any]) -> Callable[[], None]:
    """Start a query and return what stops it."""
    if order["query"] == "direct":
        return start_direct(spark, servers, order)
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
        result = df.select("value")
    writer = result.writeStream.outputMode("update").option(
        "checkpointLocation", order["checkpoint"]
    )
    if order["query"] == "copy":
        writer = writer.format("kafka").option("kafka.bootstrap.servers", servers)
        writer = writer.option("topic", order["output"])
    else:
        writer = writer.format("noop")
    if order.get("trigger"):
        writer = writer.trigger(**order["trigger"])
    query = writer.start()
    return lambda: query.stop()


def start_direct(spark: Any, servers: str, order: dict[str, Any]) -> Callable[[], None]:
    from tidemill.streaming import StreamingContext
    from tidemill.streaming.kafka import KafkaUtils

    commits = Path(order["checkpoint"], "commits")
    commits.mkdir(parents=True)

    def note(rdd: Any) -> None:
        if (count := rdd.first()) > 0:
            (commits / str(len(list(commits.iterdir())))).write_text(str(count))

    ssc = StreamingContext(spark.sparkContext, order["batch"] / RATE)
    ssc.checkpoint(str(commits.with_name("stream")))
    settings = {"bootstrap.servers": servers, "auto.offset.reset": "earliest"}
    KafkaUtils.createDirectStream(ssc, [order["topic"]], settings).count().foreachRDD(note)
    ssc.start()
    return lambda: ssc.stop(stopSparkContext=False)


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
    stop: Callable[[], None] | None = None
    print("ready", flush=True)
    for line in sys.stdin:
        if stop is not None:
            stop()
            stop = None
        if line.strip():
            order = json.loads(line)
            if spark is None:
                consume(servers, order["topic"], order["batch"])
            else:
                stop = start(spark, servers, order)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
