"""Which files of blocks are deleted when their batches are done, and which are not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.receivers.driver.driver_world import FakeCalls, block, segment, slice_of
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.checkpoint.log_segments import segments
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.files import BlockFiles, BlockFolders
from tidemill.receivers.driver.block_cleaner import SWEEP_EVERY, BlockCleaner
from tidemill.receivers.executor.block_handler import data_folder


@dataclass
class World:
    storage: LocalStorage
    calls: FakeCalls = field(default_factory=FakeCalls)

    def __post_init__(self) -> None:
        self.cleaner = BlockCleaner(cast(Any, self.calls), None, self.storage)

    def write(self, path: str) -> None:
        with self.storage.open_write(path) as file:
            file.write(b"a segment")

    def stored(self, number: int, path: str, stream: int = 0) -> BlockInfo:
        """A block that a receiver has written to a segment."""
        if not self.storage.exists(path):
            self.write(path)
        return block(number, stream=stream, slice_=slice_of(path))

    def left(self, name: str = "clicks") -> list[str]:
        return [each.path for each in segments(self.storage, data_folder(name))]


@pytest.fixture
def it(tmp_path: Path) -> World:
    return World(LocalStorage(str(tmp_path)))


def test_a_segment_is_deleted_with_the_last_of_its_blocks(it: World) -> None:
    old, new = segment(1), segment(2)
    blocks = [it.stored(0, old), it.stored(1, old), it.stored(2, new)]
    for each in blocks:
        it.cleaner.on_new_block(each)
    it.cleaner.clean(blocks[:1])
    assert it.left() == [old, new]
    it.cleaner.clean(blocks[1:2])
    assert it.left() == [new]


def test_the_segment_that_is_being_written_stays(it: World) -> None:
    old, new = segment(1), segment(2)
    first = it.stored(0, old)
    it.cleaner.on_new_block(first)
    it.cleaner.clean([first])
    assert it.left() == [old], "the receiver may be writing the next block to it"
    second = it.stored(1, new)
    it.cleaner.on_new_block(second)
    it.cleaner.clean([second])
    assert it.left() == [new]


def test_a_late_block_of_a_replaced_receiver_does_not_hide_the_current_segment(it: World) -> None:
    old, new = segment(1), segment(2, writer="bb")
    current, late = it.stored(0, new), it.stored(9, old)
    it.cleaner.on_new_block(current)
    it.cleaner.on_new_block(late)
    it.cleaner.clean([current])
    assert it.left() == [old, new]
    it.cleaner.clean([late])
    assert it.left() == [new]


def test_each_stream_has_its_own_current_segment(it: World) -> None:
    clicks, views = segment(5), segment(1, "views")
    for each in (it.stored(0, clicks), it.stored(0, views, stream=1)):
        it.cleaner.on_new_block(each)
        it.cleaner.clean([each])
    assert (it.left(), it.left("views")) == ([clicks], [views])


def test_after_a_restart_nobody_writes_to_the_segments_that_are_there(it: World) -> None:
    used, useless = segment(1), segment(2)
    blocks = [it.stored(0, used), it.stored(1, used)]
    it.write(useless)
    it.write(segment(1, "views"))
    it.write(segment(1, "another-stream"))
    it.cleaner.restore(blocks)
    assert (it.left(), it.left("views")) == ([used], [])
    assert it.left("another-stream") == []  # a stream that the program does not have any more
    it.cleaner.clean(blocks[:1])
    assert it.left() == [used]
    it.cleaner.clean(blocks[1:])
    assert it.left() == []


def test_segments_without_blocks_are_found_after_a_while(
    it: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their writes were given up and ended after all, or the driver refused their blocks."""
    abandoned, used, current, later = (segment(number) for number in range(1, 5))
    it.write(abandoned)
    it.write(segment(1, "of-another-stream"))
    blocks = [it.stored(0, used), it.stored(1, current)]
    for each in blocks:
        it.cleaner.on_new_block(each)
    it.write(later)  # its block is about to be reported

    def fail(folder: str) -> list[str]:
        raise OSError(5, "Input/output error", folder)

    with monkeypatch.context() as patched:
        patched.setattr(it.storage, "list", fail)
        for _ in range(SWEEP_EVERY):
            it.cleaner.clean([])
    assert "cannot look for what is no longer needed" in caplog.text
    assert it.left() == [abandoned, used, current, later]
    for _ in range(SWEEP_EVERY - 1):
        it.cleaner.clean([])
    assert it.left() == [abandoned, used, current, later]
    it.cleaner.clean([])
    assert it.left() == [used, current, later]
    assert it.left("of-another-stream") == [segment(1, "of-another-stream")]


