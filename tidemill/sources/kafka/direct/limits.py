"""How many messages of each partition a batch takes."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.common.config import Conf
from tidemill.errors import OptionError
from tidemill.kafka.partitions import Positions
from tidemill.kafka.settings import KAFKA_MAX_RATE, KAFKA_MIN_RATE
from tidemill.sources.kafka.shares import share


@dataclass(frozen=True)
class PartitionLimits:
    """The rates between which each partition is read, in messages per second. A maximum of None: no limit."""

    batch_ms: int
    max_per_s: int | None = None
    min_per_s: int = 1

    @classmethod
    def from_conf(cls, conf: Conf, batch_ms: int) -> PartitionLimits:
        most, least = KAFKA_MAX_RATE.read(conf), KAFKA_MIN_RATE.read(conf)
        if most is not None and least > most:
            raise OptionError(
                f"{KAFKA_MIN_RATE.key} is {least} and {KAFKA_MAX_RATE.key} is {most}: the smaller number "
                "must be the minimum",
                KAFKA_MIN_RATE.key,
            )
        return cls(batch_ms, most, least)

    def apply(self, starts: Positions, ends: Positions, most: int | None) -> Positions:
        """Return ends within the limits; ``most`` is what the rate of the whole stream allows, if it has one.

        1. Each partition gets a share of ``most`` in proportion to its lag, so that all catch up together.
        2. But no more than its maximum rate, and no less than its minimum rate.

        >>> from tidemill.kafka.partitions import TopicPartition
        >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
        >>> list(PartitionLimits(1000, 40, 10).apply({a: 0, b: 0}, {a: 900, b: 100}, 50).values())
        [40, 10]
        """
        if most is None and self.max_per_s is None:
            return ends
        shares = ends if most is None else share(starts, ends, most)  # 1
        return {
            part: self._limited(starts.get(part, end), shares[part], end)
            for part, end in ends.items()
        }

    def _limited(self, start: int, wanted: int, end: int) -> int:
        if end <= start:
            return end
        size = wanted - start  # 2
        if self.max_per_s is not None:
            size = min(size, self._records(self.max_per_s))
        return min(end, start + max(size, self._records(self.min_per_s)))

    def _records(self, rate_per_s: int) -> int:
        # messages/s * ms / (ms/s) = messages
        return max(1, rate_per_s * self.batch_ms // 1000)
