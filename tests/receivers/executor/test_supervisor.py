"""Starting, restarting and stopping a receiver: each at its time, never two at once."""

from __future__ import annotations

import errno
import pickle
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import StorageLevel

from tests.receivers.helpers import PATIENCE_S, Idle, InThread, World, running
from tests.waiting import wait_for
from tidemill.errors import IllegalStateError
from tidemill.receivers.executor.receiver_task import ExecutorSetup, ReceiverTask
from tidemill.receivers.receiver import Receiver


class FailsToStart(Idle):
    def __init__(
        self, failures: int, fail: Callable[[], Exception] = lambda: OSError("port 80 is taken")
    ) -> None:
        super().__init__()
        self.failures = failures
        self.fail = fail

    def onStart(self) -> None:
        super().onStart()
        if len(self.calls) <= 2 * self.failures:
            raise self.fail()


def unreachable() -> Exception:
    """Return an error of a library that did not get a connection."""
    error = RuntimeError("no broker")
    error.__cause__ = ConnectionRefusedError("nobody there")
    return error


def no_route() -> Exception:
    """Return the error of a machine whose network is down."""
    return OSError(errno.EHOSTUNREACH, "No route to host")


def ring() -> Exception:
    """Return an error whose chain comes back to itself, as a program can make it that cleans up first."""
    error, second = RuntimeError("no device"), RuntimeError("it cannot be closed")
    second.__context__, error.__cause__ = error, second
    return error


