from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.kafka.partitions import TopicPartition
from tidemill.sources.kafka.shares import PartitionRange, share, split

LAGS = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)


@given(LAGS, st.integers(1, 20_000))
def test_a_share_is_in_proportion_and_stops_nobody(lags: list[int], most: int) -> None:
    parts = [TopicPartition("t", n) for n in range(len(lags))]
    starts = {part: 100 * part.partition for part in parts}
    ends = {part: starts[part] + lag for part, lag in zip(parts, lags, strict=True)}
    found = share(starts, ends, most)
    taken = [found[part] - starts[part] for part in parts]
    assert all((0 < one <= lag) if lag else one == 0 for one, lag in zip(taken, lags, strict=True))
    if sum(lags) <= most:
        assert taken == lags
    else:
        assert sum(taken) <= most + len(parts)
        assert all(one <= most * lag / sum(lags) + 1 for one, lag in zip(taken, lags, strict=True))


@given(LAGS, st.none() | st.integers(1, 30), st.none() | st.integers(1, 5_000))
def test_splits_are_the_ranges(lags: list[int], least: int | None, most: int | None) -> None:
    ranges = [PartitionRange(TopicPartition("t", n), 7, 7 + lag) for n, lag in enumerate(lags)]
    parts = split(ranges, least, most)
    read = [(part.where, at) for part in parts for at in range(part.start, part.end)]
    assert read == [(r.where, at) for r in ranges for at in range(r.start, r.end)]
    assert all(part.size > 0 for part in parts)
    if most is not None:
        assert all(part.size <= most for part in parts)
