"""Turns where a reader wants to begin or end into an offset for each partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidemill.common.clock import SystemClock
from tidemill.errors import OptionError, SourceError
from tidemill.kafka.cluster import KafkaCluster
from tidemill.kafka.consumers import GONE_S, PAUSE_MS
from tidemill.kafka.partitions import (
    EARLIEST,
    LATEST,
    Positions,
    TopicPartition,
    described,
)
from tidemill.sources.kafka.options import OWNER, Place, Subscription


@dataclass(frozen=True)
class Subscribed:
    """The partitions that are to be read, and what the options name and the cluster does not have."""

    partitions: list[TopicPartition]
    missing: str = ""


def all_subscribed(cluster: KafkaCluster, subscription: Subscription) -> Subscribed:
    """Return everything that the options name. What nobody has after a moment is an error."""
    clock = SystemClock()
    until_ms = clock.now_ms() + int(GONE_S * 1000)
    while (found := subscribed(cluster, subscription)).missing:
        if clock.now_ms() >= until_ms:
            raise SourceError(found.missing, "kafka")
        clock.wait_till(clock.now_ms() + PAUSE_MS)
    return found


def subscribed(cluster: KafkaCluster, subscription: Subscription) -> Subscribed:
    """Return what is there of a subscription now. A pattern may fit nothing yet."""
    if subscription.pattern is not None:
        return Subscribed(_flat(cluster.partitions_like(subscription.pattern).values()))
    names = subscription.topics or dict.fromkeys(part.topic for part in subscription.partitions)
    found = cluster.partitions(names)
    there = _flat(found.values())
    wanted = sorted(subscription.partitions) if subscription.partitions else there
    read = [part for part in wanted if part in set(there)]
    absent = [name for name in names if name not in found]
    if absent:
        return Subscribed(
            read,
            f"there is no topic {' and no topic '.join(absent)} at {cluster.servers}: create it, or "
            "correct the name",
        )
    unknown = set(wanted) - set(there)
    if unknown:
        return Subscribed(
            read, f"the option assign names partitions that do not exist: {described(unknown)}"
        )
    return Subscribed(read)


def _flat(parts: Iterable[Collection[TopicPartition]]) -> list[TopicPartition]:
    return sorted(part for each in parts for part in each)


def resolve(
    cluster: KafkaCluster, place: Place, partitions: Collection[TopicPartition], which: str
) -> Positions:
    """Return an offset of 0 or more for each partition that the cluster knows at this moment."""
    if place.everywhere == EARLIEST:
        return cluster.earliest(partitions)
    if place.everywhere == LATEST:
        return cluster.latest(partitions)
    if place.offsets is not None:
        return _at_offsets(cluster, place.offsets, partitions, which)
    if place.time_ms is not None:
        times = dict.fromkeys(partitions, place.time_ms)
    else:
        assert place.times_ms is not None
        _require_all(place.times_ms, partitions, f"{which}OffsetsByTimestamp")
        times = place.times_ms
    return _at_times(cluster, times, place.or_latest, which)


def _at_offsets(
    cluster: KafkaCluster, offsets: Positions, partitions: Collection[TopicPartition], which: str
) -> Positions:
    _require_all(offsets, partitions, f"{which}Offsets")
    earliest = cluster.earliest(part for part, at in offsets.items() if at == EARLIEST)
    latest = cluster.latest(part for part, at in offsets.items() if at == LATEST)
    given = {part: at for part, at in offsets.items() if at >= 0}
    return {**given, **earliest, **latest}


def _at_times(cluster: KafkaCluster, times: Positions, or_latest: bool, which: str) -> Positions:
    found = cluster.at_times(times)
    none = [part for part, offset in found.items() if offset is None]
    if none and not or_latest:
        raise SourceError(
            f"no record is as young as the time in the {which} options in {described(none)}: set "
            '.option("startingOffsetsByTimestampStrategy", "latest") to begin at the end there',
            "kafka",
        )
    ends = cluster.latest(none)
    there = {part: at for part, at in found.items() if at is not None}
    return {**there, **ends}


def _require_all(given: Positions, partitions: Collection[TopicPartition], option: str) -> None:
    missing, unknown = set(partitions) - set(given), set(given) - set(partitions)
    if missing or unknown:
        said = [f"lacks {described(missing)}"] if missing else []
        said += [f"has {described(unknown)}, which is not read"] if unknown else []
        raise OptionError(
            f"option {option} of {OWNER} must have every partition that is read, and no other: it "
            f"{' and '.join(said)}. Use -1 for the latest and -2 for the earliest offset",
            option,
        )
