"""Partitions of topics and positions in them, in the JSON that Spark's connector writes.

``{"orders": {"0": 23, "1": 45}}`` is where a batch ends: offset 23 of partition 0 is the first that it does
not have. In options, -2 stands for the earliest offset and -1 for the latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

EARLIEST = -2
LATEST = -1


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"


Positions = dict[TopicPartition, int]
"""An offset for each partition."""


def to_json(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return positions as they are logged: topics and partitions in order.

    >>> to_json({TopicPartition("b", 10): 1, TopicPartition("b", 2): 3, TopicPartition("a", 0): 5})
    {'a': {'0': 5}, 'b': {'2': 3, '10': 1}}
    """
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_json(value: Mapping[str, Mapping[str, int]]) -> Positions:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in value.items()
        for partition, offset in offsets.items()
    }


def parse_positions(text: str) -> Positions:
    """Return the positions in an option's text. Raise ``ValueError`` with what is expected."""
    expected = 'expected JSON such as {"topic": {"0": 23, "1": -2}}'
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError(expected)
        positions: Positions = {}
        for topic, offsets in value.items():
            for partition, offset in dict(offsets).items():
                number = int(partition)
                if number < 0 or isinstance(offset, bool) or not isinstance(offset, int):
                    raise ValueError(expected)
                positions[TopicPartition(topic, number)] = offset
    except (TypeError, ValueError, AttributeError):
        raise ValueError(expected) from None
    return positions


def parse_assignment(text: str) -> list[TopicPartition]:
    """Return the partitions in an option's text. Raise ``ValueError`` with what is expected.

    >>> parse_assignment('{"a": [0, 1]}')
    [TopicPartition(topic='a', partition=0), TopicPartition(topic='a', partition=1)]
    """
    expected = 'expected JSON such as {"topic": [0, 1]}'
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or not value:
            raise ValueError(expected)
        parts = [
            TopicPartition(topic, number) for topic, numbers in value.items() for number in numbers
        ]
        if not parts or not all(
            type(part.partition) is int and part.partition >= 0 for part in parts
        ):
            raise ValueError(expected)
    except (TypeError, ValueError):
        raise ValueError(expected) from None
    return sorted(set(parts))


def described(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Return partitions for a message: ``orders-0, orders-1 and 3 more``."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
