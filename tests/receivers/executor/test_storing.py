"""Stored records become safe, in their order, or the receiver gets an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import LongType, StructField, StructType

from tests.receivers.helpers import PATIENCE_S, Idle, InThread, World, running
from tests.waiting import DEADLINE_S
from tidemill.common.clock import SystemClock
from tidemill.errors import (
    IllegalStateError,
    ReceiverError,
    RpcUnavailableError,
    UsageError,
)
from tidemill.receivers.blocks.block import BlockInfo
from tidemill.receivers.blocks.format import EncodedBlock
from tidemill.receivers.blocks.rows import ReadBackRows
from tidemill.receivers.executor.held_bytes import ASK_HELD_MS
from tidemill.receivers.messages import BlockAdded, UpdateHeldBytes
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.table_source import TEXT

NOT_ACCEPTED = BlockAdded(False, 0, "the log is full")

# -- kinds of data ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "records"),
    [
        (["a", 1, None], ["a", 1, None]),
        (iter(["a", "b"]), ["a", "b"]),
        ((str(n) for n in range(3)), ["0", "1", "2"]),
        (b"bytes", [b"bytes"]),
        (b"", [b""]),
        (bytearray(b"bytes"), [b"bytes"]),
        (memoryview(b"xbytesx")[1:-1], [b"bytes"]),
        (pa.record_batch({"n": [1, 2]}), [Row(n=1), Row(n=2)]),
        (pa.table({"n": pa.chunked_array([[1], [2]])}), [Row(n=1), Row(n=2)]),
    ],
)
def test_a_block_is_safe_when_the_call_returns(data: Any, records: list[Any]) -> None:
    with running(Idle()) as world:
        world.receiver.store(data)
        assert world.taken_over() == [records]


@pytest.mark.parametrize(
    "data", [[], iter(()), pa.table({"n": []}), pa.record_batch({"n": pa.array([], pa.int64())})]
)
def test_nothing_is_no_block(data: Any) -> None:
    with running(Idle()) as world:
        world.receiver.store(data)
        assert world.handler.stored == 0


@pytest.mark.parametrize("record", ["text", 5, None, ("a", 1), {"a": 1}, Row(a=1), {1}])
def test_anything_else_is_a_record_of_the_next_block(record: Any) -> None:
    with running(Idle()) as world:
        world.receiver.store(record)
        world.receiver.storeRecord(["a list", "as a record"])
        assert world.taken_over() == []
        world.clock.tick(200)
        world.driver.await_(lambda: world.driver.infos, "the block")
        assert world.taken_over() == [[record, ["a list", "as a record"]]]


def test_blocks_have_names_of_their_own() -> None:
    with running(Idle()) as world:
        for number in range(3):
            world.receiver.store([number])
        names = [info.block_id for info in world.driver.infos]
        assert names == ["input-7-run-0", "input-7-run-1", "input-7-run-2"]


def test_what_cannot_be_pickled_is_refused_or_reported() -> None:
    with running(Idle()) as world:
        with pytest.raises(UsageError, match="cannot be pickled"):
            world.receiver.store([1, threading.Lock()])
        told: list[Any] = []
        for record in ("a", threading.Lock(), "b"):
            world.receiver.storeRecord(record, partial(told.append, record))
        assert world.await_records(2) == ["a", "b"]
        assert "lock" in world.driver.await_error("1 records are lost")
        world.receiver.store("c")
        assert world.await_records(3) == ["a", "b", "c"]
        world.stop()
        assert told == ["a", "b"]


class Forgetful(Exception):
    """Is pickled, but cannot be unpickled: the pickle has one argument."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


@pytest.mark.parametrize(
    "data",
    [
        [1, Forgetful(1, "bad")],
        iter([Forgetful(1, "bad")]),
        pa.record_batch({"day": pa.array([4_000_000], pa.date32())}),
        pa.table({"text": pa.array([b"\xff"]).view(pa.string())}),
    ],
)
def test_a_block_that_cannot_be_read_back_is_refused(data: Any) -> None:
    with running(Idle()) as world:
        with pytest.raises(UsageError, match=r"cannot be read back|not valid"):
            world.receiver.store(data)
        assert world.handler.stored == 0


def test_records_that_cannot_be_read_back_are_reported_and_not_acknowledged() -> None:
    with running(Idle()) as world:
        told: list[Any] = []
        for record in ("a", Forgetful(1, "bad"), {"b": [1]}):
            world.receiver.storeRecord(record, partial(told.append, record))
        assert world.await_records(2) == ["a", {"b": [1]}]
        assert "Forgetful" in world.driver.await_error("1 records are lost")
        world.stop()
        assert told == ["a", {"b": [1]}]