class Guarded(Idle):
    """Notices if its methods are called at the same time, or out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = threading.Lock()
        self.faults: list[str] = []

    def note(self, call: str, after: str) -> None:
        if not self.busy.acquire(blocking=False):
            self.faults.append(f"{call} while another call is at work")
            return
        if (self.calls or ["stop"])[-1] != after:
            self.faults.append(f"{call} after {self.calls}")
        self.calls.append(call)
        self.busy.release()

    def onStart(self) -> None:
        self.note("start", after="stop")

    def onStop(self) -> None:
        self.note("stop", after="start")


# -- before it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda receiver: receiver.store("a"),
        lambda receiver: receiver.store([1]),
        lambda receiver: receiver.storeRecord("a"),
        lambda receiver: receiver.restart("why"),
        lambda receiver: receiver.stop("why"),
        lambda receiver: receiver.reportError("what"),
        lambda receiver: receiver.streamId,
    ],
)
def test_a_receiver_that_does_not_run_says_so(call: Callable[[Receiver], Any]) -> None:
    with pytest.raises(IllegalStateError, match=r"pass it to StreamingContext\.receiverStream"):
        call(Idle())


def test_before_the_start() -> None:
    receiver = Idle()
    assert not receiver.isStarted()
    assert receiver.isStopped()
    assert receiver.preferredLocation() is None
    world = World(receiver)
    assert receiver.isStopped()
    assert receiver.streamId == 7
    with pytest.raises(IllegalStateError, match="is initialized"):
        receiver.store("a")
    world.stop()
    assert receiver.calls == []


def test_a_receiver_travels_without_its_supervisor() -> None:
    with running(Idle()) as world:
        copy = pickle.loads(pickle.dumps(world.receiver))  # noqa: S301
        assert copy.calls == ["start"]
        assert copy.storageLevel == StorageLevel.MEMORY_AND_DISK_2
        assert not copy.isStarted()
        with pytest.raises(IllegalStateError, match="does not run"):
            copy.store("a")


def test_a_subclass_that_forgets_to_call_init() -> None:
    class Careless(Idle):
        def __init__(self) -> None:
            self.calls = []

    assert Careless().storageLevel == StorageLevel.MEMORY_AND_DISK_2


# -- starting --------------------------------------------------------------------------------------


def test_start_and_stop() -> None:
    receiver = Idle()
    world = World(receiver)
    world.supervisor.start()
    assert receiver.isStarted()
    assert receiver.calls == ["start"]
    receiver.stop("enough", ValueError("of this"))
    InThread(world.supervisor.wait).join()
    assert receiver.calls == ["start", "stop"]
    assert receiver.isStopped()
    assert world.supervisor.end_message == "enough"
    assert "ValueError: of this" in world.supervisor.end_error
    assert world.driver.errors == []


def test_one_that_was_stopped_before_it_was_started_ends_without_a_start() -> None:
    """The driver may stop a receiver while its task is on its way."""
    receiver = Idle()
    world = World(receiver)
    world.supervisor.stop("not after all")
    world.supervisor.start()
    InThread(world.supervisor.wait).join()
    assert receiver.calls == []
    assert world.driver.errors == []


def test_one_that_cannot_start_is_reported_and_tries_again_after_the_delay() -> None:
    receiver = FailsToStart(failures=2)
    with running(receiver, restart_delay_ms=2000) as world:
        for attempt in (1, 2):
            world.clock.await_waiter(2000 * attempt)
            assert receiver.calls == ["start", "stop"] * attempt
            world.clock.advance(1999)
            assert receiver.isStopped()
            world.clock.advance(1)
        wait_for(lambda: receiver.calls == ["start", "stop"] * 2 + ["start"], "the third start")
        assert receiver.isStarted()
        assert [message for message, _ in world.driver.errors] == [
            f"it could not start (try {attempt} of 10); it is restarted in 2000 ms"
            for attempt in (1, 2)
        ]
        assert "OSError: port 80 is taken" in world.driver.errors[0][1]
    assert receiver.calls == ["start", "stop"] * 3


@pytest.mark.parametrize("fail", [lambda: OSError("port 80 is taken"), ring])
def test_one_that_never_starts_ends_as_failed(fail: Callable[[], Exception]) -> None:
    receiver = FailsToStart(99, fail)
    with running(receiver, restart_delay_ms=2000, max_failed_starts=3) as world:
        for attempt in (1, 2):
            world.clock.await_waiter(2000 * attempt)
            world.clock.advance(2000)
        world.supervisor.wait()
        assert receiver.calls == ["start", "stop"] * 3
        assert world.supervisor.end_message == "it could not start, 3 times in a row"
        assert str(fail()) in world.supervisor.end_error
        assert len(world.driver.errors) == 2


@pytest.mark.parametrize(
    "fail",
    [unreachable, TimeoutError, socket.gaierror, no_route, ssl.SSLEOFError, ssl.SSLZeroReturnError],
)
def test_one_that_cannot_connect_tries_for_ever(fail: Callable[[], Exception]) -> None:
    receiver = FailsToStart(4, fail)
    with running(receiver, restart_delay_ms=2000, max_failed_starts=3) as world:
        for attempt in range(1, 5):
            world.clock.await_waiter(2000 * attempt)
            world.clock.advance(2000)
        wait_for(receiver.isStarted, "the fifth start")
        assert [message for message, _ in world.driver.errors] == [
            "it could not connect; it is restarted in 2000 ms"
        ] * 4


def test_failed_starts_count_in_a_row_only() -> None:
    receiver = FailsToStart(failures=2)
    with running(receiver, restart_delay_ms=2000, max_failed_starts=3) as world:
        for attempt in (1, 2):
            world.clock.await_waiter(2000 * attempt)
            world.clock.advance(2000)
        wait_for(receiver.isStarted, "the third start")
        receiver.failures = 4  # the next one fails as well
        world.supervisor.restart("the connection has ended", None)
        world.clock.await_waiter(6000)
        world.clock.advance(2000)
        wait_for(lambda: len(world.driver.errors) == 4, "the failure")
        assert world.driver.errors[-1][0].startswith("it could not start (try 1 of 3)")


def test_one_that_receives_inside_of_on_start_can_be_stopped() -> None:
    class Blocking(Idle):
        def onStart(self) -> None:
            super().onStart()
            wait_for(self.isStopped, "the end")
            self.calls.append("returned")

    receiver = Blocking()
    world = World(receiver)
    starting = InThread(world.supervisor.start)
    wait_for(receiver.isStarted, "the start")
    world.stop()
    starting.join()
    assert receiver.calls == ["start", "returned", "stop"]


# -- restarting ------------------------------------------------------------------------------------


def test_restart_stops_waits_and_starts() -> None:
    receiver = Idle()
    with running(receiver) as world:
        receiver.restart("the quotes have ended", EOFError("end"), delay=0.5)
        assert receiver.isStopped()  # at once
        world.clock.await_waiter(500)
        assert receiver.calls == ["start", "stop"]
        world.clock.advance(500)
        wait_for(receiver.isStarted, "the restart")
        assert receiver.calls == ["start", "stop", "start"]
        assert "EOFError: end" in world.driver.await_error(
            "the quotes have ended; it is restarted in 500 ms"
        )


def test_threads_that_ask_for_the_same_restart_get_one() -> None:
    receiver = Guarded()
    with running(receiver) as world:
        for thread in [InThread(lambda: receiver.restart("broken")) for _ in range(5)]:
            thread.join()
        world.clock.await_waiter(2000)
        receiver.restart("broken, too")
        world.clock.advance(2000)
        wait_for(receiver.isStarted, "the restart")
        assert receiver.calls == ["start", "stop", "start"]
        assert len(world.driver.errors) == 1
    assert receiver.calls == ["start", "stop"] * 2
    assert receiver.faults == []


def test_an_error_in_on_stop_is_reported_and_the_restart_goes_on() -> None:
    class Stubborn(Idle):
        def onStop(self) -> None:
            super().onStop()
            raise RuntimeError("will not close")

    receiver = Stubborn()
    with running(receiver) as world:
        receiver.restart("why not", delay=0)
        wait_for(lambda: receiver.calls == ["start", "stop", "start"], "the restart")
        assert "will not close" in world.driver.await_error("failed while it was being stopped")


def test_a_stop_during_the_delay_ends_it_without_another_start() -> None:
    receiver = Idle()
    with running(receiver) as world:
        receiver.restart("broken")
        world.clock.await_waiter(2000)
        world.stop("enough")
        world.clock.advance(10_000)
        assert receiver.calls == ["start", "stop"]
        assert world.supervisor.end_message == "enough"


def test_while_its_last_records_are_stored_it_is_not_started_again() -> None:
    receiver = Idle()
    with running(receiver) as world:
        world.driver.answers = [ConnectionError("no answer")] * 3
        receiver.store("a")
        receiver.restart("broken")
        world.clock.await_waiter(2000)
        world.supervisor.stop("enough")
        world.driver.await_error("is not safe yet")
        receiver.restart("broken again")
        world.await_records(1)  # which takes longer than the delay of the restart
        world.supervisor.wait()
        assert world.clock.now_ms() > 0
        assert receiver.calls == ["start", "stop"]
        assert world.records() == ["a"]
        assert not any("again" in message for message, _ in world.driver.errors)


def test_the_first_reason_to_stop_is_the_one_that_counts() -> None:
    with running(Idle()) as world:
        world.supervisor.stop("first")
        world.supervisor.stop("second", ValueError())
        InThread(world.supervisor.wait).join()
        assert (world.supervisor.end_message, world.supervisor.end_error) == ("first", "")


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.sampled_from(["restart", "stop", "advance"]), max_size=6),
        min_size=1,
        max_size=3,
    )
)
def test_start_and_stop_alternate_whoever_asks_for_what(plans: list[list[str]]) -> None:
    receiver = Guarded()
    with running(receiver, restart_delay_ms=10) as world:
        actions = {
            "restart": lambda: world.supervisor.restart("why", None),
            "stop": lambda: world.supervisor.stop("why"),
            "advance": lambda: world.clock.advance(10),
        }

        def follow(plan: list[str]) -> None:
            for action in plan:
                actions[action]()

        for thread in [InThread(lambda plan=plan: follow(plan)) for plan in plans]:  # type: ignore[misc]
            thread.join()
    assert receiver.faults == []
    assert receiver.calls in (["start", "stop"] * n for n in range(20))


class Poison:
    """Ends the thread that pickles it, as a bug or a full memory would."""

    def __reduce__(self) -> Any:
        raise SystemExit("poison")


def test_a_dead_block_generator_restarts_the_receiver_with_another_one() -> None:
    receiver = Idle()
    with running(receiver, max_failures=1) as world:
        world.receiver.store("before")
        assert world.await_records(1) == ["before"]
        safe: list[str] = []
        world.receiver.storeRecord(Poison(), lambda: safe.append("poison"))
        world.supervisor.store_lines(b"behind it\n")  # lines make a block of their own
        world.clock.advance(200)  # the generator may die before it waits for the next time
        assert "SystemExit: poison" in world.driver.await_error("cannot be stored any more")
        wait_for(
            lambda: _advanced(world, receiver.calls == ["start", "stop", "start"]), "the restart"
        )
        world.driver.await_error("1 records are lost")
        world.receiver.store("after")
        world.receiver.store(["a block"])
        assert sorted(world.await_records(4)) == ["a block", "after", "before", "behind it"]
        assert safe == []
        assert receiver.isStarted()


def _advanced(world: World, is_done: bool) -> bool:
    world.clock.advance(200)
    return is_done


def test_records_that_are_nested_too_deeply_do_not_stop_a_receiver() -> None:
    """Some can be pickled alone and not in a list, which is one level more."""

    def nested(levels: int) -> Any:
        value: Any = []
        for _ in range(levels):
            value = [value]
        return value

    limit = sys.getrecursionlimit()
    with running(Idle()) as world:
        for levels in range(limit // 5, limit + 5):
            world.receiver.store((levels, nested(levels)))
        world.receiver.store("good")
        world.await_records(1)
        wait_for(lambda: _advanced(world, "good" in world.records()), "the good record")
        world.driver.await_error("records are lost, because they cannot be stored")
        assert world.receiver.isStarted()


class NeverStops(Idle):
    """Its ``onStop`` waits for a thread that does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def onStop(self) -> None:
        super().onStop()
        self.ended.wait(PATIENCE_S)


