"""Commits to a consumer group that fail, hang, or come late: the stream never waits for them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.kafka.partitions import Positions, TopicPartition
from tidemill.sources.kafka.direct import group
from tidemill.sources.kafka.direct.group import GroupCommits

PART = TopicPartition("t", 0)


class Cluster:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: list[Future[Any]] = []

    def commit(self, name: str, positions: Positions) -> Future[Any]:
        assert name == "g"
        self.asked.append(positions[PART])
        self.answers.append(Future())
        return self.answers[-1]

    def answer(self, error: Exception | None = None) -> None:
        if error is not None:
            self.answers[-1].set_exception(error)
        else:
            self.answers[-1].set_result(SimpleNamespace(topic_partitions=[]))


def test_one_commit_at_a_time_and_the_newest_next() -> None:
    cluster = Cluster()
    commits = GroupCommits(cluster, "g")  # type: ignore[arg-type]
    for offset in (1, 2, 3):
        commits.put({PART: offset})
    assert cluster.asked == [1]
    cluster.answer()
    commits.put({PART: 4})
    assert cluster.asked == [1, 4]
    cluster.answer()
    commits.put({PART: 4})
    assert cluster.asked == [1, 4]
    commits.close()


def test_failures_are_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    commits = GroupCommits(cluster, "g")  # type: ignore[arg-type]
    commits.put({PART: 1})
    for _ in range(3):
        cluster.answer(RuntimeError("the group has members"))
        commits.put({PART: 1})
    assert cluster.asked == [1, 1, 1, 1]
    cluster.answer()
    commits.close()
    assert len(caplog.records) == 1
    assert "consumer group g (the group has members)" in caplog.records[0].getMessage()


def test_an_answer_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    commits = GroupCommits(cluster, "g")  # type: ignore[arg-type]
    commits.put({PART: 1})
    commits.put({PART: 2})
    assert cluster.asked == [1]
    commits._give_up_ms = 0
    commits.put({PART: 3})
    assert cluster.asked == [1, 3]
    monkeypatch.setattr(group, "LAST_COMMIT_S", 0.01)
    commits.put({PART: 4})
    commits.close()
    assert cluster.asked == [1, 3, 4]
