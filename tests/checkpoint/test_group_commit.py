"""Group commits on a storage that is slow, and on one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.waiting import wait_for
from tidemill.checkpoint.group_commit import MOST_HANGING, GroupCommit

LONG_S = 600.0


class Storage:
    """Takes one item a write. A write of an item whose gate is shut waits for the gate."""

    def __init__(self) -> None:
        self.gates: dict[int, threading.Event] = {}
        self.begun: list[int] = []
        self.written: list[int] = []
        self.abandoned = 0

    def write(self, items: Sequence[int]) -> Sequence[str]:
        (item,) = items
        self.begun.append(item)
        if item in self.gates:
            assert self.gates[item].wait(LONG_S)
        self.written.append(item)
        return [str(item)]

    def shut(self, *items: int) -> None:
        self.gates.update((item, threading.Event()) for item in items)

    def open(self, *items: int) -> None:
        for item in items or self.gates:
            self.gates[item].set()

    def note_abandoned(self) -> None:
        self.abandoned += 1

    def commits(self, timeout_s: float) -> GroupCommit[int, str]:
        return GroupCommit(
            "the log", self.write, lambda group, item: False, timeout_s, self.note_abandoned
        )


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage()
    yield storage
    storage.open()


@pytest.fixture
def add(storage: Storage) -> Iterator[Callable[[GroupCommit[int, str], int], Future[str]]]:
    with ThreadPoolExecutor(32) as threads:
        yield lambda commits, item: threads.submit(commits.add, item)
        storage.open()


def test_time_in_the_queue_does_not_count(
    storage: Storage, add: Callable[[GroupCommit[int, str], int], Future[str]]
) -> None:
    """Two writes hang until they are abandoned; the third item has waited for both, and is written."""
    storage.shut(0, 1)
    commits = storage.commits(timeout_s=1.0)
    added = []
    for item in range(3):
        added.append(add(commits, item))
        wait_for(lambda item=item: storage.begun + _queued(commits) == [*range(item + 1)], "it")
    for each in added[:2]:
        with pytest.raises(TimeoutError, match=r"the log has not taken a record within 1 s"):
            each.result(LONG_S)
    assert added[2].result(LONG_S) == "2"
    assert storage.abandoned == 2


def _queued(commits: GroupCommit[int, str]) -> list[int]:
    return [waiting.item for waiting in list(commits._queue)]


def test_only_so_many_writes_hang(
    storage: Storage, add: Callable[[GroupCommit[int, str], int], Future[str]]
) -> None:
    storage.shut(*range(10))
    commits = storage.commits(timeout_s=0.05)
    for added in [add(commits, item) for item in range(10)]:
        with pytest.raises(TimeoutError):
            added.result(LONG_S)
    assert len(storage.begun) == storage.abandoned == MOST_HANGING
    with pytest.raises(TimeoutError, match=rf"takes no records: {MOST_HANGING} writes hang"):
        commits.add(10)
    assert 10 not in storage.begun
    commits.close()


def test_when_a_write_that_hung_ends_the_next_one_begins(
    storage: Storage, add: Callable[[GroupCommit[int, str], int], Future[str]]
) -> None:
    storage.shut(*range(MOST_HANGING))
    commits = storage.commits(timeout_s=0.05)
    for item in range(MOST_HANGING):
        with pytest.raises(TimeoutError):
            commits.add(item)
    commits._timeout_s = LONG_S
    last = add(commits, 100)
    wait_for(lambda: commits._queue, "the queue")
    assert 100 not in storage.begun
    storage.open(2)
    assert last.result(LONG_S) == "100"
    storage.open()
    wait_for(lambda: commits._hanging == 0, "the writes that hung")


def test_closing_waits_for_no_write_that_hangs(
    storage: Storage, add: Callable[[GroupCommit[int, str], int], Future[str]]
) -> None:
    storage.shut(0, 1)
    commits = storage.commits(timeout_s=LONG_S)
    added = [add(commits, 0), add(commits, 1)]
    wait_for(lambda: storage.begun and commits._queue, "both items")
    commits._timeout_s = 0.05
    commits.close()
    for each in added:
        with pytest.raises(TimeoutError):
            each.result(LONG_S)


def test_a_process_with_too_many_threads_says_so(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = storage.commits(timeout_s=LONG_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            commits.add(1)
    assert commits.add(2) == "2"


def test_a_process_with_too_many_threads_says_so_to_all_who_wait(
    storage: Storage,
    add: Callable[[GroupCommit[int, str], int], Future[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write before theirs hangs, and no thread can be started for another one."""
    storage.shut(0)
    commits = storage.commits(timeout_s=0.5)
    hanging, *waiting = [add(commits, item) for item in range(3)]
    wait_for(lambda: storage.begun and len(commits._queue) == 2, "the queue")

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TimeoutError):
            hanging.result(LONG_S)
        for each in waiting:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                each.result(LONG_S)
    assert commits.add(3) == "3"
