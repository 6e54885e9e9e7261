"""Blocks that are reported at the same time share a record of the log: all of them are known, or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.receivers.driver.driver_world import block, faults
from tests.waiting import DEADLINE_S, wait_for
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.write_ahead_log import LogWriter, replay
from tidemill.common.clock import ManualClock
from tidemill.errors import ReceiverError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.request_keys import KeySettings, RepeatedRequestsError, RequestKey

KEYS = {name: KeySettings(remembered=100, shared_as="shop") for name in ("clicks", "views")}


class World:
    """A tracker whose first write waits until as many reports as wanted wait behind it."""

    def __init__(self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.storage = storage
        self.tracker = self.restarted()
        self.threads = ThreadPoolExecutor(64)
        self._entered, self._gate = threading.Event(), threading.Event()
        append = LogWriter.append

        def slow_append(log: LogWriter, payload: Any) -> Any:
            self._entered.set()
            assert self._gate.wait(DEADLINE_S)
            return append(log, payload)

        monkeypatch.setattr(LogWriter, "append", slow_append)

    def restarted(self) -> BlockTracker:
        return BlockTracker(self.storage, ManualClock(1000), keys=KEYS).start()

    def together(self, reports: Sequence[Callable[[BlockTracker], bool]]) -> list[Future[bool]]:
        """Make these reports one group, in their order, behind a block of its own."""
        first = self.threads.submit(self.tracker.add, "first", block(0, stream=9))
        assert self._entered.wait(DEADLINE_S)
        futures = []
        waiting = self.tracker._reports._queue
        for number, report in enumerate(reports, 1):
            futures.append(self.threads.submit(report, self.tracker))
            wait_for(lambda wanted=number: len(waiting) == wanted, "the report to wait")
        self._gate.set()
        assert first.result(DEADLINE_S)
        return futures

    def records(self) -> list[dict[str, Any]]:
        pieces = replay(self.storage, FOLDER)
        return [json.loads(payload) for piece in pieces for _, payload in piece.records]


@pytest.fixture
def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(LocalStorage(str(tmp_path / "checkpoint")), monkeypatch)
    yield world
    world.threads.shutdown()


def report(
    stream: str, info: BlockInfo, keys: Sequence[RequestKey] = (), **options: Any
) -> Callable[[BlockTracker], bool]:
    return lambda tracker: tracker.add(stream, info, keys=keys, **options)


def key(name: str) -> RequestKey:
    return RequestKey.from_request(name, name.encode(), 1)


def ids(tracker: BlockTracker, stream: str) -> list[str]:
    return [each.block_id for each in tracker.known(stream)]


def test_however_many_receivers_report_there_is_one_write(it: World) -> None:
    blocks = {f"stream {n}": [block(0, stream=n), block(1, stream=n)] for n in range(20)}
    reports = [report(name, each) for name, both in blocks.items() for each in both]
    assert [each.result(DEADLINE_S) for each in it.together(reports)] == [True] * 40
    assert [next(iter(each)) for each in it.records()] == ["known", "add", "adds"]
    again = it.restarted()
    for name, both in blocks.items():
        assert it.tracker.known(name) == both
        assert ids(again, name) == [each.block_id for each in both]


@pytest.mark.parametrize("plan", ["log.append@2=enospc", "block.after-add@2=error"])
def test_a_group_that_could_not_be_written_is_dropped_whole(
    it: World, tmp_path: Path, plan: str
) -> None:
    """It may be in the log all the same; nobody was told that its blocks are known."""
    new: list[BlockInfo] = []
    with faults(tmp_path, plan):
        failed = it.together(
            [
                report("clicks", block(0), [key("a")], on_new=new.append),
                report("clicks", block(1), [key("b")], on_new=new.append),
                report("views", block(0, stream=1), on_new=new.append),
            ]
        )
        for each in failed:
            with pytest.raises((OSError, RuntimeError)):
                each.result(DEADLINE_S)
    assert (ids(it.tracker, "clicks"), ids(it.tracker, "views"), new) == ([], [], [])
    # The sender of "a" repeats its request elsewhere; nothing of clicks comes again.
    assert it.tracker.add("views", block(1, stream=1), keys=[key("a")])
    again = it.restarted()
    for tracker in (it.tracker, again):
        assert ids(tracker, "clicks") == []
        assert ids(tracker, "views") == [block(1, stream=1).block_id]
        assert tracker.held("clicks")[0] == 0
    with pytest.raises(RepeatedRequestsError):
        again.add("clicks", block(7), keys=[key("a")])
    assert again.add("clicks", block(8), keys=[key("b")])


def test_a_group_that_was_written_and_never_answered_is_known_after_a_crash(
    it: World, tmp_path: Path
) -> None:
    with faults(tmp_path, "block.after-add@2=error"):
        failed = it.together([report("clicks", block(0), [key("a")]), report("views", block(1))])
        for each in failed:
            with pytest.raises(RuntimeError):
                each.result(DEADLINE_S)
    again = it.restarted()
    assert (len(again.known("clicks")), len(again.known("views"))) == (1, 1)
    with pytest.raises(
        RepeatedRequestsError
    ):  # so a request that is sent again is not stored again
        again.add("clicks", block(7), keys=[key("a")])


def test_what_is_reported_twice_in_a_group_is_added_once(it: World) -> None:
    twice = it.together([report("clicks", block(0)), report("clicks", block(0))])
    assert [each.result(DEADLINE_S) for each in twice] == [True, True]
    assert it.tracker.known("clicks") == [block(0)]
    assert len(it.restarted().known("clicks")) == 1


@pytest.mark.parametrize("other", ["clicks", "views"])
def test_a_request_that_comes_twice_in_a_group_is_stored_once(it: World, other: str) -> None:
    first, second, third = it.together(
        [
            report("clicks", block(0), [key("a"), key("b")]),
            report(other, block(1), [key("c"), key("a")]),
            report("clicks", block(2), [key("d")]),
        ]
    )
    assert (first.result(DEADLINE_S), third.result(DEADLINE_S)) == (True, True)
    with pytest.raises(RepeatedRequestsError) as caught:
        second.result(DEADLINE_S)
    assert caught.value.requests == (key("a"),)
    assert ids(it.tracker, "clicks") == [block(0).block_id, block(2).block_id]
    assert ids(it.restarted(), "clicks") == [block(0).block_id, block(2).block_id]


def test_a_block_that_is_refused_does_not_harm_its_neighbours(it: World) -> None:
    def refuse() -> None:
        raise ReceiverError("another start has replaced this receiver")

    first, second, third = it.together(
        [
            report("clicks", block(0)),
            report("clicks", block(1), admit=refuse),
            report("clicks", block(2)),
        ]
    )
    assert (first.result(DEADLINE_S), third.result(DEADLINE_S)) == (True, True)
    with pytest.raises(ReceiverError, match="another start"):
        second.result(DEADLINE_S)
    assert ids(it.restarted(), "clicks") == [block(0).block_id, block(2).block_id]


def test_a_tracker_that_is_closed_refuses_those_who_wait(it: World) -> None:
    def close_first(tracker: BlockTracker) -> bool:
        def close() -> None:
            tracker._is_closed = True  # on another thread it would wait for the lock

        return tracker.add("clicks", block(0), admit=close)

    assert [
        each.result(DEADLINE_S) for each in it.together([close_first, report("clicks", block(1))])
    ] == [
        False,
        False,
    ]
    assert it.restarted().known("clicks") == []
