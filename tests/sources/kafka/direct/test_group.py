"""Commits to a consumer group that fail, hang, or come late: the stream never waits for them."""

from __future__ import annotations

import threading

import pytest

from tests.waiting import wait_for
from tidemill.errors import SourceError
from tidemill.kafka.partitions import Positions, TopicPartition
from tidemill.sources.kafka.direct import group
from tidemill.sources.kafka.direct.group import GroupCommits

PART = TopicPartition("t", 0)


class Group:
    """Answers when the test says so."""

    name = "g"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may_answer = threading.Semaphore(0)
        self.error: Exception | None = None
        self.is_closed = False

    def commit(self, positions: Positions) -> None:
        self.asked.append(positions[PART])
        self.may_answer.acquire()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.is_closed = True

    def wait_for(self, *asked: int) -> None:
        wait_for(lambda: self.asked == list(asked), f"commits of {asked}")


def test_one_commit_at_a_time_and_the_newest_next() -> None:
    it = Group()
    commits = GroupCommits(it)  # type: ignore[arg-type]
    commits.put({PART: 1})
    it.wait_for(1)
    for offset in (2, 3, 4):
        commits.put({PART: offset})
    it.may_answer.release(2)
    it.wait_for(1, 4)
    commits.put({PART: 4})
    commits.put({PART: 5})
    it.may_answer.release(2)
    commits.close()
    assert it.asked == [1, 4, 5]
    assert it.is_closed


def test_failures_are_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    it = Group()
    it.error = SourceError("it has members")
    commits = GroupCommits(it)  # type: ignore[arg-type]
    for count in range(1, 4):
        commits.put({PART: 1})
        it.wait_for(*[1] * count)
        it.may_answer.release()
    it.may_answer.release()
    commits.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "consumer group g (it has members)" in said


def test_a_stop_does_not_wait_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "LAST_COMMIT_S", 0.01)
    it = Group()
    commits = GroupCommits(it)  # type: ignore[arg-type]
    commits.put({PART: 1})
    it.wait_for(1)
    commits.close()
    assert not it.is_closed
    it.may_answer.release()
    wait_for(lambda: it.is_closed, "the end")
