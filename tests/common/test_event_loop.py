from __future__ import annotations

import queue
import threading

import pytest

from tests.waiting import DEADLINE_S
from tidemill.common.event_loop import EventLoop


def test_events_are_handled_in_order_on_one_other_thread() -> None:
    handled: queue.Queue[tuple[int, threading.Thread]] = queue.Queue()
    loop: EventLoop[int] = EventLoop(
        "test", lambda event: handled.put((event, threading.current_thread())), pytest.fail
    )
    loop.start()
    for event in range(100):
        assert loop.post(event)
    seen = [handled.get(timeout=DEADLINE_S) for _ in range(100)]
    assert [event for event, _ in seen] == list(range(100))
    assert len({thread for _, thread in seen}) == 1
    assert seen[0][1] is not threading.current_thread()
    assert loop.stop()


def test_an_error_is_reported_and_the_loop_goes_on() -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    handled: queue.Queue[int] = queue.Queue()

    def handle(event: int) -> None:
        if event == 1:
            raise ValueError("bad event")
        handled.put(event)

    loop: EventLoop[int] = EventLoop("test", handle, errors.put)
    loop.start()
    loop.post(1)
    loop.post(2)
    assert str(errors.get(timeout=DEADLINE_S)) == "bad event"
    assert handled.get(timeout=DEADLINE_S) == 2
    loop.stop()


def test_an_error_handler_that_fails_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled = threading.Event()

    def handle(event: str) -> None:
        if event == "bad":
            raise ValueError("bad event")
        handled.set()

    def fail(_: Exception) -> None:
        raise RuntimeError("handler broke")

    loop: EventLoop[str] = EventLoop("test", handle, fail)
    loop.start()
    loop.post("bad")
    loop.post("good")
    assert handled.wait(DEADLINE_S)
    loop.stop()
    assert "handler broke" in caplog.text


def test_after_stop_nothing_is_handled_and_post_says_so() -> None:
    entered, release = threading.Event(), threading.Event()
    handled = []

    def handle(event: int) -> None:
        handled.append(event)
        entered.set()
        release.wait(DEADLINE_S)

    loop: EventLoop[int] = EventLoop("test", handle, pytest.fail)
    loop.start()
    loop.post(1)
    loop.post(2)
    assert entered.wait(DEADLINE_S)
    assert not loop.stop(timeout_s=0.01)
    release.set()
    assert loop.stop()
    assert handled == [1]
    assert not loop.post(3)


def test_the_loop_can_stop_itself() -> None:
    stopped = threading.Event()
    loop: EventLoop[int]

    def stop(_: int) -> None:
        assert loop.is_current_thread()
        assert loop.stop()
        stopped.set()

    loop = EventLoop("test", stop, pytest.fail)
    loop.start()
    loop.post(1)
    assert stopped.wait(DEADLINE_S)
    assert loop.stop()
