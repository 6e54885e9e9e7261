"""How much of each partition a batch takes when it may not take all, and how ranges are split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemill.kafka.partitions import Positions, TopicPartition


@dataclass(frozen=True)
class PartitionRange:
    """Offsets of one partition, from ``start`` to before ``end``."""

    where: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


def share(starts: Positions, ends: Positions, most: int) -> Positions:
    """Return ends that are together at most about ``most`` offsets behind ``starts``.

    Each partition gets a share in proportion to what it has, so that all catch up at the same time, and
    one offset at least, so that none waits for ever. A partition without a start begins at 0.

    >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> list(share({a: 0, b: 0}, {a: 90, b: 10}, 50).values())
    [45, 5]
    """
    sizes = {part: max(0, end - starts.get(part, 0)) for part, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return ends
    limited = {}
    for part, end in ends.items():
        size = sizes[part]
        if size == 0:
            limited[part] = end
            continue
        wanted = most * size / total
        limited[part] = min(end, starts.get(part, 0) + max(1, math.floor(wanted)))
    return limited


def split(
    ranges: Sequence[PartitionRange], least: int | None, most_records: int | None
) -> list[PartitionRange]:
    """Cut ranges into at least ``least`` parts, and into parts of at most ``most_records`` offsets.

    >>> whole = PartitionRange(TopicPartition("t", 0), 0, 10)
    >>> [(part.start, part.end) for part in split([whole], 3, None)]
    [(0, 3), (3, 6), (6, 10)]
    """
    found = [range_ for range_ in ranges if range_.size]
    total = sum(range_.size for range_ in found)
    parts = []
    for range_ in found:
        pieces = 1
        if most_records is not None:
            pieces = math.ceil(range_.size / most_records)
        if least is not None and least > len(found):
            pieces = max(pieces, round(least * range_.size / total))
        parts.extend(_cut(range_, min(max(1, pieces), range_.size)))
    return parts


def _cut(range_: PartitionRange, pieces: int) -> list[PartitionRange]:
    bounds = [range_.start + range_.size * piece // pieces for piece in range(pieces + 1)]
    return [PartitionRange(range_.where, start, end) for start, end in pairwise(bounds)]
