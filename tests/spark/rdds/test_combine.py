from __future__ import annotations

from operator import add
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import SparkContext

from tidemill.spark.rdds import combine
from tidemill.spark.rdds.combine import CombineLocally, Combiner, combine_by_key, group_by_key
from tidemill.tasks import records
from tidemill.tasks.records import (
    CountValues,
    FilterRecords,
    FlatMapRecords,
    FlatMapValues,
    MapRecords,
    MapValues,
    apply_step,
    steps_of,
)

some_pairs = st.lists(
    st.tuples(st.sampled_from(["a", "b", None, ("t", 1), 1.5]), st.integers(-9, 9))
)
LISTS = Combiner(lambda value: [value], lambda values, value: [*values, value], add)


@settings(max_examples=15)
@given(some_pairs, st.integers(1, 3), st.sampled_from([None, 1, 2, 3]))
def test_combining_equals_pysparks(
    sc: SparkContext, pairs: list[tuple[Any, int]], partitions: int, wanted: int | None
) -> None:
    rdd = sc.parallelize(pairs, partitions)
    expected = dict(
        rdd.combineByKey(LISTS.create, LISTS.merge_value, LISTS.merge_combiners).collect()
    )
    ours = combine_by_key(rdd, LISTS, wanted)
    assert {key: sorted(values) for key, values in ours.collect()} == {
        key: sorted(values) for key, values in expected.items()
    }
    if wanted is not None:
        assert ours.getNumPartitions() == wanted
    assert combine_by_key(rdd, Combiner.reducing(add), wanted).count() == len(expected)


def test_one_partition_needs_no_exchange(sc: SparkContext) -> None:
    pairs = sc.parallelize([("a", 1), ("a", 2)], 1).map(lambda pair: pair)
    assert b"Shuffled" not in combine_by_key(pairs, Combiner.reducing(add), None).toDebugString()
    assert b"Shuffled" not in combine_by_key(pairs, Combiner.reducing(add), 1).toDebugString()
    assert b"Shuffled" not in group_by_key(pairs, None).toDebugString()
    assert b"Shuffled" in combine_by_key(pairs, Combiner.reducing(add), 2).toDebugString()


def test_what_is_partitioned_by_key_already_is_not_exchanged_again(sc: SparkContext) -> None:
    pairs = sc.parallelize([("a", 1), ("b", 2)], 3).partitionBy(2)
    combined = combine_by_key(pairs, Combiner.reducing(add), 2)
    assert combined.toDebugString().count(b"Shuffled") == pairs.toDebugString().count(b"Shuffled")
    assert sorted(combined.collect()) == [("a", 1), ("b", 2)]


def test_nothing_stays_nothing(sc: SparkContext) -> None:
    assert combine_by_key(sc.emptyRDD(), Combiner.reducing(add), None).getNumPartitions() == 0


def test_a_worker_short_of_memory_spills_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CombineLocally, "CHECK_EVERY", 100)
    monkeypatch.setattr(combine, "used_memory_mb", lambda: 10_000)
    pairs = [(n % 700, n) for n in range(5000)]
    combined = dict(CombineLocally(LISTS, memory_mb=1)(0, pairs))
    assert {key: sorted(values) for key, values in combined.items()} == {
        key: list(range(key, 5000, 700)) for key in range(700)
    }


def test_counting_values_short_of_memory_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountValues, "CHECK_EVERY", 10)
    monkeypatch.setattr(records, "used_memory_mb", lambda: 10_000)
    counted = list(CountValues(memory_mb=1)(0, [n % 3 for n in range(100)]))
    totals: dict[int, int] = {}
    for value, count in counted:
        totals[value] = totals.get(value, 0) + count
    assert totals == {0: 34, 1: 33, 2: 33}
    assert len(counted) > 3


STEPS = {
    "map": (MapRecords, lambda pair: (pair[0] % 3, pair[1])),
    "flatMap": (FlatMapRecords, lambda pair: [pair] * (pair[1] % 3)),
    "filter": (FilterRecords, lambda pair: pair[1] % 2),
    "mapValues": (MapValues, lambda value: value + 1),
    "flatMapValues": (FlatMapValues, lambda value: range(value % 3)),
}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    st.integers(1, 7),
    st.booleans(),
)
def test_a_fused_loop_equals_its_steps_one_after_the_other(
    pairs: list[tuple[int, int]], kinds: list[str], check_every: int, spill: bool
) -> None:
    steps = [STEPS[kind][0](STEPS[kind][1]) for kind in kinds]
    records: Any = pairs
    for step in steps:
        records = step(0, records)
    expected: dict[int, list[int]] = {}
    for key, value in records:
        expected.setdefault(key, []).append(value)
    combine_step = CombineLocally(LISTS, memory_mb=0 if spill else 1e9, steps=steps)
    combine_step.CHECK_EVERY = check_every  # type: ignore[misc]
    assert {k: sorted(v) for k, v in combine_step(0, pairs)} == {
        k: sorted(v) for k, v in expected.items()
    }


def test_steps_are_found_up_to_a_cached_rdd(sc: SparkContext) -> None:
    base = sc.parallelize([1], 1)
    first = apply_step(base, MapRecords(str), False)
    second = apply_step(first, FilterRecords(bool), False)
    assert steps_of(base) == (base, [])
    found, steps = steps_of(second)
    assert found is base
    assert [step.kind for step in steps] == ["map", "filter"]
    first.cache()
    found, steps = steps_of(second)
    assert found is first
    assert [step.kind for step in steps] == ["filter"]
    first.unpersist()


def test_a_key_error_of_the_users_function_is_not_taken_for_a_new_key() -> None:
    def fail(a: int, b: int) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(CombineLocally(Combiner.reducing(fail), 1e9)(0, [("a", 1), ("a", 2)]))


@pytest.mark.parametrize("step", [MapRecords, FilterRecords, FlatMapRecords])
def test_stop_iteration_of_the_users_function_is_an_error(step: Any) -> None:
    def stop(_: Any) -> Any:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(step(stop)(0, [1, 2]))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(CombineLocally(LISTS, 1e9, [step(stop)])(0, [(1, 1), (2, 2)]))