def test_what_a_query_cannot_read_is_refused() -> None:
    with running(Idle(), read_back=ReadBackRows(TEXT)) as world:
        world.receiver.store(["a", {"value": {"b": 1}}, b"\xff", None])
        for bad in ("\ud800", {"value": "\ud800"}, {(1, 2): 3}):
            with pytest.raises(UsageError, match="cannot be read back"):
                world.receiver.store([bad])
        world.receiver.store("\udfff")
        world.receiver.store("z")
        assert world.await_records(5)[-1] == "z"
        world.driver.await_error("1 records are lost")


def test_records_that_can_be_read_only_by_themselves_are_all_stored() -> None:
    told: list[int] = []
    schema = StructType([StructField("n", LongType())])
    with running(Idle(), read_back=ReadBackRows(schema)) as world:
        for at, value in enumerate((6, "5", 7)):
            world.receiver.storeRecord(Row(n=value), partial(told.append, at))
        assert [record.n for record in world.await_records(3)] == [6, "5", 7]
        world.stop()
    assert told == [0, 1, 2]
    assert world.driver.errors == []


def test_lines_that_do_not_fit_the_columns_of_a_query_are_not_stored() -> None:
    schema = StructType([StructField("n", LongType()), StructField("m", LongType())])
    with running(Idle(), read_back=ReadBackRows(schema)) as world:
        world.supervisor.store_lines(b"a\nb\n")
        world.receiver.store({"n": 1, "m": 2})
        assert world.await_records(1) == [{"n": 1, "m": 2}]
        assert "2 columns" in world.driver.await_error("2 records are lost")


# -- on_safe ---------------------------------------------------------------------------------------


def test_on_safe_is_called_once_in_order_and_not_before_the_driver_has_the_block() -> None:
    with running(Idle()) as world:
        told: list[tuple[int, int]] = []

        def tell(number: int) -> None:
            told.append((number, sum(info.records for info in world.driver.infos)))

        world.driver.answers = [NOT_ACCEPTED, ConnectionError("no answer")]
        for number in range(6):
            world.receiver.storeRecord(number, partial(tell, number))
            if number % 2:
                world.clock.tick(200)
        world.await_records(6)
        world.stop()
        assert [number for number, _ in told] == list(range(6))
        assert all(taken_over > number for number, taken_over in told)


def test_an_on_safe_that_fails_is_reported_and_the_others_are_called() -> None:
    with running(Idle()) as world:
        told: list[str] = []
        world.receiver.storeRecord("a", lambda: 1 / 0)
        world.receiver.storeRecord("b", lambda: told.append("b"))
        world.await_records(2)
        assert "ZeroDivisionError" in world.driver.await_error("on_safe of the receiver failed")
        world.stop()
        assert told == ["b"]


def test_on_safe_is_not_called_for_what_is_given_up() -> None:
    with running(Idle()) as world:
        told: list[str] = []
        world.driver.refuses = True
        world.receiver.storeRecord("a", lambda: told.append("a"))
        world.supervisor.stop("enough")
        world.driver.await_error("is not safe yet")
        world.supervisor.give_up()
        world.supervisor.wait()
        assert told == []
        world.driver.await_error("the last 1 records could not be stored")


