from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.kafka.partitions import (
    TopicPartition,
    described,
    from_json,
    parse_assignment,
    parse_positions,
    to_json,
)

POSITIONS = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 20)),
    st.integers(0, 1 << 60),
)


@given(POSITIONS)
def test_positions_come_back_from_their_json(positions: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(positions)) == positions


@pytest.mark.parametrize(
    "text",
    ["", "5", "[]", '{"t": 5}', '{"t": {"x": 1}}', '{"t": {"0": "a"}}', '{"t": {"0": true}}'],
)
def test_what_is_no_position_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="expected JSON such as"):
        parse_positions(text)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"t": 0}', '{"t": ["0"]}', '{"t": [-1]}', '{"t": []}']
)
def test_what_is_no_assignment_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="expected JSON such as"):
        parse_assignment(text)


def test_partitions_in_a_message() -> None:
    assert described([TopicPartition("t", 1), TopicPartition("t", 0)]) == "t-0, t-1"
    many = [TopicPartition("t", n) for n in range(8)]
    assert described(many) == "t-0, t-1, t-2, t-3, t-4 and 3 more"