def test_an_on_stop_that_does_not_return_is_given_up_and_the_receiver_starts_elsewhere() -> None:
    receiver = NeverStops()
    world = World(receiver, stop_timeout_ms=20)
    world.supervisor.start()
    receiver.store("a")
    receiver.restart("broken")
    InThread(world.supervisor.wait).join()
    world.driver.await_error("has not returned 0.02 s after")
    assert world.supervisor.is_abandoned
    assert receiver.calls == ["start", "stop"]
    assert world.records() == ["a"]
    with pytest.raises(IllegalStateError):
        receiver.store("b")
    receiver.ended.set()


def test_an_on_stop_that_does_not_return_does_not_keep_a_receiver_from_ending() -> None:
    receiver = NeverStops()
    world = World(receiver, stop_timeout_ms=20)
    world.supervisor.start()
    receiver.store("a")
    world.stop()
    world.driver.await_error("has not returned 0.02 s after")
    assert not world.supervisor.is_abandoned
    assert world.records() == ["a"]
    receiver.ended.set()


def test_an_on_start_that_does_not_return_does_not_either() -> None:
    ended = threading.Event()

    class Endless(Idle):
        def onStart(self) -> None:
            super().onStart()
            ended.wait(PATIENCE_S)

    receiver = Endless()
    world = World(receiver, stop_timeout_ms=20)
    supervising = supervise(world)
    wait_for(lambda: receiver.calls == ["start"], "the start")
    world.supervisor.stop("enough")
    supervising.join()
    world.driver.await_error("has not returned 0.02 s after")
    ended.set()


