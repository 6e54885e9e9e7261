"""How far a stream is behind its topics: in offsets, and in seconds.

A partition is so many *offsets* behind as lie between the end of the batch and the end of the partition, when
the batch was planned. It is so many *seconds* behind as its oldest unread record is old, by that record's
timestamp; 0 if there is none.

The end of a partition is known anyway. The record has to be looked at: with a consumer of its own that reads
one record of each partition that is behind, at most once in :data:`LOOK_EVERY_MS`. In between, the record of
the last look stands for the oldest unread one, although the stream may have read it by then. So a stream that
keeps up never looks, and one that is behind spends some ten milliseconds in ten seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tidemill.common.clock import Clock, SystemClock
from tidemill.kafka.consumers import new_consumer
from tidemill.kafka.partitions import Positions, TopicPartition, to_json

LOOK_EVERY_MS = 10_000
LOOK_S = 1.0
"""How long a look may take: progress is not worth waiting for."""


class LagMeter:
    """Measures the lag of one stream, on the thread that plans its batches."""

    def __init__(self, settings: Mapping[str, str], owner: str, clock: Clock) -> None:
        # One record a partition: nothing is fetched ahead.
        self._settings = {**settings, "queued.min.messages": "1"}
        self._owner = owner
        self._clock = clock
        self._looked_ms: int | None = None
        # The oldest unread record as of the last look: its offset, and its time (None: it has none).
        self._oldest: dict[TopicPartition, tuple[int, int | None]] = {}

    def metrics(self, ends: Positions, newest: Positions) -> dict[str, str]:
        """Return the lag of a stream that has read up to ``ends``, with the names of Spark's connector.

        ``secondsBehindLatest`` lacks partitions whose oldest unread record nobody has looked at yet.
        """
        behind = {part: max(0, end - ends.get(part, 0)) for part, end in newest.items()}
        if not behind:
            return {}
        seconds = self._seconds({part: ends.get(part, 0) for part, rows in behind.items() if rows})
        seconds |= {part: 0.0 for part, rows in behind.items() if not rows}
        found = {
            "minOffsetsBehindLatest": str(min(behind.values())),
            "maxOffsetsBehindLatest": str(max(behind.values())),
            "avgOffsetsBehindLatest": str(sum(behind.values()) / len(behind)),
            "offsetsBehindLatest": _text(behind),
            "secondsBehindLatest": _text(seconds),
        }
        if len(seconds) == len(behind):
            found["maxSecondsBehindLatest"] = str(max(seconds.values()))
        return found

    def _seconds(self, starts: Positions) -> dict[TopicPartition, float]:
        self._oldest = {part: at for part, at in self._oldest.items() if part in starts}
        new = {
            part: start
            for part, start in starts.items()
            if part not in self._oldest or self._oldest[part][0] < start
        }
        now_ms = self._clock.wall_ms()
        is_due = self._looked_ms is None or now_ms >= self._looked_ms + LOOK_EVERY_MS
        if new and is_due:
            self._looked_ms = now_ms
            self._look(new)
        return {
            part: max(0, now_ms - time_ms) / 1000
            for part, (_, time_ms) in self._oldest.items()
            if time_ms is not None
        }

    def _look(self, starts: Positions) -> None:
        """Read the first record at or behind each position, as far as they come at once."""
        for part in starts:
            self._oldest.pop(part, None)
        consumer = new_consumer(self._settings, self._owner)
        try:
            consumer.assign([KafkaPartition(*part, start) for part, start in starts.items()])
            waiting = set(starts)
            clock = SystemClock()  # the stream's own may stand still
            until_ms = clock.now_ms() + int(LOOK_S * 1000)
            for _ in range(len(starts) * 10):
                left_ms = until_ms - clock.now_ms()
                if not waiting or left_ms <= 0:
                    break
                for message in consumer.consume(1, min(left_ms / 1000, LOOK_S)):
                    part = TopicPartition(message.topic(), message.partition())
                    if message.error() is None and part in waiting:
                        kind, time_ms = message.timestamp()
                        self._oldest[part] = message.offset(), time_ms if kind else None
                    if message.error() is None or message.error().code() == _END:
                        waiting.discard(part)
                        consumer.pause([KafkaPartition(*part)])
        except KafkaException:
            pass  # the stream itself will meet the error, and say so
        finally:
            consumer.close()


_END = KafkaError._PARTITION_EOF


def _text(values: Mapping[TopicPartition, Any]) -> str:
    return json.dumps(to_json(values), separators=(",", ":"))
