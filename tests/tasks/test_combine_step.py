"""Combining and counting within one partition, with and without enough memory."""

from __future__ import annotations

from operator import add
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.tasks import combine_step, record_steps
from tidemill.tasks.combine_step import CombineLocally, Combiner
from tidemill.tasks.record_steps import (
    CountValues,
    FilterRecords,
    FlatMapRecords,
    FlatMapValues,
    MapRecords,
    MapValues,
)

LISTS = Combiner(lambda value: [value], lambda values, value: [*values, value], add)
STEPS = {
    "map": (MapRecords, lambda pair: (pair[0] % 3, pair[1])),
    "flatMap": (FlatMapRecords, lambda pair: [pair] * (pair[1] % 3)),
    "filter": (FilterRecords, lambda pair: pair[1] % 2),
    "mapValues": (MapValues, lambda value: value + 1),
    "flatMapValues": (FlatMapValues, lambda value: range(value % 3)),
}


def test_a_worker_short_of_memory_spills_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CombineLocally, "CHECK_EVERY", 100)
    monkeypatch.setattr(combine_step, "used_memory_mb", lambda: 10_000)
    pairs = [(n % 700, n) for n in range(5000)]
    combined = dict(CombineLocally(LISTS, memory_mb=1)(0, pairs))
    assert {key: sorted(values) for key, values in combined.items()} == {
        key: list(range(key, 5000, 700)) for key in range(700)
    }


def test_counting_values_short_of_memory_loses_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountValues, "CHECK_EVERY", 10)
    monkeypatch.setattr(record_steps, "used_memory_mb", lambda: 10_000)
    counted = list(CountValues(memory_mb=1)(0, [n % 3 for n in range(100)]))
    totals: dict[int, int] = {}
    for value, count in counted:
        totals[value] = totals.get(value, 0) + count
    assert totals == {0: 34, 1: 33, 2: 33}
    assert len(counted) > 3


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
    combining = CombineLocally(LISTS, memory_mb=0 if spill else 1e9, steps=steps)
    combining.CHECK_EVERY = check_every  # type: ignore[misc]
    assert {k: sorted(v) for k, v in combining(0, pairs)} == {
        k: sorted(v) for k, v in expected.items()
    }


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
