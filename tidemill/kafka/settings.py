"""The settings of direct streams, with Spark's names."""

from __future__ import annotations

from tidemill.common.config import Setting, positive_int, positive_time_ms, records_per_s

KAFKA_MAX_RATE: Setting[int | None] = Setting(
    "spark.streaming.kafka.maxRatePerPartition",
    None,
    records_per_s,
    "The most messages per second that a direct stream reads from each partition. Default, 0 or less: no "
    "limit.",
)
KAFKA_MIN_RATE = Setting(
    "spark.streaming.kafka.minRatePerPartition",
    1,
    positive_int,
    "How many messages per second a direct stream reads from each partition at least, if there are so many, "
    "whatever backpressure says.",
)
KAFKA_POLL_MS = Setting(
    "spark.streaming.kafka.consumer.poll.ms",
    120_000,
    lambda text: positive_time_ms(text, bare_unit="ms"),
    "How long a direct stream waits for a broker that has answered before. A bare number is milliseconds.",
)
