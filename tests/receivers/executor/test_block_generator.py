"""No accepted record is lost, none is accepted after the end, and few are in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from tests.receivers.helpers import PATIENCE_S, InThread, WatchedClock
from tidemill.common.lines import split_lines
from tidemill.errors import IllegalStateError
from tidemill.receivers.blocks.format import decode
from tidemill.receivers.executor.block_generator import (
    BlockGenerator,
    GeneratorState,
    PendingBlock,
    _size_of,
)
from tidemill.receivers.executor.rate_limiter import RateLimiter

INTERVAL_MS = 200


class Shop:
    """A generator, and the blocks that it pushes. Pushing waits while ``open`` is not set."""

    def __init__(self, **options: Any) -> None:
        self.clock = WatchedClock()
        self.limiter = RateLimiter(self.clock, options.pop("max_rate", None))
        self.open = threading.Event()
        self.open.set()
        self.blocks: list[list[Any]] = []
        self.begun = 0
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self.generator = BlockGenerator(
            self.clock,
            self.limiter,
            self.push,
            interval_ms=INTERVAL_MS,
            **{"queue_size": 10, **options},
        )

    def push(self, pending: PendingBlock) -> None:
        with self.changed:
            self.begun += 1
            self.changed.notify_all()
        assert self.open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        block = pending.encode()
        assert block.records == pending.records
        with self.changed:
            self.blocks.append(list(decode(block.data)))
            self.changed.notify_all()

    def await_(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S)

    def tick(self) -> None:
        self.clock.tick(INTERVAL_MS)

    def records(self) -> list[Any]:
        return [record for block in self.blocks for record in block]


@contextmanager
def shop(**options: Any) -> Iterator[Shop]:
    it = Shop(**options)
    it.generator.start()
    try:
        yield it
    finally:
        it.open.set()
        it.generator.stop(PATIENCE_S)


def add_all(generator: BlockGenerator, records: list[Any]) -> None:
    for record in records:
        generator.add(record)


# -- blocks ----------------------------------------------------------------------------------------


def test_a_block_is_cut_at_every_interval_that_has_records() -> None:
    with shop() as it:
        add_all(it.generator, ["a", "b"])
        it.tick()
        it.tick()  # no record has come: no empty block
        add_all(it.generator, ["c"])
        it.clock.advance(INTERVAL_MS - 1)
        add_all(it.generator, ["d"])
        it.tick()
        add_all(it.generator, ["e"])
        assert it.generator.stop() == 0
        assert it.blocks == [["a", "b"], ["c", "d"], ["e"]]


def test_lines_and_records_in_one_stream_keep_their_order() -> None:
    with shop() as it:
        add_all(it.generator, ["first", 2])
        it.generator.add_lines(b"3\n4\n")
        it.generator.add_lines(b"5\r\n6\r7", 3)
        add_all(it.generator, [8, b"nine"])
        it.generator.stop()
        assert it.blocks == [["first", 2], ["3", "4", "5", "6", "7"], [8, b"nine"]]


def test_a_piece_without_lines_is_nothing() -> None:
    with shop() as it:
        it.generator.add_lines(b"")
        it.generator.stop()
        assert it.blocks == []


def test_a_block_that_has_grown_large_is_cut_before_its_time() -> None:
    with shop(max_block_bytes=1000) as it:
        add_all(it.generator, ["x" * 600] * 5)
        it.await_(lambda: len(it.blocks) == 2)
        it.generator.stop()
        assert [len(block) for block in it.blocks] == [2, 2, 1]


@pytest.mark.parametrize(
    ("record", "at_least"),
    [
        ("x" * 1000, 1000),
        ("", 40),  # more than 0: a million of them must not fit into one block
        (b"x" * 1000, 1000),
        (("key", "x" * 1000), 1000),
        (Row(a=1, b="x" * 1000), 1000),
        ({"a": "x" * 1000}, 1000),
        ({"x" * 1000: 1}, 1000),
        (["x" * 1000], 1000),
        (object(), 1),
    ],
)
def test_records_count_with_what_is_in_them(record: Any, at_least: int) -> None:
    assert at_least <= _size_of(record) < at_least + 1000


# -- memory is bounded -----------------------------------------------------------------------------


def held(it: Shop) -> int:
    generator = it.generator
    return generator._buffer.records + sum(block.records for block in generator._queue)


def test_who_adds_waits_when_the_buffer_and_the_queue_are_full() -> None:
    with shop(queue_size=2, max_block_bytes=1) as it:
        it.open.clear()
        added: list[int] = []

        def add() -> None:
            for number in range(20):
                it.generator.add(number)
                added.append(number)

        adding = InThread(add)
        it.await_(lambda: it.begun == 1)
        for _ in range(5):
            it.tick()  # ticks do not make room
        assert not adding.is_done
        assert (
            held(it) == len(added) == 3
        )  # two blocks, one of which is being pushed, and the buffer
        it.open.set()
        adding.join()
        it.generator.stop()
        assert it.records() == list(range(20))


def test_a_block_that_is_due_is_cut_as_soon_as_there_is_room() -> None:
    with shop(queue_size=1) as it:
        it.open.clear()
        it.generator.add("a")
        it.tick()
        it.generator.add("b")
        it.tick()
        it.generator.add("c")
        it.open.set()
        it.await_(lambda: len(it.blocks) == 2)  # without another tick
        assert it.blocks == [["a"], ["b", "c"]]


@pytest.mark.parametrize("end", ["stop", "refuse_to_wait"])
def test_who_waits_for_room_is_refused_at_the_end(end: str) -> None:
    with shop(queue_size=1, max_block_bytes=1) as it:
        it.open.clear()
        add_all(it.generator, ["a", "b"])
        waiting = InThread(lambda: it.generator.add("c"))
        other = InThread(lambda: it.generator.add_lines(b"d\n"))
        it.await_(lambda: it.begun == 1)
        ending = InThread(getattr(it.generator, end))
        for each in (waiting, other):
            with pytest.raises(IllegalStateError, match="nothing can be stored now"):
                each.join()
        it.open.set()
        ending.join()
        assert it.generator.stop() == 0
        assert it.records() == ["a", "b"]


def test_before_the_end_only_what_would_wait_is_refused() -> None:
    """A receiver may store the last records while it is being stopped."""
    with shop(queue_size=1, max_rate=1) as it:
        it.generator.refuse_to_wait()
        it.generator.add("last")
        with pytest.raises(IllegalStateError, match="is being stopped"):
            it.generator.add("one more, a second too early")
        it.generator.stop()
        assert it.records() == ["last"]


def test_what_is_added_by_the_pushing_thread_does_not_wait_for_itself() -> None:
    with shop(queue_size=1, max_block_bytes=1) as it:
        push = it.generator._push

        def push_and_add(pending: PendingBlock) -> None:
            push(pending)
            if len(it.blocks) < 5:
                add_all(it.generator, [f"{len(it.blocks)}-1", f"{len(it.blocks)}-2"])

        it.generator._push = push_and_add
        it.generator.add("first")
        it.tick()
        it.await_(lambda: len(it.blocks) >= 5)


# -- rate ------------------------------------------------------------------------------------------


def test_the_rate_limit_comes_before_the_buffer() -> None:
    with shop(max_rate=8) as it:
        adding = InThread(lambda: add_all(it.generator, ["a", "b", "c"]))
        it.clock.await_waiter(125)
        assert held(it) == 1
        it.clock.advance(125)
        it.clock.await_waiter(250)
        it.clock.advance(125)
        adding.join()
        it.generator.stop()
        assert it.records() == ["a", "b", "c"]


def test_a_large_piece_comes_in_slices() -> None:
    with shop(max_rate=100) as it:
        piece = b"".join(b"%d\r\n" % number for number in range(20)) + b"20"
        adding = InThread(lambda: it.generator.add_lines(piece))
        it.clock.await_waiter(80)
        assert held(it) == 8
        it.clock.advance(80)
        it.clock.await_waiter(160)
        assert held(it) == 16
        it.clock.advance(80)
        adding.join()
        it.generator.stop()
        assert it.records() == [str(number) for number in range(21)]


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n"]), max_size=30).map(b"".join),
    st.integers(1, 5),
)
@settings(max_examples=50)
def test_a_piece_in_slices_has_the_same_lines(piece: bytes, size: int) -> None:
    from tidemill.receivers.executor.block_generator import _cut_lines

    lines: list[str] = []
    rest = piece
    while len(split_lines(rest)) > size:
        head, rest = _cut_lines(rest, size)
        assert len(split_lines(head)) == size
        lines += split_lines(head)
    assert lines + split_lines(rest) == split_lines(piece)


def test_who_waits_for_the_rate_is_refused_at_the_end() -> None:
    with shop(max_rate=0.001) as it:
        it.generator.add("a")
        waiting = InThread(lambda: it.generator.add("b"))
        it.clock.await_waiter(1_000_000)
        assert it.generator.stop() == 0
        with pytest.raises(IllegalStateError, match="nothing can be stored now"):
            waiting.join()
        assert it.records() == ["a"]


# -- states ----------------------------------------------------------------------------------------


def test_from_the_first_state_to_the_last() -> None:
    it = Shop()
    generator = it.generator
    states = [generator.state]
    with pytest.raises(IllegalStateError, match="is initialized"):
        generator.add("too early")
    generator.start()
    states.append(generator.state)
    with pytest.raises(IllegalStateError, match="is active already"):
        generator.start()
    it.open.clear()
    generator.add("a")
    stopping = InThread(generator.stop)
    it.await_(lambda: it.begun == 1)
    states.append(generator.state)
    with pytest.raises(IllegalStateError, match="is stopped generating"):
        generator.add("too late")
    with pytest.raises(IllegalStateError, match="is stopped generating"):
        generator.add_lines(b"too late\n")
    it.open.set()
    stopping.join()
    states.append(generator.state)
    with pytest.raises(IllegalStateError, match="is stopped"):
        generator.add("much too late")
    with pytest.raises(IllegalStateError, match="is stopped already"):
        generator.start()
    assert generator.stop() == 0
    assert it.records() == ["a"]
    assert states == [
        GeneratorState.INITIALIZED,
        GeneratorState.ACTIVE,
        GeneratorState.STOPPED_GENERATING,
        GeneratorState.STOPPED,
    ]


def test_nothing_is_accepted_while_the_last_block_is_cut() -> None:
    with shop() as it:
        it.generator.add("a")
        in_between: list[GeneratorState] = []
        stop_timer = it.generator._timer.stop

        def look() -> None:
            in_between.append(it.generator.state)
            with pytest.raises(IllegalStateError, match="is stopped adding"):
                it.generator.add("b")
            stop_timer()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(it.generator._timer, "stop", look)
            it.generator.stop()
        assert in_between == [GeneratorState.STOPPED_ADDING]
        assert it.records() == ["a"]


def test_one_that_was_never_started() -> None:
    it = Shop()
    assert it.generator.stop() == 0
    assert it.generator.state is GeneratorState.STOPPED


def test_what_could_not_be_pushed_in_time_is_counted() -> None:
    with shop(queue_size=1) as it:
        it.open.clear()
        it.generator.add_lines(b"1\n2\n3\n")
        it.tick()
        it.generator.add("4")
        assert it.generator.stop(timeout_s=0.01) == 4
        it.open.set()
        assert it.generator.stop() == 0
        assert it.records() == ["1", "2", "3", "4"]


@pytest.mark.parametrize("error", [OSError("disk on fire"), SystemExit()])
@pytest.mark.parametrize("is_stopping", [False, True])
def test_when_pushing_fails_for_good_who_waits_learns_it(
    error: BaseException, is_stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with shop(queue_size=1, max_block_bytes=1) as it:
        it.open.clear()
        it.error = error
        add_all(it.generator, ["a", "b"])
        waiting = InThread(lambda: it.generator.add("c"))
        it.await_(lambda: it.begun == 1)
        stopping = InThread(it.generator.stop) if is_stopping else None
        if is_stopping:
            with pytest.raises(IllegalStateError):
                waiting.join()
        it.open.set()
        if stopping is not None:
            stopping.join()
        else:
            with pytest.raises(IllegalStateError, match="is stopped"):
                waiting.join()
        assert it.generator.stop() == 2
        assert it.generator.state is GeneratorState.STOPPED
        assert "cannot push blocks any more" in caplog.text


# -- all of it together ----------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.sampled_from(["tick", "close", "open"]),
        st.integers(0, 9),
        st.sampled_from([b"x\n", b"y\r\nz\n", b"u\rv"]),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(
    actions=ACTIONS,
    queue_size=st.integers(1, 3),
    max_block_bytes=st.sampled_from([1, 60, 1 << 20]),
    stop_at=st.integers(0, 25),
)
def test_whatever_happens_all_that_was_accepted_comes_out_once_and_in_order(
    actions: list[Any], queue_size: int, max_block_bytes: int, stop_at: int
) -> None:
    with shop(queue_size=queue_size, max_block_bytes=max_block_bytes) as it:
        accepted: list[Any] = []
        stopped = False
        for step, action in enumerate(actions):
            if step == stop_at:
                it.open.set()
                assert it.generator.stop() == 0
                stopped = True
            if action == "tick":
                if not stopped:
                    it.tick()
            elif action == "close":
                it.open.clear()
            elif action == "open":
                it.open.set()
            else:
                if len(it.generator._queue) >= queue_size:
                    it.open.set()  # otherwise add() would wait for ever
                lines = isinstance(action, bytes)
                try:
                    (it.generator.add_lines if lines else it.generator.add)(action)
                except IllegalStateError:
                    assert stopped
                else:
                    assert not stopped
                    accepted += split_lines(action) if lines else [action]
        it.open.set()
        assert it.generator.stop() == 0
        assert it.records() == accepted


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    queue_size=st.integers(1, 3),
    max_block_bytes=st.sampled_from([1, 100, 1 << 20]),
    stop_after=st.integers(0, 60),
)
def test_threads_that_add_while_it_is_stopped(
    counts: list[int], queue_size: int, max_block_bytes: int, stop_after: int
) -> None:
    with shop(queue_size=queue_size, max_block_bytes=max_block_bytes) as it:
        accepted: list[list[tuple[int, int]]] = [[] for _ in counts]
        progress = threading.Semaphore(0)

        def add(who: int, count: int) -> None:
            try:
                for number in range(count):
                    it.generator.add((who, number))
                    accepted[who].append((who, number))
                    progress.release()
            except IllegalStateError:
                assert it.generator.state is not GeneratorState.ACTIVE

        threads = [
            InThread(lambda who=who, count=count: add(who, count))  # type: ignore[misc]
            for who, count in enumerate(counts)
        ]
        for _ in range(min(stop_after, sum(counts))):
            assert progress.acquire(timeout=PATIENCE_S)
        assert it.generator.stop() == 0
        for thread in threads:
            thread.join()
        for who, records in enumerate(accepted):
            assert [record for record in it.records() if record[0] == who] == records
        assert len(it.records()) == sum(map(len, accepted))
