"""Count the words of a topic as a direct stream: no receiver, and Spark reads the partitions in parallel.

Start a broker (``make kafka``), then::

    python examples/kafka_direct_word_count.py localhost:9092 lines checkpoint

With the checkpoint directory every word is counted once, through crashes and restarts.
"""

from __future__ import annotations

import argparse

import tidemill
from tidemill.streaming import StreamingContext
from tidemill.streaming.kafka import KafkaUtils


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words of a topic.")
    parser.add_argument("brokers", help="addresses with commas, such as localhost:9092")
    parser.add_argument("topics", help="names of topics, with commas")
    parser.add_argument("checkpoint", help="a directory")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    arguments = parser.parse_args()

    def make() -> StreamingContext:
        ssc = StreamingContext(spark.sparkContext, 1)
        messages = KafkaUtils.createDirectStream(
            ssc,
            arguments.topics.split(","),
            {"bootstrap.servers": arguments.brokers, "auto.offset.reset": "earliest"},
        )
        words = messages.flatMap(lambda message: message[1].split()).map(lambda word: (word, 1))
        words.updateStateByKey(lambda new, total: sum(new) + (total or 0)).pprint()
        return ssc

    spark = tidemill.session("kafka words", master="local[2]", quiet=True)
    ssc = StreamingContext.getOrCreate(arguments.checkpoint, make)
    ssc.start()
    ssc.awaitTermination(arguments.seconds)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()