def test_a_segment_that_cannot_be_deleted_is_tried_again(
    it: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = segment(1), segment(2)
    blocks = [it.stored(0, old), it.stored(1, new), it.stored(2, new)]
    for each in blocks:
        it.cleaner.on_new_block(each)

    def fail(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as patched:
        patched.setattr(it.storage, "delete", fail)
        it.cleaner.clean(blocks[:1])
    assert it.left() == [old, new]
    assert f"cannot delete {old}, which is no longer needed" in caplog.text
    it.cleaner.clean(blocks[1:2])
    assert it.left() == [new]


def test_copies_are_deleted_where_they_are(it: World) -> None:
    def places(*servers: str) -> tuple[BlockPlace, ...]:
        return tuple(BlockPlace(server, "host", "", server) for server in servers)

    blocks = [
        block(0, slice_=None, places=places("one", "two")),
        block(1, slice_=None, places=places("two")),
        block(2, slice_=None, places=places("")),
    ]
    it.cleaner.clean(blocks)
    ids = [each.block_id for each in blocks]
    assert sorted(it.calls.cleanups) == [("one", (ids[0],)), ("two", (ids[0], ids[1]))]


def test_files_of_the_driver_are_deleted(tmp_path: Path) -> None:
    folders = BlockFolders(None, str(tmp_path / "blocks"), 0)
    folders.make()
    cleaner = BlockCleaner(cast(Any, FakeCalls()), BlockFiles(folders))
    for n in range(2):
        (tmp_path / "blocks" / block(n).block_id).write_bytes(b"x")
    cleaner.on_new_block(block(0))
    cleaner.restore([block(0)])
    cleaner.clean([block(0), block(7)])
    assert [path.name for path in (tmp_path / "blocks").iterdir()] == [block(1).block_id]


def test_files_that_cannot_be_deleted_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = BlockFolders(None, str(tmp_path / "blocks"), 0)
    folders.make()
    cleaner = BlockCleaner(cast(Any, FakeCalls()), BlockFiles(folders))
    (tmp_path / "blocks" / block(0).block_id).mkdir()
    cleaner.clean([block(0)])
    assert "cannot delete blocks that are done" in caplog.text


# -- segments with blocks that are not reported yet ------------------------------------------------


def test_a_segment_stays_while_a_block_in_it_is_stored_and_not_reported(it: World) -> None:
    old, new = segment(1), segment(2)
    done, waiting, other = it.stored(0, old), it.stored(1, old), it.stored(2, new)
    it.cleaner.on_new_block(done, old)
    # The report of ``waiting`` was refused. Meanwhile the log rolls over, and another thread stores.
    it.cleaner.on_new_block(other, oldest_segment=old)
    it.cleaner.clean([done])
    assert it.left() == [old, new]
    it.cleaner.on_new_block(waiting, oldest_segment=old)
    it.cleaner.clean([waiting])
    it.cleaner.on_new_block(it.stored(3, new), oldest_segment=new)
    it.cleaner.clean([other])
    assert it.left() == [new]


# -- whatever happens ------------------------------------------------------------------------------

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "report", "give up", "roll", "clean", "restart"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


def path_of(info: BlockInfo) -> str:
    assert info.slice_ is not None
    return info.slice_.path


@given(steps=STEPS, streams=st.integers(1, 2))
def test_no_segment_is_deleted_that_has_a_block_which_is_known_or_may_be_reported(
    steps: Sequence[Step], streams: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        it = World(LocalStorage(folder))
        names = ["clicks", "views"][:streams]
        known: list[BlockInfo] = []
        stored: dict[int, list[BlockInfo]] = {stream: [] for stream in range(streams)}
        rolled = dict.fromkeys(range(streams), 1)
        for counted, (step, n) in enumerate(steps):
            stream = n % streams
            waiting = stored[stream]
            if step == "store":
                waiting.append(it.stored(counted, segment(rolled[stream], names[stream]), stream))
            elif step == "report" and waiting:
                oldest = min(map(path_of, waiting))
                known.append(waiting.pop(n % len(waiting)))
                it.cleaner.on_new_block(known[-1], oldest)
            elif step == "give up" and waiting:
                waiting.pop(n % len(waiting))
            elif step == "roll":
                rolled[stream] += 1
            elif step == "clean":
                done, known = known[:n], known[n:]
                it.cleaner.clean(done)
            elif step == "restart":
                it = World(it.storage)
                it.cleaner.restore(known)
                for each in stored:
                    stored[each] = []
                    rolled[each] += 1
            left = {path for name in names for path in it.left(name)}
            needed = [*known, *(info for waiting in stored.values() for info in waiting)]
            assert set(map(path_of, needed)) <= left
        # At the end only the segments that may still be written are left.
        for stream in range(streams):
            path = segment(rolled[stream] + 1, names[stream])
            known.append(it.stored(1000, path, stream))
            it.cleaner.on_new_block(known[-1], path)
        it.cleaner.clean(known)
        reported = {segment(number + 1, names[stream]) for stream, number in rolled.items()}
        left = {path for name in names for path in it.left(name)}
        assert left & set(it.cleaner._blocks_in) == reported


def test_files_that_a_block_server_did_not_delete_are_tried_again(it: World) -> None:
    def at(number: int) -> BlockInfo:
        return block(number, slice_=None, places=(BlockPlace("1", "host", "", "one"),))

    ids = [at(n).block_id for n in range(6)]
    it.calls.unreachable = {"one"}
    it.cleaner.clean([at(0)])
    it.calls.unreachable = set()
    it.cleaner.clean([at(1)])
    it.cleaner.clean([at(2)])
    assert it.calls.cleanups == [
        ("one", (ids[0],)),
        ("one", (ids[0], ids[1])),
        ("one", (ids[2],)),
    ]
    it.calls.unreachable = {"one"}
    for number in (3, 4, 5):
        it.cleaner.clean([at(number)])
    it.cleaner.clean([])
    assert it.calls.cleanups[-1] == ("one", (ids[3], ids[4], ids[5])), "it is gone for good"
