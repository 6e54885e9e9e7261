"""Windows: for any batches, window and slide the result equals a plain recomputation."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import reduce
from operator import add, sub
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manual_stream import Stream
from tests.streaming.lineage import lineage_size
from tidemill.errors import BatchError, UsageError
from tidemill.streaming.graph.reduced_windows import (
    ReducedWindowNode,
    _MergeWindow,
    _SplitBlock,
    _ToPairs,
)
from tidemill.testing import collected

Batches = list[list[tuple[str, int]]]
pairs = st.tuples(st.sampled_from("abc"), st.integers(-3, 3))
batches_of_pairs = st.lists(st.lists(pairs, max_size=4), min_size=1, max_size=7)


def windows_of(batches: list[list[Any]], window: int, slide: int) -> list[list[Any]]:
    """Recompute the records of each window from scratch, one window for every slide."""
    return [
        [record for batch in batches[max(0, end - window) : end] for record in batch]
        for end in range(slide, len(batches) + 1, slide)
    ]


def reduced(records: list[tuple[Any, int]]) -> dict[Any, int]:
    values: dict[str, list[int]] = {}
    for key, value in records:
        values.setdefault(key, []).append(value)
    return {key: reduce(add, of_key) for key, of_key in values.items()}


def grouped(records: list[tuple[str, int]]) -> dict[str, list[int]]:
    values: dict[str, list[int]] = {}
    for key, value in records:
        values.setdefault(key, []).append(value)
    return values


@settings(max_examples=12)
@given(batches_of_pairs, st.integers(1, 4), st.integers(1, 3), st.sampled_from([None, 1, 2]))
def test_every_window_operation_equals_a_recomputation(
    new_stream: Callable[..., Stream],
    batches: Batches,
    window: int,
    slide: int,
    partitions: int | None,
) -> None:
    stream = new_stream()
    source = stream.ssc.queueStream(batches)
    plain = collected(source.window(window, slide))
    incremental = collected(source.reduceByKeyAndWindow(add, sub, window, slide, partitions))
    full = collected(source.reduceByKeyAndWindow(add, None, window, slide, partitions))
    groups = collected(source.groupByKeyAndWindow(window, slide, partitions).mapValues(list))
    counts = collected(source.countByWindow(window, slide))
    values = collected(source.countByValueAndWindow(window, slide, partitions))
    sums = collected(source.map(lambda pair: pair[1]).reduceByWindow(add, sub, window, slide))
    stream.start_and_run(len(batches))
    stream.ssc.stop(stopSparkContext=False)

    expected = windows_of(batches, window, slide)
    assert [sorted(records) for records in plain] == [sorted(records) for records in expected]
    assert [dict(result) for result in incremental] == [reduced(records) for records in expected]
    assert [dict(result) for result in full] == [reduced(records) for records in expected]
    assert [dict(result) for result in groups] == [grouped(records) for records in expected]
    assert counts == [[len(records)] for records in expected]
    assert [dict(result) for result in values] == [dict(Counter(records)) for records in expected]
    assert sums == [[sum(v for _, v in records)] if records else [] for records in expected]


@settings(max_examples=300)
@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.integers(-5, 5)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_merging_blocks_step_by_step_equals_merging_them_all(
    batches: list[dict[int, int]], window: int, slide: int, partitions: int
) -> None:
    """Checks the arithmetic of the incremental window alone, without Spark and in any partitioning."""
    os.environ.setdefault("PYTHONHASHSEED", "0")  # PySpark sets it for its workers
    blocks = [
        {p: part for p, (_, part) in _SplitBlock(partitions)((time, batch))}
        for time, batch in enumerate(batches, 1)
    ]
    states: list[Any] = [None] * partitions
    for end in range(slide, len(batches) + 1, slide):
        start = end - window
        result: dict[str, int] = {}
        for p in range(partitions):
            of_partition = [(t, block[p]) for t, block in enumerate(blocks, 1) if p in block]
            if states[p] is None or slide >= window:
                elements = [(t, b) for t, b in of_partition if start < t <= end]
            else:
                moved = [(t, b) for t, b in of_partition if start - slide < t <= start]
                moved += [(t, b) for t, b in of_partition if end - slide < t <= end]
                elements = [(None, states[p]), *moved]
            ((_, states[p]),) = _MergeWindow(add, sub, start)(0, elements)
            result.update(_ToPairs(None)(0, [(None, states[p])]))
        flat = [[*batch.items()] for batch in batches[:end]]
        assert result == reduced(windows_of(flat, window, slide)[-1])


def test_a_key_that_left_the_window_is_gone_without_a_filter(stream: Stream) -> None:
    source = stream.ssc.queueStream([[("a", 1)], [("b", 1)], [], []])
    results = collected(source.reduceByKeyAndWindow(add, sub, 2))
    stream.start_and_run(4)
    assert [sorted(result) for result in results] == [
        [("a", 1)],
        [("a", 1), ("b", 1)],
        [("b", 1)],
        [],
    ]


def test_a_filter_hides_pairs_but_does_not_forget_them(stream: Stream) -> None:
    source = stream.ssc.queueStream([[("a", 1)], [("a", -1)], [("a", 5)], []])
    positive = source.reduceByKeyAndWindow(add, sub, 2, 1, filterFunc=lambda pair: pair[1] > 0)
    results = collected(positive)
    stream.start_and_run(4)
    assert results == [[("a", 1)], [], [("a", 4)], [("a", 5)]]


def test_a_window_longer_than_its_lineage_may_grow(stream: Stream) -> None:
    """After several refreshes the incremental result is still right and its lineage still short."""
    batches = [[("k", n)] for n in range(3 * ReducedWindowNode.REFRESH_EVERY + 5)]
    source = stream.ssc.queueStream(batches)
    depths: list[int] = []
    sums: list[int] = []

    def look(rdd: Any) -> None:
        depths.append(lineage_size(rdd))
        sums.append(dict(rdd.collect())["k"])

    source.reduceByKeyAndWindow(add, sub, 4).foreachRDD(look)
    stream.start_and_run(len(batches))
    assert sums == [sum(range(max(0, n - 3), n + 1)) for n in range(len(batches))]
    refresh = ReducedWindowNode.REFRESH_EVERY
    # Until the window is full for the first time, its lineage is shorter.
    assert max(depths[2 * refresh :]) <= max(depths[refresh : 2 * refresh])


def test_batches_that_outgrow_one_partition_keep_the_window_right(stream: Stream) -> None:
    """A window has several partitions while a large batch is in it: that depends on its batches alone."""
    small = [[("a", 1), ("b", 1)]] * 3
    large = [[(f"k{n % 7}", 1) for n in range(50_000)]]
    batches = small + large + small * 2
    windowed = stream.ssc.queueStream(batches).reduceByKeyAndWindow(add, sub, 4)
    results = collected(windowed)
    partitions: list[int] = []
    windowed.foreachRDD(lambda rdd: partitions.append(rdd.getNumPartitions()))
    stream.start_and_run(len(batches))
    assert [dict(r) for r in results] == [reduced(w) for w in windows_of(batches, 4, 1)]
    assert partitions == [1, 1, 1, 2, 2, 2, 2, 1, 1, 1]


def test_windows_of_windows(stream: Stream) -> None:
    batches = [[n] for n in range(8)]
    source = stream.ssc.queueStream(batches)
    results = collected(source.window(2, 2).window(4, 4).map(lambda n: n))
    stream.start_and_run(8)
    assert [sorted(result) for result in results] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_slide_longer_than_the_window_skips_the_batches_between(stream: Stream) -> None:
    batches = [[("k", n)] for n in range(6)]
    source = stream.ssc.queueStream(batches)
    results = collected(source.reduceByKeyAndWindow(add, sub, 1, 3))
    stream.start_and_run(6)
    assert results == [[("k", 2)], [("k", 5)]]


def test_count_by_window_of_nothing_is_zero(stream: Stream) -> None:
    results = collected(stream.ssc.queueStream([["x"]]).countByWindow(2, 1))
    stream.start_and_run(4)
    assert results == [[1], [1], [0], [0]]


@pytest.mark.parametrize("durations", [(2.5, 1), (2, 1.5), (0, 1), (2, 0), (-1, 1), ("2", 1)])
def test_durations_that_do_not_fit_are_refused_at_the_call(stream: Stream, durations: Any) -> None:
    source = stream.ssc.queueStream([[("a", 1)]])
    for operation in (
        source.window,
        source.countByWindow,
        source.countByValueAndWindow,
        source.groupByKeyAndWindow,
        lambda *d: source.reduceByWindow(add, sub, *d),
        lambda *d: source.reduceByKeyAndWindow(add, sub, *d),
    ):
        with pytest.raises(UsageError, match="Duration must be"):
            operation(*durations)


def test_a_window_of_one_batch_does_not_free_the_rdds_of_the_next_window(stream: Stream) -> None:
    computed = stream.ssc.sparkContext.accumulator(0)

    def count(record: int) -> int:
        computed.add(1)
        return record

    source = stream.ssc.queueStream([[n] for n in range(6)]).map(count)
    collected(source.window(4))
    stream.ssc.start()
    for batch in range(1, 7):
        stream.driver.run(1)
        assert computed.value == batch, "every record is computed once"


def test_a_slice_of_the_future_takes_nothing_from_later_batches(stream: Stream) -> None:
    source = stream.ssc.queueStream([[1], [2], [3]])
    windowed = source.window(2)
    counted = source.countByValueAndWindow(3, 1)
    plain, counts = collected(windowed), collected(counted)
    stream.start_and_run(1)
    for each in (source, windowed, counted):
        assert len(each.slice(1, 2)) == 1
    stream.driver.run(2)
    assert [sorted(batch) for batch in plain] == [[1], [1, 2], [2, 3]]
    assert [sorted(batch) for batch in counts][-1] == [(1, 1), (2, 1), (3, 1)]


def test_a_key_that_is_not_equal_to_itself_is_named(stream: Stream) -> None:
    source = stream.ssc.queueStream([[float("nan")], [1.0], [1.0]])
    collected(source.countByValueAndWindow(2, 1))
    stream.ssc.start()
    with pytest.raises(BatchError, match="the key nan left the window but cannot be found"):
        stream.driver.run(3)


def test_what_a_window_without_records_is_reduced_to_counts_as_nothing(
    stream: Stream, tmp_path: Path
) -> None:
    pairs = stream.ssc.textFileStream(str(tmp_path)).map(lambda line: (line, 1))  # no partition
    counts = [
        collected(reduced.count())
        for reduced in (
            pairs.reduceByKey(add),
            pairs.groupByKey(),
            pairs.join(pairs),
            pairs.reduceByKeyAndWindow(add, None, 2, 1),
            pairs.reduceByKeyAndWindow(add, sub, 2, 1),
        )
    ]
    stream.start_and_run(2)
    assert counts == [[[0], [0]]] * 5
