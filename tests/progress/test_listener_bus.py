from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from tests.waiting import DEADLINE_S
from tidemill.common.clock import ManualClock
from tidemill.progress.batch_info import BatchInfo, OutputOperationInfo, StreamInputInfo
from tidemill.progress.events import BatchCompleted, ReceiverStarted, StreamingStarted
from tidemill.progress.listener_bus import ListenerBus
from tidemill.progress.query_events import query_started, query_terminated
from tidemill.streaming import StreamingListener


class Recorder(StreamingListener):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def onStreamingStarted(self, streamingStarted: Any) -> None:
        self.seen.append(streamingStarted.time())


def test_every_listener_sees_every_event_in_order_even_those_before_start() -> None:
    bus = ListenerBus("test")
    first, second = Recorder(), Recorder()
    bus.add_listener(first)
    bus.add_listener(second)
    bus.post(StreamingStarted(1))
    bus.start()
    for time_ms in range(2, 50):
        bus.post(StreamingStarted(time_ms))
    assert bus.wait_until_empty(10)
    assert first.seen == second.seen == list(range(1, 50))
    bus.stop()


def test_a_removed_listener_sees_nothing_more() -> None:
    bus = ListenerBus("test")
    listener = Recorder()
    bus.add_listener(listener)
    bus.start()
    bus.post(StreamingStarted(1))
    bus.wait_until_empty(10)
    bus.remove_listener(listener)
    bus.post(StreamingStarted(2))
    bus.stop()
    assert listener.seen == [1]


def test_a_listener_that_fails_or_lacks_a_method_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(StreamingListener):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            raise RuntimeError("listener broke")

    bus = ListenerBus("test")
    listener = Recorder()
    for each in (Broken(), object(), listener):
        bus.add_listener(each)
    bus.start()
    bus.post(StreamingStarted(1))
    bus.post(StreamingStarted(2))
    bus.stop()
    assert listener.seen == [1, 2]
    assert "Broken failed in onStreamingStarted" in caplog.text


def test_stop_delivers_what_was_posted() -> None:
    release = threading.Event()

    class Slow(Recorder):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            release.wait(DEADLINE_S)
            super().onStreamingStarted(streamingStarted)

    bus = ListenerBus("test")
    listener = Slow()
    bus.add_listener(listener)
    bus.start()
    bus.post(StreamingStarted(1))
    bus.post(StreamingStarted(2))
    release.set()
    bus.stop()
    assert listener.seen == [1, 2]


def test_stop_does_not_wait_for_a_listener_that_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stopped, begun, heard = threading.Event(), threading.Event(), threading.Event()
    in_time: list[bool] = []

    class Waiting(StreamingListener):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            begun.set()
            in_time.append(stopped.wait(8))
            heard.set()

    bus = ListenerBus("test")
    bus.add_listener(Waiting())
    bus.start()
    bus.post(StreamingStarted(1))
    bus.post(StreamingStarted(2))
    assert begun.wait(DEADLINE_S)
    bus.stop()
    stopped.set()
    assert heard.wait(DEADLINE_S)
    assert in_time == [True]
    assert "a listener is still busy" in caplog.text


def test_events_wait_for_a_slow_listener_up_to_a_limit_and_the_log_counts_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()

    class Slow(Recorder):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            assert release.wait(DEADLINE_S)
            super().onStreamingStarted(streamingStarted)

    clock = ManualClock()
    bus = ListenerBus("test", capacity=5, clock=clock)
    listener, direct = Slow(), Recorder()
    bus.add_listener(listener)
    bus.add_direct_listener(direct)
    bus.start()
    for time_ms in range(8):
        bus.post(StreamingStarted(time_ms))
    assert bus.dropped == 3
    assert caplog.text.count("listeners miss 1") == 1
    clock.advance(60_000)
    bus.post(StreamingStarted(8))
    assert caplog.text.count("listeners miss 3") == 1
    release.set()
    assert bus.wait_until_empty(30)
    bus.post(StreamingStarted(9))
    bus.stop()
    assert listener.seen == [0, 1, 2, 3, 4, 9]
    assert direct.seen == list(range(10)), "what must know every event misses none"


def test_a_slow_listener_hears_that_a_query_has_started_and_ended() -> None:
    release = threading.Event()
    seen: list[str] = []

    class Slow:
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            assert release.wait(DEADLINE_S)

        def onQueryStarted(self, event: Any) -> None:
            seen.append(event.name)

        def onQueryTerminated(self, event: Any) -> None:
            seen.append(event.exception)

    ids = str(uuid.uuid4()), str(uuid.uuid4())
    bus = ListenerBus("test", capacity=2)
    bus.add_listener(Slow())
    bus.start()
    for time_ms in range(4):
        bus.post(StreamingStarted(time_ms))
    bus.post(query_started(*ids, "late", 0))
    bus.post(query_terminated(*ids, ValueError("broken"), None))
    assert bus.dropped == 2
    release.set()
    bus.stop(30)
    assert seen == ["late", "broken"]


def test_a_direct_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StreamingListener):
        def onStreamingStarted(self, streamingStarted: Any) -> None:
            raise RuntimeError("listener broke")

    bus = ListenerBus("test")
    listener = Recorder()
    bus.add_direct_listener(Broken())
    bus.add_listener(listener)
    bus.start()
    bus.post(StreamingStarted(1))
    bus.stop()
    assert listener.seen == [1]
    assert "Broken failed in onStreamingStarted" in caplog.text


def test_every_event_has_a_method_of_the_public_listener() -> None:
    from tidemill.progress import events

    types = [
        value
        for value in vars(events).values()
        if isinstance(value, type) and "listener_method" in vars(value)
    ]
    methods = {name for name in vars(StreamingListener) if name.startswith("on")}
    assert {type_.listener_method for type_ in types} == methods


def test_batch_info_answers_like_sparks() -> None:
    operation = OutputOperationInfo(1000, 0, "pprint", "pprint at app.py:3")
    submitted = BatchInfo(1000, {0: StreamInputInfo(0, 7)}, 1010, None, None, {0: operation})
    assert submitted.batchTime().milliseconds() == 1000
    assert submitted.numRecords() == 7
    assert (
        submitted.schedulingDelay() == submitted.processingDelay() == submitted.totalDelay() == -1
    )
    assert submitted.processingStartTime() == submitted.processingEndTime() == -1
    assert submitted.outputOperationInfos()[0].startTime() == -1
    assert submitted.outputOperationInfos()[0].failureReason() is None
    done = BatchInfo(1000, {}, 1010, 1030, 1100, {0: operation})
    assert (done.schedulingDelay(), done.processingDelay(), done.totalDelay()) == (20, 70, 90)
    assert BatchCompleted(done).batchInfo() is done
    assert ReceiverStarted.listener_method == "onReceiverStarted"