# -- what fails is tried again ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["handler", "driver", "answer"])
def test_a_block_of_records_is_tried_until_it_is_safe(where: str) -> None:
    with running(Idle(), max_failures=2) as world:
        if where == "handler":
            world.handler.failures = [OSError("no space left")] * 8
        else:
            world.driver.answers = [
                ConnectionError("no answer") if where == "driver" else NOT_ACCEPTED
            ] * 8
        world.receiver.store("a")
        world.clock.tick(200)
        pauses_ms = []
        for failure in range(1, 9):
            world.driver.await_(
                lambda failure=failure: len(world.driver.errors) == failure,  # type: ignore[misc]
                "the report",
            )
            pause_ms = min(500 * 2 ** (failure - 1), 30_000)
            world.clock.await_waiter(world.clock.now_ms() + pause_ms)
            assert world.driver.infos == []
            world.clock.advance(pause_ms)
            pauses_ms.append(pause_ms)
        world.driver.await_(lambda: world.driver.infos, "the block")
        assert pauses_ms[-1] == 30_000
        assert world.records() == ["a"]
        assert world.handler.stored == (9 if where == "handler" else 1)  # it is not stored twice


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (NOT_ACCEPTED, ReceiverError, "the driver refused the block: the log is full"),
        (ConnectionError("no answer"), ConnectionError, "no answer"),
    ],
)
def test_a_block_of_the_receivers_own_is_tried_some_times_and_then_refused(
    answer: Any, error: type[Exception], text: str
) -> None:
    with running(Idle(), max_failures=3) as world:
        world.driver.answers = [answer] * 5
        storing = InThread(lambda: world.receiver.store(["a"]))
        world.clock.await_waiter(500)
        world.clock.advance(500)
        world.clock.await_waiter(1500)
        world.clock.advance(1000)
        with pytest.raises(error, match=text):
            storing.join()
        again = InThread(lambda: world.receiver.store(["a"]))
        world.clock.await_waiter(2000)
        world.clock.advance(500)
        world.clock.await_waiter(3000)
        world.clock.advance(1000)
        again.join()
        assert world.records() == ["a"]
        assert len(world.driver.errors) == 4


# -- waiting for room ------------------------------------------------------------------------------


def fill(world: World, held_bytes: int = 100) -> None:
    world.driver.held_bytes = held_bytes
    world.supervisor.update_held(held_bytes)


def await_full(world: World) -> None:
    """Wait until a thread waits for room."""
    world.clock.await_waiter(world.clock.now_ms() + ASK_HELD_MS)


def test_store_waits_while_too_much_is_held_and_a_cleanup_wakes_it() -> None:
    with running(Idle(), max_held_bytes=100) as world:
        world.driver.held_bytes = 100
        world.receiver.store(["a"])
        storing = InThread(lambda: world.receiver.store(["b"]))
        await_full(world)
        world.supervisor.update_held(100)
        world.clock.advance(1_000_000)
        assert not storing.is_done
        world.supervisor.update_held(99)
        storing.join()
        assert world.records() == ["a", "b"]


def test_a_word_of_the_driver_that_is_lost_does_not_make_the_receiver_wait_for_ever() -> None:
    with running(Idle(), max_held_bytes=100) as world:
        world.driver.held_bytes = 100
        world.receiver.store(["a"])
        storing = InThread(lambda: world.receiver.store(["b"]))
        await_full(world)
        # The driver has processed all of it, and nobody has told the receiver.
        world.driver.held_bytes = 0
        world.clock.advance(ASK_HELD_MS)
        storing.join()
        assert world.records() == ["a", "b"]


def test_a_receiver_that_waits_asks_until_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(Idle(), max_held_bytes=100) as world:
        fill(world)
        storing = InThread(lambda: world.receiver.store(["a"]))
        asked: list[int] = []

        def no_answer() -> UpdateHeldBytes:
            asked.append(1)
            raise RpcUnavailableError("nobody is there", "driver", "AskHeldBytes")

        with monkeypatch.context() as patched:
            patched.setattr(world.supervisor._held, "_ask", no_answer)
            for _ in range(3):
                await_full(world)
                world.clock.advance(ASK_HELD_MS)
            await_full(world)
            assert len(asked) == 3
        world.driver.held_bytes = 0
        world.clock.advance(ASK_HELD_MS)
        storing.join()
        assert world.records() == ["a"]


def test_an_overtaken_word_of_the_driver_changes_nothing() -> None:
    with running(Idle(), max_held_bytes=100) as world:
        world.supervisor.update_held(100, version=7)
        world.supervisor.update_held(0, version=6)
        world.driver.held_bytes, world.driver.held_version = 100, 7
        storing = InThread(lambda: world.receiver.store(["a"]))
        await_full(world)
        assert world.records() == []
        world.supervisor.update_held(0, version=8)
        storing.join()
        world.supervisor.update_rate(10.0, version=2)
        world.supervisor.update_rate(0.0, version=1)
        assert world.limiter.rate == 10.0


# -- what may still be reported --------------------------------------------------------------------