# -- stopping --------------------------------------------------------------------------------------


def test_a_receiver_can_stop_itself_from_its_own_thread() -> None:
    class Ending(Idle):
        def onStart(self) -> None:
            super().onStart()
            self.thread = threading.Thread(target=self.receive, daemon=True)
            self.thread.start()

        def receive(self) -> None:
            self.store("last")
            self.stop("no more")
            assert self.isStopped()

        def onStop(self) -> None:
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive()
            super().onStop()

    receiver = Ending()
    world = World(receiver)
    world.supervisor.start()
    InThread(world.supervisor.wait).join()
    assert receiver.calls == ["start", "stop"]
    assert world.records() == ["last"]
    assert world.driver.errors == []


def test_what_is_stored_in_on_stop_is_kept() -> None:
    class Flushing(Idle):
        def onStop(self) -> None:
            super().onStop()
            self.store("a record")

    world = World(Flushing())
    world.supervisor.start()
    world.stop()
    assert world.records() == ["a record"]


def test_nothing_is_stored_after_the_end() -> None:
    receiver = Idle()
    with running(receiver) as world:
        receiver.store("a")
        world.stop()
        for data in ("b", ["c"], b"d", iter(["e"])):
            with pytest.raises(IllegalStateError, match="nothing can be stored now"):
                receiver.store(data)
        assert world.records() == ["a"]


