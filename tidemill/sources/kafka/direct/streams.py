"""What the front end uses of this room: everything here needs confluent-kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.errors import DataLossError, OptionError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.consumer_params import ConsumerParams
from tidemill.kafka.consumers import require_valid
from tidemill.kafka.ranges import OffsetRange
from tidemill.kafka.settings import KAFKA_POLL_MS
from tidemill.sources.kafka.direct.rdd import Decoders, KafkaRDD, RangeTask
from tidemill.sources.kafka.direct.source import DirectStream
from tidemill.sources.kafka.options import Subscription

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["Decoders", "DirectStream", "Subscription", "rdd_of_ranges"]


def rdd_of_ranges(
    spark_context: SparkContext,
    params: ConsumerParams,
    ranges: Sequence[OffsetRange],
    decoders: Decoders,
) -> KafkaRDD:
    """Return an RDD of fixed ranges. Raise if the topics do not have all of them now."""
    settings = params.settings()
    patience_s = KAFKA_POLL_MS.read(spark_context.getConf()) / 1000
    require_valid(settings, params.owner)
    cluster = KafkaCluster(settings, params.owner, patience_s)
    try:
        there = cluster.partitions({each.topic for each in ranges}) if ranges else {}
        parts = {
            each.topicAndPartition
            for each in ranges
            if each.topicAndPartition in there.get(each.topic, ())
        }
        ids = cluster.topic_ids({part.topic for part in parts})
        first, last = cluster.earliest(parts), cluster.latest(parts)
    finally:
        cluster.close()
    for each in ranges:
        where = each.topicAndPartition
        if where not in last:
            raise OptionError(f"there is no {where}: {each} cannot be read", "offsetRanges")
        if each.fromOffset > each.untilOffset:
            raise OptionError(f"{each} ends before it begins", "offsetRanges")
        if each.count() and not first[where] <= each.fromOffset <= each.untilOffset <= last[where]:
            raise DataLossError(
                f"{where} does not have offsets {each.fromOffset} to before {each.untilOffset}: it has "
                f"{first[where]} to before {last[where]}",
                str(where),
                each.fromOffset,
                max(first[where], min(each.fromOffset, last[where])),
            )
    task = RangeTask(settings, params.owner, decoders, True, patience_s, ids)
    return KafkaRDD(spark_context, ranges, task)
