"""``df.write.format("kafka")``: the rows of a DataFrame, each at least once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.sinks.kafka.columns import require_columns
from tidemill.sinks.kafka.options import OWNER, KafkaWriteOptions
from tidemill.sinks.kafka.sink import require_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_batch(df: DataFrame, options: Mapping[str, str]) -> None:
    """Send the rows of a DataFrame. When an error is raised, some of them may have been sent."""
    asked = KafkaWriteOptions.of_batch(options)
    require_columns(df.schema, asked.topic)
    require_topic(asked, OWNER)
    send(df, asked, OWNER)
