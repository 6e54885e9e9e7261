from __future__ import annotations

from operator import add
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import SparkContext

from tidemill.spark.rdds.combine import combine_by_key, group_by_key
from tidemill.tasks.combine_step import Combiner

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


def test_nothing_is_reduced_to_partitions_without_records(sc: SparkContext) -> None:
    nothing = sc.emptyRDD()
    for wanted in (None, 1, 2):
        for reduced in (
            combine_by_key(nothing, Combiner.reducing(add), wanted),
            group_by_key(nothing, wanted),
        ):
            assert reduced.getNumPartitions() == (wanted or 1)
            assert reduced.collect() == []
