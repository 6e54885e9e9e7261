"""Topics that were deleted and made again: the jump to the new one, and a crash after each of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.checkpoint.source_log import SourceLog
from tidemill.checkpoint.storage import open_storage
from tidemill.errors import DataLossError
from tidemill.kafka.partitions import Positions, TopicPartition
from tidemill.sources.kafka.topic_ids import TOPIC_IDS, TopicIds

A, B, NEW = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1)


class Cluster:
    def __init__(self) -> None:
        self.ids = {"a": "1", "b": "1"}

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return {topic: id_ for topic, id_ in self.ids.items() if topic in topics}

    def earliest(self, partitions: Any) -> Positions:
        return dict.fromkeys(partitions, 0)


class Stream:
    """What a source does with the ids, and the durable end of its last batch."""

    def __init__(self, folder: Path, ends: Positions, may_lose: bool = True) -> None:
        self.cluster = Cluster()
        self._log = SourceLog(open_storage(str(folder)), "0")
        self.ends = ends
        self._may_lose = may_lose
        self.start()

    def start(self) -> None:
        """Begin a run. What an earlier one had in memory is gone."""
        self.ids = TopicIds(self.cluster, self._log, self._may_lose)  # type: ignore[arg-type]
        self.ids.look(["a", "b"])

    def plan(self, **rows: int) -> Positions:
        """Plan a batch, which is durable if the caller keeps its ends."""
        jumps = self.ids.jumps(self.ends, [A, B, NEW])
        ends = {part: end + rows.get(part.topic, 0) for part, end in self.ends.items()}
        return {**ends, **jumps}


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path, {A: 5, B: 7})


def test_a_topic_that_stays(stream: Stream) -> None:
    stream.ends = stream.plan(a=1)
    stream.start()
    assert stream.plan(b=1) == {A: 6, B: 8}


@pytest.mark.parametrize("crash", ["none", "before", "planned", "logged", "later"])
def test_the_stream_jumps_once_whatever_dies(stream: Stream, crash: str) -> None:
    stream.cluster.ids["a"] = "2"
    if crash != "before":
        stream.ids.look(["a", "b"])
        if crash == "planned":
            assert stream.plan(b=1)[A] == 0  # offsets/N was not written
    if crash in ("before", "planned"):
        stream.start()
    stream.ends = stream.plan(b=1)
    assert stream.ends == {A: 0, B: 8}
    if crash == "logged":
        stream.start()
    for rows in range(1, 8):  # past the offset at which it has jumped
        stream.ends = stream.plan(a=1)
        assert stream.ends[A] == rows
        if crash == "later":
            stream.start()


def test_an_upgrade_that_leaves_out_a_topic_in_the_middle_of_a_jump(stream: Stream) -> None:
    """The program dies before the batch that jumps is logged, and its next version reads one topic less."""
    stream.cluster.ids = {"a": "2", "b": "2"}
    stream.start()
    assert stream.plan() == {A: 0, B: 0}
    stream.start()
    stream.ends = {A: 5}
    for rows in range(4):
        stream.ends = stream.plan(a=1)
        assert stream.ends == {A: rows}


def test_a_topic_that_the_cluster_leaves_out_once_jumps_once(stream: Stream) -> None:
    stream.cluster.ids = {"a": "2", "b": "1"}
    stream.start()
    stream.ends = stream.plan()
    stream.cluster.ids = {"b": "1", "c": "1"}
    stream.start()
    stream.ids.look(["a", "b", "c"])
    stream.ends = stream.plan(a=1)
    stream.cluster.ids = {"a": "2", "b": "1", "c": "1"}
    stream.start()
    assert stream.plan(a=1)[A] == 2


def test_what_need_not_jump(stream: Stream) -> None:
    stream.ends = {A: 0, B: 7}
    stream.cluster.ids["a"] = "2"
    stream.start()
    for rows in range(1, 4):
        stream.ends = stream.plan(a=1)
        assert stream.ends == {A: rows, B: 7}


def test_a_reader_that_wants_no_loss_is_told(tmp_path: Path) -> None:
    stream = Stream(tmp_path, {A: 5, B: 7}, may_lose=False)
    stream.cluster.ids["b"] = "2"
    with pytest.raises(DataLossError, match="topic b was deleted and made again"):
        stream.start()


def test_the_file_is_as_the_docstring_draws_it(stream: Stream) -> None:
    assert stream._log.get(TOPIC_IDS) == [{"ids": {"a": "1", "b": "1"}}]
    stream.cluster.ids["a"] = "2"
    stream.start()
    stream.plan()
    jump = {"from": {"a": {"0": 5}}, "to": {"a": {"0": 0}}, "ids": {"a": "2", "b": "1"}}
    assert stream._log.get(TOPIC_IDS) == [{"ids": {"a": "1", "b": "1"}, "jump": jump}]
