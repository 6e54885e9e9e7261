"""A request that its sender repeats is stored once, whatever fails or dies in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.receivers.driver.driver_world import block, driver, faults
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common.clock import ManualClock
from tidemill.receivers import HttpReceiver
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver import block_tracker as module
from tidemill.receivers.driver.block_tracker import BlockTracker
from tidemill.receivers.request_keys import (
    KeyMemory,
    KeySettings,
    RepeatedRequestsError,
    RequestKey,
)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)


def request(number: int, body: bytes = b"body") -> RequestKey:
    return RequestKey.from_request(f"key-{number}", body, 1)


def requests(*numbers: int) -> list[RequestKey]:
    return [request(number) for number in numbers]


SHARED = {"a": KeySettings(1000, "orders"), "b": KeySettings(1000, "orders")}


def tracker_on(
    storage: LocalStorage | None, keys: dict[str, KeySettings] | None = None
) -> BlockTracker:
    return BlockTracker(storage, ManualClock(), keys=keys or SHARED).start()


# -- the memory ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=30), st.integers(0, 12))
def test_at_least_the_last_requests_are_remembered_and_not_many_more(
    sizes: list[int], remembered: int
) -> None:
    memory = KeyMemory()
    stored: list[RequestKey] = []
    for number, size in enumerate(sizes):
        new = requests(*range(len(stored), len(stored) + size))
        assert memory.known(new) == []
        memory.add(f"input-0-a-{number}", new)
        memory.trim(remembered)
        stored += new
    expected = stored[len(stored) - remembered :] if remembered else []
    assert memory.known(expected) == expected
    assert len(memory) <= remembered + 3 if remembered else len(memory) == 0
    again = KeyMemory.from_json(memory.to_json())
    assert again.known(stored) == memory.known(stored)


def test_a_request_is_known_as_it_was_stored() -> None:
    memory = KeyMemory()
    memory.add("input-0-a-0", [request(1, b"one")])
    assert memory.known([request(1, b"another")]) == [request(1, b"one")]
    memory.remove("input-0-a-0")
    memory.remove("input-0-a-0")
    assert memory.known([request(1)]) == []


# -- with the blocks -------------------------------------------------------------------------------


def test_a_block_with_a_request_that_was_stored_before_is_refused_as_a_whole(
    tmp_path: Path,
) -> None:
    storage = LocalStorage(str(tmp_path))
    tracker = tracker_on(storage)
    tracker.add("a", block(0), keys=requests(1, 2))
    for each in (tracker, again := tracker_on(storage)):
        with pytest.raises(RepeatedRequestsError) as caught:
            each.add("a", block(1, run="b2"), keys=requests(2, 3))
        assert caught.value.requests == (request(2),)
        assert each.end("a") == 1
        assert each.add("a", block(0), keys=requests(1, 2)), "the block itself, reported again"
    assert again.add("a", block(2, run="b2"), keys=requests(3))


def test_requests_outlive_the_batches_of_their_blocks(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    tracker = tracker_on(storage)
    tracker.add("a", block(0), keys=requests(1))
    tracker.forget("a", 1)
    for each in (tracker, tracker_on(storage), tracker_on(storage)):
        with pytest.raises(RepeatedRequestsError):
            each.add("a", block(1), keys=requests(1))


@pytest.mark.parametrize(("shared_as", "is_repeated"), [("orders", True), (None, False)])
def test_streams_that_share_keys_recognise_each_others_requests(
    shared_as: str | None, is_repeated: bool
) -> None:
    settings = KeySettings(10, shared_as)
    tracker = tracker_on(None, {"a": settings, "b": settings, "c": KeySettings(10, "others")})
    tracker.add("a", block(0), keys=requests(1))
    assert tracker.add("c", block(0, stream=2), keys=requests(1))
    if is_repeated:
        with pytest.raises(RepeatedRequestsError):
            tracker.add("b", block(0, stream=1), keys=requests(1))
    else:
        assert tracker.add("b", block(0, stream=1), keys=requests(1))


def test_requests_in_blocks_that_died_with_the_driver_may_come_again(tmp_path: Path) -> None:
    """Without a write-ahead log a block dies with its executors. Processed ones are not lost."""
    storage = LocalStorage(str(tmp_path))
    tracker = tracker_on(storage)
    tracker.add("a", block(0, slice_=None), keys=requests(1))
    tracker.add("a", block(1, slice_=None), keys=requests(2))
    tracker.forget("a", 1)
    again = tracker_on(storage)
    with pytest.raises(RepeatedRequestsError):
        again.add("a", block(0, run="b2"), keys=requests(1))
    assert again.add("a", block(0, run="b2"), keys=requests(2))


def test_a_record_that_failed_after_it_was_written_does_not_bring_a_request_back(
    tmp_path: Path,
) -> None:
    """The sender has sent it to the receiver of another stream since."""
    storage = LocalStorage(str(tmp_path))
    tracker = tracker_on(storage)
    with faults(tmp_path, "block.after-add@1=error"), pytest.raises(RuntimeError):
        tracker.add("a", block(0), keys=requests(1, 2))
    assert tracker.add("b", block(0, stream=1), keys=requests(1))
    again = tracker_on(storage)
    assert (again.end("a"), again.end("b")) == (0, 1)
    assert again.add("a", block(1), keys=requests(2))


def test_a_log_of_keys_that_is_longer_than_its_records_is_not_written_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_AFTER", 1)
    storage = LocalStorage(str(tmp_path))
    tracker = tracker_on(storage)
    compacted = []
    compact = tracker._compact
    monkeypatch.setattr(tracker, "_compact", lambda: (compacted.append(1), compact()))
    for n in range(600):
        tracker.add("a", block(n), keys=requests(n))
        tracker.forget("a", n + 1)
    assert len(compacted) < 60


# -- over the network ------------------------------------------------------------------------------


def test_the_driver_tells_a_receiver_which_requests_it_knows(tmp_path: Path) -> None:
    receivers = [HttpReceiver(shared_keys="orders"), HttpReceiver(shared_keys="orders")]
    with driver(executors=3, receivers=receivers, folder=tmp_path) as it:
        for launch in it.launches(2):
            it.register(launch.stream_id, 1, launch.on[0])
        assert it.add_block(block(0), keys=tuple(requests(1))).accepted
        answer = it.add_block(block(0, stream=1), keys=tuple(requests(1, 2)))
        assert (answer.accepted, answer.repeated) == (False, (request(1),))
        assert it.add_block(block(1, stream=1), keys=tuple(requests(2))).accepted


# -- anything, in any order ------------------------------------------------------------------------


class Senders(RuleBasedStateMachine):
    """Senders repeat requests to two receivers, which die, and so does the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-test-"))
        self.storage = LocalStorage(str(self.folder / "checkpoint"))
        self.tracker = tracker_on(self.storage)
        self.content: dict[str, list[int]] = {}
        self.processed: list[int] = []
        self.acknowledged: set[int] = set()
        self.number = 0
        self.blocks = 0

    @initialize(compact_after=st.sampled_from([1, 3, 1000]))
    def settings(self, compact_after: int) -> None:
        self.saved = module.COMPACT_AFTER
        module.COMPACT_AFTER = compact_after

    def teardown(self) -> None:
        module.COMPACT_AFTER = getattr(self, "saved", module.COMPACT_AFTER)
        shutil.rmtree(self.folder)

    @rule(
        name=st.sampled_from("ab"),
        new=st.integers(0, 3),
        repeated=st.lists(st.integers(0, 50), max_size=3, unique=True),
        fault=st.sampled_from(["", "", "log.append", "log.appended", "block.after-add"]),
    )
    def send(self, name: str, new: int, repeated: list[int], fault: str) -> None:
        """Some new requests and some old ones arrive, and go into one block, as in a receiver."""
        group = [n for n in repeated if n < self.number]
        group += range(self.number, self.number + new)
        self.number += new
        action = "error" if fault.startswith("block") else "enospc"
        with faults(self.folder, f"{fault}@1={action}") if fault else nullcontext():
            while group:
                info = self._block(name, group)
                try:
                    assert self.tracker.add(name, info, keys=requests(*group))
                    self.acknowledged.update(group)
                    break
                except RepeatedRequestsError as error:
                    known = [n for n in group if request(n) in error.requests]
                    assert known, "or a receiver would go on for ever"
                    self.acknowledged.update(known)
                    group = [n for n in group if n not in known]
                except (OSError, RuntimeError):
                    break  # its senders hear nothing, and will send again

    def _block(self, name: str, group: list[int]) -> BlockInfo:
        info = block(self.blocks, stream=ord(name), run="1")
        self.blocks += 1
        self.content[info.block_id] = list(group)
        return info

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 4))
    def forget(self, name: str, count: int) -> None:
        """Batches are planned with what the driver knows, and are done."""
        first = self.tracker._stream(name).first
        for info in self.tracker.forget(name, first + count):
            self.processed += self.content[info.block_id]

    @rule(compaction_fails=st.booleans())
    def restart_driver(self, compaction_fails: bool) -> None:
        if compaction_fails:
            with faults(self.folder, "block.before-compact@1=error"), pytest.raises(RuntimeError):
                tracker_on(self.storage)
        self.tracker = tracker_on(self.storage)

    @invariant()
    def every_acknowledged_request_is_stored_once_and_none_twice(self) -> None:
        stored = Counter(self.processed)
        for info in self.tracker.all_blocks():
            stored.update(self.content[info.block_id])
        assert [n for n, count in stored.items() if count > 1] == []
        assert self.acknowledged <= set(stored)


TestSenders = Senders.TestCase
