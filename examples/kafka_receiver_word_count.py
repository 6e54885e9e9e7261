"""Count the words of a topic with a receiver, which is a member of a consumer group.

Start a broker (``make kafka``), then::

    python examples/kafka_receiver_word_count.py localhost:9092 words lines checkpoint
"""

from __future__ import annotations

import argparse

import tidemill
from tidemill.streaming import StreamingContext
from tidemill.streaming.kafka import KafkaUtils


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words of a topic.")
    parser.add_argument("brokers", help="addresses with commas, such as localhost:9092")
    parser.add_argument("group", help="the name of a consumer group")
    parser.add_argument("topic")
    parser.add_argument("checkpoint", help="a directory")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    arguments = parser.parse_args()

    def make() -> StreamingContext:
        ssc = StreamingContext(spark.sparkContext, 1)
        messages = KafkaUtils.createStream(
            ssc,
            arguments.brokers,  # where PySpark wanted ZooKeeper
            arguments.group,
            {arguments.topic: 1},
            {"bootstrap.servers": arguments.brokers, "auto.offset.reset": "earliest"},
        )
        messages.flatMap(lambda message: message[1].split()).countByValue().pprint()
        return ssc

    # One core for the receiver, one for the batches.
    spark = tidemill.session("kafka words", master="local[2]", quiet=True)
    ssc = StreamingContext.getOrCreate(arguments.checkpoint, make)
    ssc.start()
    ssc.awaitTermination(arguments.seconds)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()
