"""Which shards of a stream are read, from where, and which have to wait for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.receivers.connectors.kinesis.aggregated import HashKeys
from tidemill.receivers.connectors.kinesis.leases import LATEST, TRIM_HORIZON, Lease, Position


@dataclass(frozen=True)
class Shard:
    """A shard as Kinesis describes it. A split gives each half one parent, a merge gives its result two."""

    id: str
    parents: tuple[str, ...]
    is_open: bool
    hash_keys: HashKeys


def shard_of(description: Mapping[str, Any]) -> Shard:
    keys = description["HashKeyRange"]
    parents = (description.get("ParentShardId"), description.get("AdjacentParentShardId"))
    return Shard(
        description["ShardId"],
        tuple(parent for parent in parents if parent),
        "EndingSequenceNumber" not in description["SequenceNumberRange"],
        HashKeys(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
    )


def missing_leases(
    shards: Mapping[str, Shard], leases: Mapping[str, Lease], initial: str, now_ms: int
) -> list[Lease]:
    """Return the leases to add, parents before their children, so that those that a crash leaves out are
    recognised by the next call.

    IF the table is empty, the application starts. With TRIM_HORIZON all shards are read, from what the stream
    still has; with LATEST those that are open, from now on. "Now" is written down, because the application
    may die before it has read anything.

    ELSE look at each shard without a lease:

    - IF it is an ancestor of a shard that has one, it was read, or lies before the start: leave it out.
    - ELSE IF it descends from a shard that has one, it came while the application ran: read all of it.
    - ELSE the table was being filled, or its ancestors expired: begin where the application began.
    """
    if not leases:
        if initial == LATEST:
            first = [shard for shard in shards.values() if shard.is_open]
            return _leases(first, Position(LATEST, start_time_ms=now_ms))
        return _leases(in_order(shards), Position(TRIM_HORIZON))
    start_times = [
        lease.position.start_time_ms
        for lease in leases.values()
        if lease.position.start_time_ms is not None
    ]
    begin = Position(LATEST, start_time_ms=min(start_times)) if start_times else None
    before = ancestors(leases, shards, leases)
    found: list[Lease] = []
    for shard in in_order(shards):
        if shard.id in leases or shard.id in before:
            continue
        is_new = any(parent in leases for parent in ancestors([shard.id], shards, leases))
        found += _leases([shard], Position(TRIM_HORIZON) if is_new or begin is None else begin)
    return found


def ancestors(
    of: Iterable[str], shards: Mapping[str, Shard], leases: Mapping[str, Lease]
) -> set[str]:
    """Return all shards that came before some shards, as far as it is known."""
    found: set[str] = set()
    waiting = list(of)
    while waiting:
        for parent in parents_of(waiting.pop(), shards, leases):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def parents_of(
    id: str, shards: Mapping[str, Shard], leases: Mapping[str, Lease]
) -> tuple[str, ...]:
    """Return the parents of a shard, which Kinesis forgets when the last of its records expires."""
    if id in shards:
        return shards[id].parents
    return leases[id].parents if id in leases else ()


def is_readable(id: str, shards: Mapping[str, Shard], leases: Mapping[str, Lease]) -> bool:
    """Say whether the parents of a shard have been read to their ends: their records come before its own.

    A parent without a lease was read, or is not read at all.
    """
    parents = parents_of(id, shards, leases)
    return all(parent not in leases or leases[parent].has_ended for parent in parents)


def in_order(shards: Mapping[str, Shard]) -> list[Shard]:
    """Return the shards, parents before their children."""
    found: dict[str, Shard] = {}

    def add(shard: Shard) -> None:
        if shard.id not in found:
            for parent in shard.parents:
                if parent in shards:
                    add(shards[parent])
            found[shard.id] = shard

    for id in sorted(shards):
        add(shards[id])
    return list(found.values())


def _leases(shards: Iterable[Shard], position: Position) -> list[Lease]:
    return [Lease(shard.id, position, parents=shard.parents) for shard in shards]