# -- threads of the user's -------------------------------------------------------------------------


def supervise(world: World) -> InThread:
    task = ReceiverTask(ExecutorSetup("run", "tracker", b"secret"), 7, "input", 0)
    return InThread(lambda: task._supervise(world.supervisor))


class Fragile(Idle):
    """Its first thread fails."""

    def onStart(self) -> None:
        super().onStart()
        if len(self.calls) == 1:
            threading.Thread(target=self.receive, name="quotes", daemon=True).start()

    def receive(self) -> None:
        self.store("a")
        raise ZeroDivisionError("what was that")


def test_a_thread_that_fails_restarts_the_receiver() -> None:
    hook = threading.excepthook
    receiver = Fragile()
    world = World(receiver)
    supervising = supervise(world)
    error = world.driver.await_error("thread quotes of the receiver failed; it is restarted")
    assert "ZeroDivisionError: what was that" in error
    world.clock.await_waiter(2000)
    world.clock.advance(2000)
    wait_for(receiver.isStarted, "the restart")
    assert threading.excepthook is not hook
    world.supervisor.stop("enough")
    supervising.join()
    assert threading.excepthook is hook
    assert receiver.calls == ["start", "stop", "start", "stop"]
    assert world.records() == ["a"]


def test_a_thread_that_fails_because_it_is_stopped_is_no_news() -> None:
    """This happens when ``onStop`` closes a connection that a thread reads from."""

    class Closed(Idle):
        def onStart(self) -> None:
            super().onStart()
            self.closed = threading.Event()
            self.thread = threading.Thread(target=self.receive, daemon=True)
            self.thread.start()

        def receive(self) -> None:
            self.closed.wait(PATIENCE_S)
            raise OSError("Bad file descriptor")

        def onStop(self) -> None:
            super().onStop()
            self.closed.set()
            self.thread.join(PATIENCE_S)

    receiver = Closed()
    world = World(receiver)
    supervising = supervise(world)
    wait_for(lambda: receiver.calls == ["start"], "the start")
    world.supervisor.stop("enough")
    supervising.join()
    assert receiver.calls == ["start", "stop"]
    assert world.driver.errors == []


# -- reports ---------------------------------------------------------------------------------------


def test_errors_are_reported_with_their_tracebacks() -> None:
    receiver = Idle()
    with running(receiver) as world:
        receiver.reportError("odd", ValueError("a line of noise"))
        receiver.reportError("odder")
        assert world.driver.errors[0][0] == "odd"
        assert "ValueError: a line of noise" in world.driver.errors[0][1]
        assert world.driver.errors[1] == ("odder", "")
        assert receiver.isStarted()


def test_a_driver_that_cannot_be_told_does_not_stop_a_receiver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Idle()
    with running(receiver) as world:

        def gone(*_: str) -> None:
            raise ConnectionError("gone")

        monkeypatch.setattr(world.driver, "report_error", gone)
        receiver.restart("why not", delay=0)
        wait_for(lambda: receiver.calls == ["start", "stop", "start"], "the restart")
        assert "cannot report it to the driver: gone" in caplog.text
