"""Every block belongs to exactly one range of numbers, whatever happens to the driver."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.checkpoint.drawings import drawings
from tests.receivers.driver.driver_world import block, faults
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_segments import segments
from tidemill.checkpoint.write_ahead_log import LogWriter, replay
from tidemill.common.clock import ManualClock
from tidemill.errors import DamagedCheckpointError
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.driver import block_tracker as module
from tidemill.receivers.driver.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.driver.stream_blocks import REMEMBERED_RUNS


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(os, "fdatasync", lambda handle: None)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "checkpoint"))


def tracker_on(storage: LocalStorage | None) -> BlockTracker:
    return BlockTracker(storage, ManualClock(1000)).start()


def records(storage: LocalStorage) -> list[dict[str, Any]]:
    return [json.loads(p) for segment in replay(storage, FOLDER) for _, p in segment.records]


def without_places(blocks: list[BlockInfo]) -> list[BlockInfo]:
    return [replace(each, places=()) for each in blocks]


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_blocks_are_numbered_as_they_are_reported(storage: LocalStorage, durable: bool) -> None:
    tracker = tracker_on(storage if durable else None)
    assert (tracker.end("clicks"), tracker.known("clicks")) == (0, [])
    blocks = [block(n) for n in range(5)]
    assert all(tracker.add("clicks", each) for each in blocks)
    assert tracker.add("views", block(0, stream=1))
    assert tracker.end("clicks") == 5
    assert tracker.blocks("clicks", 0, 2) + tracker.blocks("clicks", 2, 5) == blocks
    assert tracker.blocks("clicks", 3, 3) == []
    assert tracker.blocks("views", 0, 1) == [block(0, stream=1)]
    assert tracker.all_blocks() == [*blocks, block(0, stream=1)]


def test_what_is_held_goes_down_with_what_is_forgotten() -> None:
    tracker = tracker_on(None)
    for n in range(3):
        tracker.add("clicks", block(n, bytes=100))
    assert tracker.held("clicks")[0] == 300
    assert tracker.forget("clicks", 2) == [block(0, bytes=100), block(1, bytes=100)]
    assert tracker.held("clicks")[0] == 100
    assert tracker.held("views")[0] == 0


def test_what_is_kept_for_a_window_is_not_held() -> None:
    tracker = tracker_on(None)
    for n in range(4):
        tracker.add("clicks", block(n, bytes=100))
    tracker.process("clicks", 3)
    assert tracker.held("clicks")[0] == 100
    assert len(tracker.blocks("clicks", 0, 4)) == 4
    tracker.process("clicks", 2)
    tracker.forget("clicks", 1)
    assert tracker.held("clicks")[0] == 100
    tracker.add("clicks", block(4, bytes=100))
    tracker.process("clicks", 99)
    assert tracker.held("clicks")[0] == 0
    tracker.forget("clicks", 5)
    assert tracker.held("clicks")[0] == 0


def test_the_version_of_what_is_held_grows_with_every_change() -> None:
    tracker = tracker_on(None)
    versions = [tracker.held("clicks")[1]]
    for change in (
        lambda: tracker.add("clicks", block(0)),
        lambda: tracker.add("clicks", block(1)),
        lambda: tracker.process("clicks", 1),
        lambda: tracker.forget("clicks", 1),
    ):
        change()
        versions.append(tracker.held("clicks")[1])
    assert versions == sorted(set(versions))


def test_numbers_that_are_not_known_are_refused() -> None:
    tracker = tracker_on(None)
    for n in range(3):
        tracker.add("clicks", block(n))
    tracker.forget("clicks", 2)
    for start, end in ((0, 1), (1, 3), (2, 4), (0, 9)):
        with pytest.raises(LookupError, match=f"blocks {start} to {end} of clicks are not known"):
            tracker.blocks("clicks", start, end)
    assert tracker.blocks("clicks", 2, 3) == [block(2)]


def test_forgetting_is_idempotent_and_stops_at_the_end() -> None:
    tracker = tracker_on(None)
    tracker.add("clicks", block(0))
    assert tracker.forget("clicks", 0) == []
    assert tracker.forget("clicks", 99) == [block(0)]
    assert tracker.forget("clicks", 99) == tracker.forget("clicks", 0) == []
    assert tracker.end("clicks") == 1
    tracker.add("clicks", block(1))
    assert tracker.blocks("clicks", 1, 2) == [block(1)]


def test_records_are_counted_as_they_are_received() -> None:
    tracker = tracker_on(None)
    assert tracker.wait_received(0, 0)
    assert not tracker.wait_received(20, 0)
    for n in (0, 0, 1):
        tracker.add("clicks", block(n))
    tracker.forget("clicks", 2)
    tracker.add("clicks", block(0))
    assert tracker.wait_received(20, 0)
    assert tracker.records_received == 20


# -- reported twice --------------------------------------------------------------------------------


def restarted(storage: LocalStorage, tracker: BlockTracker) -> BlockTracker:
    return tracker_on(storage)


def the_same(storage: LocalStorage, tracker: BlockTracker) -> BlockTracker:
    return tracker


@pytest.mark.parametrize("then", [the_same, restarted])
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_block_that_is_reported_again_is_the_same_block(
    storage: LocalStorage,
    then: Callable[[LocalStorage, BlockTracker], BlockTracker],
    is_forgotten: bool,
) -> None:
    tracker = tracker_on(storage)
    new: list[BlockInfo] = []
    for n in (0, 1, 2):
        assert tracker.add("clicks", block(n), new.append)
    if is_forgotten:
        # The answer was lost, and the supervisor tries again long after the batch is done.
        tracker.forget("clicks", 3)
    tracker = then(storage, tracker)
    for n in (2, 1, 0):
        assert tracker.add("clicks", block(n), new.append)
    assert (tracker.end("clicks"), len(tracker.known("clicks"))) == (3, 0 if is_forgotten else 3)
    assert [each.block_id for each in new] == [block(n).block_id for n in (0, 1, 2)]
    # The next one of this run, and the first of another, are new.
    for info in (block(3), block(0, run="b2")):
        assert tracker.add("clicks", info, new.append)
    assert (tracker.end("clicks"), len(new)) == (5, 5)


@given(st.permutations(range(12)), st.integers(0, 12))
def test_blocks_that_overtake_each_other_are_all_added_once(
    order: list[int], forgotten: int
) -> None:
    of = tracker_on(None)
    for n in order:
        assert of.add("clicks", block(n))
    of.forget("clicks", forgotten)
    for n in order:
        assert of.add("clicks", block(n))  # reported once more
    assert of.end("clicks") == 12
    left = [info.block_id for info in of.known("clicks")]
    assert left == [block(n).block_id for n in order[forgotten:]]


def test_a_block_that_was_given_up_does_not_make_the_memory_grow() -> None:
    of = tracker_on(None)
    for n in range(1, 2000):
        assert of.add("clicks", block(n), first_unreported=n)
    (run,) = of._stream("clicks").runs.values()
    assert not run.above


def test_a_block_that_waits_is_added_however_many_overtake_it() -> None:
    of = tracker_on(None)
    for n in range(1, 5000):
        assert of.add("clicks", block(n), first_unreported=0)
    assert of.add("clicks", block(0), first_unreported=0)
    assert of.end("clicks") == 5000
    assert of.blocks("clicks", 4999, 5000) == [block(0)]


def test_a_late_report_of_a_block_that_was_given_up_is_not_added() -> None:
    """Its segment of the write-ahead log may be gone, and its sender was told to send again."""
    of = tracker_on(None)
    of.add("clicks", block(1), first_unreported=1)
    of.add("clicks", block(0), first_unreported=0)
    assert of.known("clicks") == [block(1)]


def test_what_is_remembered_of_runs_does_not_grow_for_ever(storage: LocalStorage) -> None:
    tracker = tracker_on(storage)
    for n in range(1000):
        tracker.add("clicks", block(7, run=f"{n:x}"))
        tracker.forget("clicks", n + 1)
    tracker_on(storage)
    ((known),) = records(storage)
    assert len(known["known"]["clicks"]["runs"]) == REMEMBERED_RUNS
    assert sum(segment_size(storage)) < 2000


def segment_size(storage: LocalStorage) -> list[int]:
    return [len(storage.read(each.path)) for each in segments(storage, FOLDER)]


@pytest.mark.parametrize("block_id", ["x", "input-0-a1", "input-0-a1-", "7", "input-0-a1-٣"])
def test_an_id_without_a_number_is_refused(storage: LocalStorage, block_id: str) -> None:
    tracker = tracker_on(storage)
    with pytest.raises(ValueError, match="is not the id of a block"):
        tracker.add("clicks", block(0, block_id=block_id))
    assert (tracker.end("clicks"), len(records(storage))) == (0, 1)


# -- the log ---------------------------------------------------------------------------------------


def test_what_was_known_is_known_again(storage: LocalStorage) -> None:
    tracker = tracker_on(storage)
    for n in range(5):
        tracker.add("clicks", block(n))
    tracker.add("views", block(0, stream=1, slice_=None))
    tracker.forget("clicks", 2)
    for _ in range(3):
        again = tracker_on(storage)
        assert again.known("clicks") == without_places(tracker.known("clicks"))
        assert again.blocks("clicks", 2, 5) == without_places([block(n) for n in (2, 3, 4)])
        assert [each.slice_ for each in again.known("clicks")] == [
            block(n).slice_ for n in (2, 3, 4)
        ]
        assert again.held("clicks")[0] == tracker.held("clicks")[0]
        assert (again.end("clicks"), again.end("views")) == (5, 1)
        assert again.known("views") == [block(0, stream=1, slice_=None, places=())]
        with pytest.raises(LookupError):
            again.blocks("clicks", 1, 2)


def test_a_change_is_written_before_it_is_made(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = tracker_on(storage)
    seen: list[tuple[str, int, int]] = []
    append = LogWriter.append

    def recorded(self: LogWriter, payload: Any) -> Any:
        of = tracker._streams["clicks"]
        seen.append((next(iter(json.loads(payload))), of.first, of.end))
        return append(self, payload)

    monkeypatch.setattr(LogWriter, "append", recorded)
    tracker.add("clicks", block(0))
    tracker.add("clicks", block(1))
    tracker.forget("clicks", 1)
    assert seen == [("add", 0, 0), ("add", 0, 1), ("forget", 0, 2)]
    assert [next(iter(each)) for each in records(storage)] == ["known", "add", "add", "forget"]


def test_the_drawing_is_a_log(storage: LocalStorage) -> None:
    (drawn,) = drawings(module.__doc__)
    log = LogWriter(storage, FOLDER, ManualClock())
    lines = drawn.splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["known", "add", "forget"]
    for line in lines[:2]:
        log.append(line.encode())
    tracker = tracker_on(storage)
    (known,) = tracker.known("clicks")
    assert (tracker.end("clicks"), known.block_id, known.records) == (6, "input-0-5e1f-3", 120)
    log = LogWriter(storage, FOLDER, ManualClock())
    log.append(lines[2].encode())
    assert tracker_on(storage).known("clicks") == []


def test_a_tracker_that_is_closed_takes_nothing_and_forgets_nothing(storage: LocalStorage) -> None:
    tracker = tracker_on(storage)
    tracker.add("clicks", block(0))
    tracker.close()
    tracker.close()
    assert tracker.add("clicks", block(0)), "that one is safe already"
    assert not tracker.add("clicks", block(1))
    assert tracker.forget("clicks", 1) == []
    assert tracker.known("clicks") == [block(0)]
    assert tracker_on(storage).known("clicks") == without_places([block(0)])


# -- writing fails ---------------------------------------------------------------------------------

FAILURES = ["log.append@1=enospc", "log.appended@1=enospc", "block.after-add@1=error"]


@pytest.mark.parametrize("plan", ["block.before-add@1=error", *FAILURES])
def test_a_block_that_could_not_be_written_is_not_known(
    storage: LocalStorage, tmp_path: Path, plan: str
) -> None:
    tracker = tracker_on(storage)
    tracker.add("clicks", block(0))
    new: list[BlockInfo] = []
    with faults(tmp_path, plan):
        with pytest.raises((OSError, RuntimeError)):
            tracker.add("clicks", block(1), new.append)
        assert (tracker.end("clicks"), new) == (1, [])
        assert tracker.add("clicks", block(1), new.append)  # the supervisor tries again
    assert (tracker.end("clicks"), new) == (2, [block(1)])
    assert tracker_on(storage).known("clicks") == without_places([block(0), block(1)])


@pytest.mark.parametrize("plan", FAILURES)
def test_a_block_that_was_given_up_takes_no_number_from_the_next(
    storage: LocalStorage, tmp_path: Path, plan: str
) -> None:
    """It may be in the log all the same. Then recovery must not let two blocks share a number."""
    tracker = tracker_on(storage)
    with faults(tmp_path, plan), pytest.raises((OSError, RuntimeError)):
        tracker.add("clicks", block(0))
    tracker.add("clicks", block(1))
    assert tracker.blocks("clicks", 0, 1) == [block(1)]
    again = tracker_on(storage)
    assert again.blocks("clicks", 0, 1) == without_places([block(1)])
    assert again.held("clicks")[0] == tracker.held("clicks")[0]


@pytest.mark.parametrize("plan", FAILURES[:2])
def test_blocks_that_could_not_be_forgotten_are_known(
    storage: LocalStorage, tmp_path: Path, plan: str
) -> None:
    tracker = tracker_on(storage)
    for n in range(3):
        tracker.add("clicks", block(n))
    with faults(tmp_path, plan):
        with pytest.raises(OSError, match="No space left"):
            tracker.forget("clicks", 2)
        assert tracker.known("clicks") == [block(n) for n in range(3)]
        assert tracker.forget("clicks", 2) == [block(0), block(1)]
    assert tracker_on(storage).known("clicks") == without_places([block(2)])


# -- compaction ------------------------------------------------------------------------------------


def test_the_log_stays_short(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_AFTER", 10)
    tracker = tracker_on(storage)
    for n in range(100):
        tracker.add("clicks", block(n))
        tracker.forget("clicks", n)
    assert len(records(storage)) <= 11
    assert len(segments(storage, FOLDER)) == 1
    assert tracker_on(storage).known("clicks") == without_places([block(99)])


@pytest.mark.parametrize("plan", ["block.before-compact@1=error", "log.append@2=error"])
@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_a_crash_around_a_compaction_loses_nothing(
    storage: LocalStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: str,
    deleted: int,
) -> None:
    tracker = tracker_on(storage)
    for n in range(3):
        tracker.add("clicks", block(n))
    tracker.close()
    tracker = tracker_on(storage)
    monkeypatch.setattr(module, "COMPACT_AFTER", 4)
    # The log has several pieces: it rolls over with the time.
    assert isinstance(tracker._clock, ManualClock)
    for n in (3, 4, 5):
        tracker._clock.advance(100_000)
        tracker.add("clicks", block(n))
    old = [each.path for each in segments(storage, FOLDER)]
    assert len(old) == 4
    with faults(tmp_path, plan):
        # The blocks are forgotten, whether the log could be compacted or not.
        assert tracker.forget("clicks", 2) == without_places([block(0), block(1)])
    expected = without_places([block(n) for n in (2, 3, 4, 5)])
    if plan.startswith("block.before-compact"):
        for path in old[:deleted]:  # the driver dies while it deletes the old pieces
            storage.delete(path)
    assert tracker_on(storage).blocks("clicks", 2, 6) == expected


def test_a_compaction_that_failed_is_tried_again(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_AFTER", 2)
    tracker = tracker_on(storage)
    for n in range(3):
        tracker.add("clicks", block(n))
    with faults(tmp_path, "log.append@2=enospc"):
        assert tracker.forget("clicks", 1) == [block(0)]
        assert len(records(storage)) > 4
        assert tracker.add("clicks", block(3))
        assert tracker.forget("clicks", 2) == [block(1)]
    assert [next(iter(each)) for each in records(storage)] == ["known"]
    assert tracker_on(storage).known("clicks") == without_places([block(2), block(3)])


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_piece_of_the_log_that_is_missing_is_noticed(storage: LocalStorage, victim: int) -> None:
    tracker = tracker_on(storage)
    assert isinstance(tracker._clock, ManualClock)
    for n in range(4):
        tracker.add("clicks", block(n))
        tracker._clock.advance(100_000)
    path = segments(storage, FOLDER)[victim].path
    storage.delete(path)
    before = [each.path for each in segments(storage, FOLDER)]
    with pytest.raises(DamagedCheckpointError, match="received/blocks: has lost a part"):
        tracker_on(storage)
    assert [each.path for each in segments(storage, FOLDER)] == before


# -- anything, in any order ------------------------------------------------------------------------


class Tracking(RuleBasedStateMachine):
    """Two streams, receivers that restart, a driver that restarts; compared with plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-test-"))
        self.storage = LocalStorage(str(self.folder / "checkpoint"))
        self.tracker = BlockTracker(self.storage, ManualClock()).start()
        self.added: dict[str, list[BlockInfo]] = {"a": [], "b": []}
        self.first = {"a": 0, "b": 0}
        self.run = {"a": 0, "b": 0}
        self.next = {"a": 0, "b": 0}
        self.places_from = {"a": 0, "b": 0}  # blocks before that have lost their places

    @initialize(compact_after=st.sampled_from([1, 3, 1000]))
    def settings(self, compact_after: int) -> None:
        self.saved = module.COMPACT_AFTER
        module.COMPACT_AFTER = compact_after

    def teardown(self) -> None:
        module.COMPACT_AFTER = getattr(self, "saved", module.COMPACT_AFTER)
        shutil.rmtree(self.folder)

    def _next_block(self, name: str) -> BlockInfo:
        info = block(self.next[name], stream=ord(name), run=f"{self.run[name]:x}")
        self.next[name] += 1
        return info

    @rule(name=st.sampled_from("ab"), times=st.integers(1, 3))
    def add(self, name: str, times: int) -> None:
        info = self._next_block(name)
        assert all(self.tracker.add(name, info) for _ in range(times))
        self.added[name].append(info)

    @rule(
        name=st.sampled_from("ab"),
        where=st.sampled_from(["log.append", "log.appended", "block.after-add"]),
        gives_up=st.booleans(),
    )
    def add_badly(self, name: str, where: str, gives_up: bool) -> None:
        info = self._next_block(name)
        action = "error" if where.startswith("block") else "enospc"
        with faults(self.folder, f"{where}@1={action}"):
            try:
                self.tracker.add(name, info)
                raise AssertionError("that should have failed")
            except (OSError, RuntimeError):
                pass
        if not gives_up:
            assert self.tracker.add(name, info)
            self.added[name].append(info)
        elif where == "block.after-add":
            # It is in the log: a driver that dies before the next record would find it there.
            self.add(name, 1)

    @rule(data=st.data(), name=st.sampled_from("ab"))
    def add_again(self, data: st.DataObject, name: str) -> None:
        if self.added[name]:
            assert self.tracker.add(name, data.draw(st.sampled_from(self.added[name])))

    @rule(name=st.sampled_from("ab"), count=st.integers(0, 4))
    def forget(self, name: str, count: int) -> None:
        before = self.first[name] + count
        expected = self._expected(name)[:count]
        assert self.tracker.forget(name, before) == expected
        self.first[name] += len(expected)

    @rule(name=st.sampled_from("ab"))
    def restart_receiver(self, name: str) -> None:
        self.run[name] += 1
        self.next[name] = 0

    @rule(compaction_fails=st.booleans())
    def restart_driver(self, compaction_fails: bool) -> None:
        if compaction_fails:
            with faults(self.folder, "block.before-compact@1=error"):
                try:
                    BlockTracker(self.storage, ManualClock()).start()
                    raise AssertionError("that should have failed")
                except RuntimeError:
                    pass
        self.tracker = BlockTracker(self.storage, ManualClock()).start()
        self.places_from = {name: len(added) for name, added in self.added.items()}

    def _expected(self, name: str) -> list[BlockInfo]:
        cut = self.places_from[name]
        added = without_places(self.added[name][:cut]) + self.added[name][cut:]
        return added[self.first[name] :]

    @invariant()
    def every_block_has_its_number(self) -> None:
        for name, added in self.added.items():
            first = self.first[name]
            expected = self._expected(name)
            assert self.tracker.end(name) == len(added)
            assert self.tracker.known(name) == expected
            assert self.tracker.blocks(name, first, len(added)) == expected
            assert self.tracker.held(name)[0] == sum(each.bytes for each in expected)


TestTracking = Tracking.TestCase


def test_no_flipped_bit_drops_an_acknowledged_block(storage: LocalStorage) -> None:
    tracker = tracker_on(storage)
    assert all(tracker.add("clicks", block(n)) for n in range(2))
    tracker.close()
    (segment,) = segments(storage, FOLDER)
    path = Path(storage.full_name(segment.path))
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedCheckpointError):
            tracker_on(storage)
