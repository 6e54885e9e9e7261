"""Counts the words in a Kinesis stream, every second.

    python examples/kinesis_word_count.py APP STREAM ENDPOINT REGION [CHECKPOINT]

such as ``word-count sentences https://kinesis.us-east-1.amazonaws.com us-east-1``. Credentials are those that
boto3 finds. With a checkpoint directory no record is lost or counted twice, whatever dies.
"""

from __future__ import annotations

import sys

import tidemill
from tidemill.streaming import StreamingContext
from tidemill.streaming.kinesis import InitialPositionInStream, KinesisUtils


def main(app: str, stream: str, endpoint: str, region: str, checkpoint: str | None = None) -> None:
    def make() -> StreamingContext:
        spark = tidemill.session("kinesis word count", master="local[2]", quiet=True)
        ssc = StreamingContext(spark.sparkContext, 1)
        if checkpoint is not None:
            ssc.checkpoint(checkpoint)
        lines = KinesisUtils.createStream(
            ssc,
            app,
            stream,
            endpoint,
            region,
            InitialPositionInStream.TRIM_HORIZON,  # type: ignore[arg-type]  # PySpark declares a str
            checkpointInterval=10,
        )
        words = lines.flatMap(str.split)
        words.map(lambda word: (word, 1)).reduceByKey(lambda a, b: a + b).pprint()
        return ssc

    ssc = make() if checkpoint is None else StreamingContext.getOrCreate(checkpoint, make)
    ssc.start()
    ssc.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
