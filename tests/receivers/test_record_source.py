"""The blocks of a receiver as a source: sizes, lost blocks, and their distribution over tasks."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batches.planning import plan_batch
from tests.receivers.driver.driver_world import Silent, block, faults
from tidemill.batches.batch import UNLIMITED, OffsetRange
from tidemill.batches.parallelism import tasks_for_bytes, tasks_for_records
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common.clock import ManualClock
from tidemill.errors import DamagedCheckpointError
from tidemill.receivers import record_source as module
from tidemill.receivers.blocks.block import BlockInfo, BlockPlace
from tidemill.receivers.blocks.reader import BlockReader
from tidemill.receivers.driver.block_tracker import FOLDER, BlockTracker
from tidemill.receivers.record_source import (
    ReceiverSource,
    ReceiverSourceFactory,
    group_blocks,
    hosts_of,
)


class World:
    def __init__(self, storage: LocalStorage | None = None) -> None:
        self.blocks = BlockTracker(storage, ManualClock()).start()
        self.forgotten: list[list[str]] = []
        self.source = ReceiverSourceFactory(Silent())(cast(Any, None))
        self.source.bind("clicks", self.blocks, BlockReader(None, b""), self._on_forgotten)

    def _on_forgotten(self, blocks: Sequence[BlockInfo]) -> None:
        self.forgotten.append([each.block_id for each in blocks])

    def add(self, count: int, **changes: Any) -> None:
        for _ in range(count):
            number = self.blocks.end("clicks")
            assert self.blocks.add("clicks", block(number, **changes))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "checkpoint"))


def latest(source: ReceiverSource, start: int) -> int:
    return cast(int, source.latest_offset(start, UNLIMITED, 0))


def test_a_batch_has_all_blocks_that_were_there_and_no_other() -> None:
    it = World()
    assert (it.source.initial_offset(), it.source.has_unplanned) == (0, False)
    assert latest(it.source, 0) == 0
    it.add(3, records=5, bytes=100)
    assert it.source.has_unplanned
    assert latest(it.source, 0) == 3
    assert not it.source.has_unplanned
    it.add(1, records=7, bytes=10)
    assert it.source.has_unplanned
    size = it.source.size(OffsetRange(0, 3))
    assert (size.records, size.bytes, size.description) == (15, 300, "3 blocks")
    size = it.source.size(OffsetRange(3, 4))
    assert (size.records, size.bytes) == (7, 10)
    assert it.source.size(OffsetRange(4, 4)).records == 0


def test_committed_blocks_are_forgotten_and_cleaned_up() -> None:
    it = World()
    it.add(3)
    it.source.commit(2)
    assert it.forgotten == [[block(0).block_id, block(1).block_id]]
    with pytest.raises(LookupError):
        it.source.size(OffsetRange(0, 2))
    assert it.source.size(OffsetRange(2, 3)).records == 10


def test_a_full_disk_does_not_stop_a_stream_from_committing(
    storage: LocalStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = World(storage)
    it.add(2)
    with faults(tmp_path, "log.append@1=enospc"):
        it.source.commit(1)
        assert "blocks of clicks that are done could not be forgotten yet" in caplog.text
        it.source.commit(2)
    assert it.forgotten == [[block(0).block_id, block(1).block_id]]


# -- after a restart -------------------------------------------------------------------------------


def test_a_resumed_source_goes_on_after_what_was_planned(storage: LocalStorage) -> None:
    it = World(storage)
    it.add(5)
    again = World(storage)
    again.source.resumed(3)
    assert again.source.has_unplanned
    assert latest(again.source, 3) == 5
    assert again.source.size(OffsetRange(3, 5)).description == "2 blocks"


def test_fewer_blocks_than_were_planned_are_damage(storage: LocalStorage) -> None:
    World(storage).add(2)
    again = World(storage)
    with pytest.raises(DamagedCheckpointError) as caught:
        again.source.resumed(3)
    message = str(caught.value)
    assert "received/blocks: knows 2 blocks of clicks" in message
    assert "planned with 3" in message
    assert "Restore" in message
    with pytest.raises(DamagedCheckpointError):
        again.source.size(OffsetRange(2, 3))


def test_a_planner_whose_log_of_blocks_is_gone_says_so(storage: LocalStorage) -> None:
    """Also when a batch is unfinished, whose blocks must be found first."""
    clock = ManualClock()
    it = World(storage)
    planner = BatchPlanner({0: PlannedSource("clicks", it.source)}, clock, storage)
    planner.start(0)
    it.add(2)
    assert plan_batch(planner, 1000, storage).ranges[0] == OffsetRange(0, 2)
    storage.delete_folder(FOLDER)
    again = World(storage)
    planner = BatchPlanner({0: PlannedSource("clicks", again.source)}, clock, storage)
    planner.start(0)
    with pytest.raises(DamagedCheckpointError, match="knows 0 blocks of clicks"):
        planner.restore(BatchLog(storage).load())


def test_a_planner_gives_a_batch_the_same_blocks_again(storage: LocalStorage) -> None:
    clock = ManualClock()
    it = World(storage)
    planner = BatchPlanner({0: PlannedSource("clicks", it.source)}, clock, storage)
    planner.start(0)
    it.add(2)
    plan_batch(planner, 1000, storage)
    it.add(3)
    again = World(storage)
    planner = BatchPlanner({0: PlannedSource("clicks", again.source)}, clock, storage)
    planner.start(0)
    (batch,) = planner.restore(BatchLog(storage).load())
    assert (batch.ranges[0], batch.sizes[0].records) == (OffsetRange(0, 2), 20)
    assert plan_batch(planner, 2000, storage).ranges[0] == OffsetRange(2, 5)


def test_lost_blocks_are_counted_and_named(
    storage: LocalStorage, caplog: pytest.LogCaptureFixture
) -> None:
    it = World(storage)
    it.add(1)
    it.add(2, slice_=None, records=4)  # the write-ahead log was off for a while
    it.add(1)
    assert it.source.size(OffsetRange(0, 4)).description == "4 blocks"
    again = World(storage)
    with caplog.at_level(logging.WARNING):
        again.source.resumed(0)
    assert "2 blocks with 8 records that clicks had received are lost" in caplog.text
    assert f"{block(1).block_id}, {block(2).block_id}" in caplog.text
    size = again.source.size(OffsetRange(0, 4))
    assert (size.records, size.bytes) == (20, 1000 + 1003)
    assert size.description == (
        "2 blocks, 2 blocks with 8 records are lost: input-0-a1-1, input-0-a1-2"
    )


def test_many_lost_blocks_are_not_all_named(storage: LocalStorage) -> None:
    World(storage).add(50, slice_=None)
    again = World(storage)
    again.source.resumed(0)
    description = again.source.size(OffsetRange(0, 50)).description
    assert description.startswith("0 blocks, 50 blocks with 500 records are lost: input-0-a1-0, ")
    assert description.endswith("input-0-a1-9 and 40 more")


class FakeContext:
    defaultParallelism = 4

    def emptyRDD(self) -> str:
        return "nothing"


def test_only_what_is_there_is_read(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    located: list[Any] = []

    class Rdd:
        def mapPartitionsWithIndex(self, function: Any) -> Any:
            return function

    def located_rdd(_: Any, items: Any) -> Rdd:
        located.extend(items)
        return Rdd()

    monkeypatch.setattr(module, "located_rdd", located_rdd)
    World(storage).add(1, slice_=None)
    again = World(storage)
    again.source._sc = cast(Any, FakeContext())
    nothing: Any = again.source.read(OffsetRange(0, 1), 2)
    assert nothing == "nothing"
    place = BlockPlace("1", "node1", "", "server-1")
    again.add(2, places=(place,))
    again.source.read(OffsetRange(0, 3), 2)
    ((pickled, hosts),) = located
    read = pickle.loads(pickled)  # noqa: S301
    assert [each.block_id for each in read] == ["input-0-a1-1", "input-0-a1-2"]
    assert hosts == ["node1"]


# -- which task reads what -------------------------------------------------------------------------


def test_tasks_go_where_most_of_their_blocks_are() -> None:
    def on(*hosts: str, server: str = "s") -> tuple[BlockPlace, ...]:
        return tuple(BlockPlace("1", host, "", server) for host in hosts)

    assert hosts_of([]) == []
    assert hosts_of([block(0, places=on("a", server=""))]) == [], "local mode"
    blocks = [
        block(0, places=on("a", "b"), bytes=10),
        block(1, places=on("b", "c"), bytes=10),
        block(2, places=on("c", "c"), bytes=15),
        block(3, places=()),
    ]
    assert hosts_of(blocks) == ["c", "b", "a"]


SIZES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 5), st.integers(0, 200 << 20)),
        st.one_of(st.integers(0, 5), st.integers(0, 200_000)),
    ),
    min_size=1,
    max_size=40,
)


@given(sizes=SIZES, parallelism=st.integers(1, 64))
def test_blocks_are_grouped_in_order_and_into_few_tasks(
    sizes: list[tuple[int, int]], parallelism: int
) -> None:
    blocks = [block(n, bytes=size, records=some) for n, (size, some) in enumerate(sizes)]
    groups = group_blocks(blocks, parallelism)
    assert [each for group in groups for each in group] == blocks
    assert all(groups)
    tasks = max(
        tasks_for_bytes(sum(size for size, _ in sizes), parallelism),
        tasks_for_records(sum(some for _, some in sizes), parallelism),
    )
    assert len(groups) <= tasks + 1


@given(count=st.integers(1, 200), size=st.integers(1, 8 << 20), parallelism=st.integers(1, 16))
def test_equal_blocks_make_even_tasks(count: int, size: int, parallelism: int) -> None:
    groups = group_blocks([block(n, bytes=size) for n in range(count)], parallelism)
    lengths = [len(group) for group in groups]
    assert max(lengths) - min(lengths) <= 1


def test_a_small_batch_is_one_task() -> None:
    assert len(group_blocks([block(n, bytes=10) for n in range(100)], 8)) == 1
    assert len(group_blocks([block(n, bytes=0, records=0) for n in range(100)], 8)) == 1