def test_a_block_that_waits_to_be_reported_again_keeps_its_number_and_its_segment_open() -> None:
    with running(Idle(), max_failures=5) as world:
        world.handler.segment = "received/data/x/0000000001-0-60000-aa.log"
        world.receiver.store(["first"])
        world.driver.answers = [BlockAdded(False, 0, "the log cannot be written")]
        waiting = InThread(lambda: world.receiver.store(["refused"]))
        wait_for_driver(world)
        world.handler.segment = "received/data/x/0000000002-0-60000-aa.log"
        world.receiver.store(["another thread"])
        world.clock.advance(500)
        waiting.join()
        world.receiver.store(["last"])
        assert world.records() == ["first", "another thread", "refused", "last"]
        numbers = [(info.block_id[-1], first) for info, first, _ in world.driver.reports]
        assert numbers == [("0", 0), ("1", 1), ("2", 1), ("1", 1), ("3", 3)]
        assert [path[25] for _, _, path in world.driver.reports] == ["1", "1", "1", "1", "2"]


def test_blocks_are_stored_at_the_same_time_and_one_that_is_being_stored_keeps_its_segment_open() -> (
    None
):
    """Its record may be in the log already, in a segment that nobody knows yet."""
    first, second = (f"received/data/x/000000000{n}-0-60000-aa.log" for n in (1, 2))
    with running(Idle()) as world:
        world.handler.segment = first
        begun, go_on = threading.Event(), threading.Event()
        store = world.handler.store

        def slowly(block_id: str, block: EncodedBlock) -> BlockInfo:
            info = store(block_id, block)
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return info

        world.handler.store = slowly  # type: ignore[method-assign]
        slow = InThread(lambda: world.receiver.store(["slow"]))
        assert begun.wait(PATIENCE_S)
        world.handler.store = store  # type: ignore[method-assign]
        world.handler.segment = second
        world.receiver.store(["quick"])
        go_on.set()
        slow.join()
        world.receiver.store(["last"])
        assert world.records() == ["quick", "slow", "last"]
        oldest = [path for _, _, path in world.driver.reports]
        assert oldest == ["received/data/x/", first, second]


def test_a_block_that_was_given_up_keeps_nothing_open() -> None:
    with running(Idle(), max_failures=1) as world:
        world.driver.answers = [ConnectionError("no answer")]
        with pytest.raises(ConnectionError):
            world.receiver.store(["given up"])
        world.receiver.store(["last"])
        assert [first for _, first, _ in world.driver.reports] == [0, 1]


def test_on_the_machines_clock_as_well() -> None:
    """It cannot wait for ever."""
    world = World(Idle(), max_held_bytes=100)
    world.supervisor._held._clock = SystemClock()
    fill(world)
    looked = threading.Event()

    def is_interrupted() -> bool:
        looked.set()
        return False

    waiting = InThread(lambda: world.supervisor._held.wait_for_room(is_interrupted))
    assert looked.wait(PATIENCE_S)
    fill(world)
    assert not waiting.is_done
    fill(world, 0)
    waiting.join()


def test_records_wait_in_bounded_memory_while_too_much_is_held() -> None:
    with running(Idle(), max_held_bytes=100, queue_size=1) as world:
        fill(world)
        world.receiver.store("a")
        world.clock.tick(200)
        await_full(world)
        assert world.handler.stored == 0
        fill(world, 0)
        world.driver.await_(lambda: world.driver.infos, "the block")


def test_the_last_records_are_stored_even_if_too_much_is_held() -> None:
    with running(Idle(), max_held_bytes=100) as world:
        fill(world)
        world.driver.held_bytes = 100
        world.receiver.store(0)
        world.clock.tick(200)
        await_full(world)
        for number in (1, 2):
            world.receiver.store(number)
            world.clock.tick(200)
        world.stop()
        assert world.records() == [0, 1, 2]
        assert world.driver.errors == []


# -- stopping while somebody stores ----------------------------------------------------------------


class Joining(Idle):
    """Its thread stores, and ``onStop`` waits for it, as the documentation allows."""

    def __init__(self, data: list[Any]) -> None:
        super().__init__()
        self.data = data
        self.refused: list[Any] = []

    def onStart(self) -> None:
        super().onStart()
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def receive(self) -> None:
        for each in self.data:
            try:
                self.store(each)
            except (IllegalStateError, ReceiverError):
                self.refused.append(each)
                return

    def onStop(self) -> None:
        self.thread.join(DEADLINE_S)
        self.calls.append("stuck" if self.thread.is_alive() else "stop")


def wait_for_rate(world: World) -> None:
    world.clock.await_waiter(1_000_000)


def wait_for_held(world: World) -> None:
    await_full(world)


def wait_for_driver(world: World) -> None:
    world.clock.await_waiter(500)


