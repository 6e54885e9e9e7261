from __future__ import annotations

from tidemill.receivers.connectors.kinesis.aggregated import HashKeys
from tidemill.receivers.connectors.kinesis.leases import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Lease,
    Position,
)
from tidemill.receivers.connectors.kinesis.shards import Shard, is_readable, missing_leases

KEYS = HashKeys(0, 1)
BEGINNING = Position(TRIM_HORIZON)
NOW = Position(LATEST, start_time_ms=5000)


def shards(*described: tuple[str, str], is_open: str = "") -> dict[str, Shard]:
    """``("c", "ab")`` is a shard with the parents a and b."""
    return {
        id: Shard(id, tuple(parents), not is_open or id in is_open, KEYS)
        for id, parents in described
    }


def leases(positions: dict[str, Position]) -> dict[str, Lease]:
    return {shard: Lease(shard, position) for shard, position in positions.items()}


def added(
    found: dict[str, Shard], known: dict[str, Position], initial: str = TRIM_HORIZON
) -> dict[str, Position]:
    return {
        lease.shard: lease.position for lease in missing_leases(found, leases(known), initial, 5000)
    }


# a was split into b and c; c and d were merged into e.
FAMILY = shards(("a", ""), ("b", "a"), ("c", "a"), ("d", ""), ("e", "cd"), is_open="be")


def test_an_application_begins_with_everything_there_is() -> None:
    assert added(FAMILY, {}) == dict.fromkeys("abcde", BEGINNING)


def test_parents_come_before_their_children() -> None:
    found = shards(("a", "b"), ("b", "c"), ("c", ""))
    assert list(added(found, {})) == ["c", "b", "a"]


def test_with_latest_it_begins_with_open_shards_at_this_moment() -> None:
    assert added(FAMILY, {}, LATEST) == {"b": NOW, "e": NOW}


def test_children_are_read_from_their_beginning_also_with_latest() -> None:
    known = {"a": Position("7"), "d": NOW}
    assert added(FAMILY, known, LATEST) == dict.fromkeys("bce", BEGINNING)


def test_ancestors_of_known_shards_are_left_out() -> None:
    assert added(FAMILY, {"b": NOW, "e": NOW}, LATEST) == {}
    assert added(FAMILY, {"b": BEGINNING, "e": BEGINNING}) == {}


def test_a_start_that_a_crash_has_interrupted_is_finished() -> None:
    every = list(missing_leases(FAMILY, {}, TRIM_HORIZON, 5000))
    for done in range(1, len(every)):
        known = {lease.shard: lease for lease in every[:done]}
        rest = missing_leases(FAMILY, known, TRIM_HORIZON, 5000)
        assert [*known, *(lease.shard for lease in rest)] == [lease.shard for lease in every]
    # With LATEST, from the same moment, though it is later by now.
    assert missing_leases(FAMILY, leases({"b": NOW}), LATEST, 9000)[-1].position == NOW


def test_descendants_whose_parents_expired_are_read_all_the_same() -> None:
    known = {"x": Position("7")}
    assert added(shards(("z", "y")), known) == {"z": BEGINNING}


def test_a_shard_waits_for_both_of_its_parents() -> None:
    known = {"c": Position(SHARD_END), "d": Position("7"), "e": BEGINNING}
    assert not is_readable("e", FAMILY, leases(known))
    known["d"] = Position(SHARD_END)
    assert is_readable("e", FAMILY, leases(known))


def test_a_shard_does_not_wait_for_parents_that_nobody_reads() -> None:
    assert is_readable("e", FAMILY, leases({"e": NOW}))
    assert is_readable("e", {}, {"e": Lease("e", NOW, parents=("c", "d"))})
    assert not is_readable(
        "e", {}, {"e": Lease("e", NOW, parents=("d",)), "d": Lease("d", BEGINNING)}
    )