@pytest.mark.parametrize(
    ("data", "settings", "has_come", "kept"),
    [
        (["a", "b"], {"max_rate": 0.001}, wait_for_rate, ["a"]),
        ([["a"], ["b"]], {"max_rate": 0.001}, wait_for_rate, ["a"]),
        ([["a"], ["b"]], {"max_held_bytes": 100}, wait_for_held, ["a"]),
        ([["refused"]], {}, wait_for_driver, []),
    ],
)
def test_stop_while_store_waits(
    data: list[Any], settings: dict[str, Any], has_come: Callable[[World], None], kept: list[Any]
) -> None:
    receiver = Joining(data)
    world = World(receiver, **settings)
    world.driver.held_bytes = 100
    world.driver.refuses = not kept
    world.supervisor.start()
    has_come(world)
    world.stop()
    assert receiver.calls == ["start", "stop"]
    assert receiver.refused == [data[-1]]
    assert world.records() == kept


def test_stop_while_a_record_waits_for_room_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.receivers.executor.supervisor.BlockGenerator", small_generator)
    receiver = Joining(list(range(100)))
    world = World(receiver, queue_size=1, max_held_bytes=100)
    fill(world)
    world.supervisor.start()
    await_full(world)
    world.stop()
    assert receiver.calls == ["start", "stop"]
    assert receiver.refused == [len(world.records())]
    assert world.records() == list(range(len(world.records())))


def small_generator(*arguments: Any, **options: Any) -> Any:
    from tidemill.receivers.executor.block_generator import BlockGenerator

    return BlockGenerator(*arguments, **options, max_block_bytes=1)


def test_a_driver_that_goes_on_refusing_at_the_end_is_believed() -> None:
    with running(Idle(), max_failures=3) as world:
        world.driver.refuses = True
        world.receiver.store("a")
        world.receiver.store("b")
        world.supervisor.stop("enough")
        world.clock.await_waiter(500)
        world.clock.advance(500)
        world.clock.await_waiter(1500)
        world.clock.advance(1000)
        InThread(world.supervisor.wait).join()
        world.driver.await_error("the last 2 records could not be stored")


def test_at_the_end_there_is_no_pause_before_the_next_try() -> None:
    with running(Idle()) as world:
        world.driver.answers = [ConnectionError("no answer")] * 20
        world.receiver.store("a")
        world.clock.tick(200)
        for failure in range(5):
            world.driver.await_(
                lambda failure=failure: len(world.driver.errors) > failure,  # type: ignore[misc]
                "the report",
            )
            now_ms, pause_ms = world.clock.now_ms(), 500 << failure
            world.clock.await_waiter(now_ms + pause_ms)
            if failure < 4:
                world.clock.advance(pause_ms)
        world.driver.answers.clear()
        world.stop()
        assert world.records() == ["a"]


def test_a_restart_while_the_receiver_waits_for_room_does_not_lose_what_it_stores() -> None:
    receiver = Idle()
    with running(receiver, max_held_bytes=100) as world:
        fill(world)
        receiver.store("a")
        world.clock.tick(200)
        direct = InThread(lambda: receiver.store(["b"]))
        await_full(world)
        receiver.restart("why not")
        with pytest.raises(IllegalStateError, match="nothing can be stored now"):
            direct.join()
        fill(world, 0)
        assert world.await_records(1) == ["a"]


# -- all of it -------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    failures=st.lists(st.sampled_from([NOT_ACCEPTED, ConnectionError("no answer")]), max_size=4),
    actions=st.lists(
        st.one_of(
            st.integers(0, 9),
            st.lists(st.text(max_size=2), max_size=3),
            st.just("tick"),
            st.binary(),
        ),
        max_size=12,
    ),
)
def test_whatever_the_driver_says_what_was_stored_is_there_once(
    failures: list[Any], actions: list[Any]
) -> None:
    receiver: Receiver = Idle()
    with running(receiver, max_failures=100) as world:
        world.driver.answers = list(failures)
        records: list[Any] = []
        blocks: list[Any] = []

        def follow() -> None:
            for action in actions:
                if action == "tick":
                    continue
                receiver.store(action)
                if isinstance(action, int):
                    records.append(action)
                else:
                    blocks.extend(action if isinstance(action, list) else [action])

        following = InThread(follow)
        while not following.is_done:
            world.clock.advance(100)
        following.join()
        world.await_records(len(records) + len(blocks))
        world.stop()
        taken = world.records()
        assert [each for each in taken if isinstance(each, int)] == records
        assert [each for each in taken if not isinstance(each, int)] == blocks
