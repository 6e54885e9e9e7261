"""The receiver tracker: where it starts and restarts receivers, and which messages it accepts."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from tests.receivers.driver.driver_world import (
    DriverWorld,
    Silent,
    block,
    driver,
    executor,
    faults,
    segment,
    slice_of,
)
from tests.waiting import DEADLINE_S, wait_for
from tidemill.failures.failed_streams import FAILURES_FILE
from tidemill.progress.batch_info import NOT_YET, ReceiverInfo
from tidemill.progress.events import (
    ReceiverReportedError,
    ReceiverStarted,
    ReceiverStopped,
    StreamEvent,
)
from tidemill.receivers.blocks.block import BlockPlace
from tidemill.receivers.driver.tracker import pause_ms
from tidemill.receivers.driver.tracking_info import ReceiverState, ReceiverTrackingInfo
from tidemill.receivers.messages import (
    AskHeldBytes,
    BlockAdded,
    Registered,
    StopReceiver,
    UpdateHeldBytes,
    UpdateRateLimit,
    decode,
)


def kinds(events: list[StreamEvent]) -> list[str]:
    return [type(each).__name__ for each in events]


def info_of(event: StreamEvent) -> ReceiverInfo:
    assert isinstance(event, ReceiverStarted | ReceiverReportedError | ReceiverStopped)
    return event.receiverInfo()


def state(it: DriverWorld, stream_id: int = 0) -> ReceiverTrackingInfo:
    return it.tracker._registry.infos()[stream_id]


def running(it: DriverWorld) -> list[int]:
    """The receivers that are scheduled or active."""
    return list(it.tracker._registry.infos(lambda info: info.state is not ReceiverState.INACTIVE))


def pass_the_pause(it: DriverWorld, expected_ms: int, launches: int) -> None:
    """Check that the receiver starts again after this time, not a millisecond earlier."""
    wait_for(it.has_a_waiter, "the pause", 30)
    it.clock.advance(expected_ms - 1)
    it.launches(launches)
    assert it.has_a_waiter()
    it.clock.advance(1)
    it.launches(launches + 1)


# -- the first start -------------------------------------------------------------------------------


def test_receivers_are_spread() -> None:
    with driver(executors=3, receivers=5) as it:
        launches = it.launches(5)
        assert sorted(each.on[0] for each in launches) == ["0", "0", "1", "1", "2"]
        assert [(each.stream_id, each.attempt) for each in launches] == [(n, 1) for n in range(5)]
        assert it.jobs.servers_on == [["0", "1", "2"]]
        assert running(it) == [0, 1, 2, 3, 4]
        assert state(it, 3).state is ReceiverState.SCHEDULED


def test_a_receiver_that_prefers_a_host_gets_it() -> None:
    with driver(executors=3, receivers=[Silent("node2"), Silent("nowhere"), Silent()]) as it:
        on = {each.stream_id: each.on for each in it.launches(3)}
        assert on[0] == ["2"]
        assert on[1] == ["nowhere"]
        assert set(on[2]) == {"0", "1"}


class Undecided(Silent):
    def preferredLocation(self) -> str | None:
        raise LookupError("where am I?")


def test_a_receiver_that_cannot_say_what_it_prefers_runs_anyway() -> None:
    with driver(executors=1, receivers=[Undecided(), Silent()]) as it:
        assert [each.on for each in it.launches(2)] == [["0"], ["0"]]
        (event,) = it.events
        assert isinstance(event, ReceiverReportedError)
        assert "preferredLocation() failed" in event.receiverInfo().last_error_message
        assert "LookupError: where am I?" in event.receiverInfo().last_error


def test_receivers_start_also_where_block_servers_do_not(caplog: pytest.LogCaptureFixture) -> None:
    it = DriverWorld([executor(0)], [Silent()])
    it.jobs.error = RuntimeError("no python there")
    it.tracker.start()
    it.launches(1)
    assert "cannot start block servers: no python there" in caplog.text
    it.tracker.stop()


def test_when_spark_does_not_answer_the_start_is_tried_again() -> None:
    it = DriverWorld([executor(0)], [Silent(), Silent()])
    it.executors.error = ConnectionError("no answer")
    it.tracker.start()
    wait_for(lambda: len(it.events) == 2, "errors", 30)
    assert all("ConnectionError: no answer" in info_of(each).last_error for each in it.events)
    it.executors.error = None
    wait_for(it.has_a_waiter, "the pause", 30)
    it.clock.advance(30_000)
    assert [each.on for each in it.launches(2)] == [["0"], ["0"]]
    it.tracker.stop()


# -- registering -----------------------------------------------------------------------------------


def test_a_receiver_that_arrives_where_it_was_sent_may_run() -> None:
    with driver() as it:
        (launch,) = it.launches(1)
        answer = it.register(0, 1, launch.on[0])
        assert answer == Registered(True, None, 0)
        assert state(it).state is ReceiverState.ACTIVE
        assert it.tracker.executors_with_receivers() == {launch.on[0]}
        (event,) = it.events
        assert isinstance(event, ReceiverStarted)
        assert event.receiverInfo() == ReceiverInfo(
            0, "Silent", True, f"node{launch.on[0]}", launch.on[0], "", "", NOT_YET
        )


def test_a_receiver_that_arrives_elsewhere_is_turned_away_and_sent_again() -> None:
    with driver(executors=2, receivers=[Silent("node0")]) as it:
        (launch,) = it.launches(1)
        assert it.register(0, 1, "1") == Registered(False, None, 0)
        assert (it.events, state(it).state) == ([], ReceiverState.SCHEDULED)
        launch.end("")
        pass_the_pause(it, 250, launches=1)
        assert it.jobs.launches[1].on == ["0"]
        assert it.register(0, 2, "0").accepted
        assert kinds(it.events) == ["ReceiverStarted"]


def test_a_receiver_that_cannot_get_to_its_place_may_run_anywhere() -> None:
    """Other receivers may have taken all cores of its place."""
    with driver(executors=2, receivers=[Silent("node0")]) as it:
        for attempt, pause in ((1, 250), (2, 500), (3, 1000)):
            assert it.launches(attempt)[-1].on == ["0"]
            assert not it.register(0, attempt, "1").accepted
            it.jobs.launches[-1].end("")
            pass_the_pause(it, pause, launches=attempt)
        assert it.jobs.launches[3].candidates == ()
        assert it.register(0, 4, "1").accepted


def test_a_host_is_a_place_for_any_executor_on_it() -> None:
    with driver(executors=[executor(0)], receivers=[Silent("node7")]) as it:
        assert it.launches(1)[0].on == ["node7"]
        assert not it.register(0, 1, "0", "node0").accepted
        assert it.register(0, 1, "9", "node7").accepted


@pytest.mark.parametrize("stream_id", [-1, 1, 99])
def test_a_receiver_that_nobody_has_sent_is_refused(stream_id: int) -> None:
    with driver() as it:
        it.launches(1)
        assert not it.register(stream_id, 1, "0").accepted
        assert not it.register(0, 0, "0").accepted
        assert not it.register(0, 2, "0").accepted
        answer = it.add_block(block(0, stream=99))
        assert (answer.accepted, it.blocks.all_blocks()) == (False, [])
        it.deregister(stream_id, 1, "", "an error")
        it.report_error(stream_id, "hello", "")
        assert (it.events, state(it).state) == ([], ReceiverState.SCHEDULED)


def test_an_attempt_registers_once() -> None:
    with driver() as it:
        on = it.launches(1)[0].on[0]
        assert it.register(0, 1, on).accepted
        assert not it.register(0, 1, on).accepted
        assert kinds(it.events) == ["ReceiverStarted"]


def test_who_registers_learns_what_the_others_were_told() -> None:
    with driver() as it:
        on = it.launches(1)[0].on[0]
        it.tracker.update_rate(0, 75.0)
        it.blocks.add("clicks-0", block(0, bytes=500))
        it.add_block_server("0")
        it.add_block_server("1")
        it.settle()
        assert it.register(0, 1, on) == Registered(
            True, 75.0, 500, ("0 node0 server-0", "1 node1 server-1"), 1, 1
        )


# -- an attempt that has been replaced -------------------------------------------------------------


def test_an_attempt_that_was_replaced_has_nothing_to_say() -> None:
    with driver() as it:
        first = it.launches(1)[0]
        on = first.on[0]
        it.register(0, 1, on)
        assert it.add_block(block(0)).accepted
        first.end("")
        it.launches(2)
        assert it.register(0, 2, on).accepted
        assert not it.register(0, 1, on).accepted
        late = it.add_block(block(1))
        assert late == BlockAdded(False, 1000, "another start has replaced this receiver", 1)
        it.deregister(0, 1, "I was slow", "an error")
        first.end("some error")
        it.settle()
        assert len(it.jobs.launches) == 2
        assert state(it).state is ReceiverState.ACTIVE
        assert it.blocks.end("clicks-0") == 1
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverStopped", "ReceiverStarted"]
        assert it.add_block(block(0, run="b2"), attempt=2).accepted


# -- jobs end --------------------------------------------------------------------------------------


def test_a_receiver_whose_executor_was_lost_starts_again_at_once_where_it_was() -> None:
    with driver(executors=3) as it:
        first = it.launches(1)[0]
        it.register(0, 1, first.on[0])
        first.end("")
        second = it.launches(2)[1]
        assert (second.candidates, second.attempt) == (first.candidates, 2)
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverStopped"]
        assert info_of(it.events[1]) == ReceiverInfo(0, "Silent", False, "", "")
        assert it.calls.forgotten == ["endpoint-0-1"]


def test_one_whose_candidates_are_all_gone_goes_to_the_least_loaded() -> None:
    with driver(executors=2, receivers=2) as it:
        on = {each.stream_id: each for each in it.launches(2)}
        for each in on.values():
            it.register(each.stream_id, 1, each.on[0])
        gone, other = on[0].on[0], on[1].on[0]
        it.executors.alive = [executor(int(other)), executor(7), executor(8)]
        on[0].end("the executor is lost")
        pass_the_pause(it, 250, launches=2)
        assert it.jobs.launches[2].on == ["7", "8"]
        assert gone not in it.jobs.launches[2].on
        assert it.jobs.servers_on[-1] == [other, "7", "8"]


def test_block_servers_are_started_on_executors_that_have_none() -> None:
    with driver(executors=2) as it:
        launch = it.launches(1)[0]
        it.add_block_server("0")
        it.add_block_server("1")
        it.register(0, 1, launch.on[0])
        it.executors.alive = [executor(1), executor(2)]
        launch.end("")
        it.launches(2)
        assert it.jobs.servers_on == [["0", "1"], ["2"]]
        answer = it.register(0, 2, it.jobs.launches[1].on[0])
        assert answer.replica_servers == ("1 node1 server-1",), "executor 0 is gone"


def test_a_receiver_that_ran_and_failed_starts_again_after_a_short_pause() -> None:
    with driver(executors=1) as it:
        for attempt in range(1, 6):
            launch = it.launches(attempt)[-1]
            it.register(0, attempt, "0")
            launch.end("Traceback: boom")
            pass_the_pause(it, 250, launches=attempt)
        assert (
            kinds(it.events) == ["ReceiverStarted", "ReceiverReportedError", "ReceiverStopped"] * 5
        )
        error = info_of(it.events[1])
        assert error.last_error == "Traceback: boom"
        assert error.last_error_message == "its task has ended; it is started again"
        assert (error.last_error_ms, error.is_active) == (1_000_000, False)


def test_starts_in_vain_are_slowed_down() -> None:
    with driver(executors=1) as it:
        pauses = [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        for attempt, pause in enumerate(pauses, start=1):
            it.launches(attempt)[-1].end("no module named receivers")
            pass_the_pause(it, pause, launches=attempt)
        assert set(kinds(it.events)) == {"ReceiverReportedError"}
        # A start that registers resets the count.
        it.register(0, len(pauses) + 1, "0")
        it.jobs.launches[-1].end("boom")
        pass_the_pause(it, 250, launches=len(pauses) + 1)


def test_the_pause_has_an_end_however_many_starts_were_in_vain() -> None:
    assert pause_ms(10**12) == 30_000


def test_when_spark_does_not_answer_a_restart_is_tried_again() -> None:
    with driver(executors=1) as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        it.executors.error = ConnectionError("no answer")
        it.jobs.launches[0].end("")
        wait_for(lambda: "ReceiverReportedError" in kinds(it.events), "the error", 30)
        it.executors.error = None
        pass_the_pause(it, 30_000, launches=1)


def test_a_receiver_that_ended_by_itself_is_not_started_again() -> None:
    with driver(executors=2, receivers=2) as it:
        launches = {each.stream_id: each for each in it.launches(2)}
        it.register(0, 1, launches[0].on[0])
        it.deregister(0, 1, "all read")
        launches[0].end("")
        it.settle()
        it.launches(2)
        assert not it.has_a_waiter()
        assert running(it) == [1]
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverStopped"]
        assert info_of(it.events[1]).last_error_message == "all read"


def test_a_receiver_that_ended_with_an_error_says_so_and_is_not_started_again(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "failures"
    noted.touch()
    monkeypatch.setenv(FAILURES_FILE, str(noted))
    with driver() as it:
        launch = it.launches(1)[0]
        it.register(0, 1, launch.on[0])
        it.deregister(0, 1, "cannot go on", "Traceback: boom")
        launch.end("")
        it.launches(1)
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverReportedError", "ReceiverStopped"]
        for event in it.events[1:]:
            info = info_of(event)
            assert (info.last_error_message, info.last_error) == ("cannot go on", "Traceback: boom")
        assert not info_of(it.events[-1]).is_active
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == (
        "the Silent of clicks-0 has failed, and receives nothing until the stream is started again: "
        "cannot go on\nTraceback: boom"
    )
    assert noted.read_text() == "the Silent of clicks-0 has failed: cannot go on\n"


def test_the_same_error_again_and_again_is_logged_the_1st_2nd_4th_8th_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with driver() as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        for attempt in range(1, 18):
            message = f"it could not start (try {attempt} of 20)"
            it.report_error(0, message, "ReceiverError: port 80 is taken")
        assert len(kinds(it.events)) == 18  # listeners hear of each
    logged = [message for message in caplog.messages if "could not start" in message]
    assert [int(re.findall(r"try (\d+)", message)[0]) for message in logged] == [1, 2, 4, 8, 16]
    assert [len(message.splitlines()) for message in logged] == [2, 1, 1, 1, 1]


def test_a_word_of_its_end_that_comes_after_the_end_of_its_job_counts() -> None:
    with driver() as it:
        launch = it.launches(1)[0]
        it.register(0, 1, launch.on[0])
        launch.end("the driver was not told")
        wait_for(it.has_a_waiter, "the pause", 30)
        it.deregister(0, 1, "all read")
        it.clock.advance(60_000)
        wait_for(lambda: not it.has_a_waiter(), "the end of the pause", 30)
        it.launches(1)
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverReportedError", "ReceiverStopped"]


# -- errors ----------------------------------------------------------------------------------------


def test_errors_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with driver() as it:
        on = it.launches(1)[0].on[0]
        it.register(0, 1, on)
        it.clock.advance(5)
        it.report_error(0, "the socket is closed", "Traceback: boom\n")
        assert kinds(it.events) == ["ReceiverStarted", "ReceiverReportedError"]
        assert info_of(it.events[1]) == ReceiverInfo(
            0,
            "Silent",
            True,
            f"node{on}",
            on,
            "the socket is closed",
            "Traceback: boom\n",
            1_000_005,
        )
        said = "the Silent of clicks-0: the socket is closed\nTraceback: boom"
        assert any(said in message for message in caplog.messages)
        assert state(it).last_error == "Traceback: boom\n"


# -- blocks ----------------------------------------------------------------------------------------


def test_blocks_are_taken_over_and_what_is_held_is_told() -> None:
    with driver() as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        assert it.add_block(block(0, bytes=100)) == BlockAdded(True, 100, "", 1)
        assert it.add_block(block(1, bytes=50)) == BlockAdded(True, 150, "", 2)
        assert it.add_block(block(1, bytes=50)) == BlockAdded(True, 150, "", 2)
        assert it.blocks.end("clicks-0") == 2


def test_a_block_that_could_not_be_written_is_not_accepted(tmp_path: Path) -> None:
    with driver(folder=tmp_path / "checkpoint") as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        with faults(tmp_path, "log.append@1=enospc"):
            answer = it.add_block(block(0))
            assert not answer.accepted
            assert "No space left on device" in answer.reason
            assert it.blocks.end("clicks-0") == 0
            assert it.add_block(block(0)).accepted
        assert it.blocks.end("clicks-0") == 1


def test_a_block_that_is_reported_again_does_not_keep_its_segment(tmp_path: Path) -> None:
    with driver(folder=tmp_path) as it:
        storage = it.cleaner.storage
        assert storage is not None
        it.register(0, 1, it.launches(1)[0].on[0])
        old, new = segment(1, "clicks-0"), segment(2, "clicks-0")
        blocks = [block(n, slice_=slice_of(path)) for n, path in enumerate((old, old, new))]
        for path in (old, new):
            with storage.open_write(path) as file:
                file.write(b"x")
        for each in blocks:
            assert it.add_block(each).accepted
        it.tracker.forget(it.blocks.forget("clicks-0", 1))
        it.settle()
        assert it.add_block(blocks[0]).accepted
        it.tracker.forget(it.blocks.forget("clicks-0", 2))
        it.settle()
        assert [storage.exists(path) for path in (old, new)] == [False, True]


def test_blocks_that_are_done_are_cleaned_up_everywhere() -> None:
    with driver(executors=2, receivers=2) as it:
        for launch in it.launches(2):
            it.register(launch.stream_id, 1, launch.on[0])
        place = BlockPlace("1", "node1", "", "server-1")
        for n in range(3):
            it.add_block(block(n, bytes=100, places=(place,), slice_=None))
        it.tracker.forget(it.blocks.forget("clicks-0", 2))
        it.tracker.forget([])
        it.settle()
        ids = (block(0).block_id, block(1).block_id)
        assert it.calls.cleanups == [("server-1", ids), ("endpoint-0-1", ids)]


def test_a_receiver_is_told_how_much_is_left_when_batches_are_done() -> None:
    """Also while a window keeps the blocks."""
    with driver(receivers=2) as it:
        for launch in it.launches(2):
            it.register(launch.stream_id, 1, launch.on[0])
        for n in range(3):
            it.add_block(block(n, bytes=100, places=(), slice_=None))
        it.blocks.process("clicks-0", 2)
        it.tracker.processed(0)
        it.settle()
        assert it.calls.told == [("endpoint-0-1", UpdateHeldBytes(100, 4))]
        answer = decode(UpdateHeldBytes, it.say(AskHeldBytes(0)))
        assert answer == UpdateHeldBytes(100, 4)


def test_a_receiver_that_does_not_run_is_not_told_of_blocks_that_are_done() -> None:
    with driver() as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        it.add_block(block(0, places=(), slice_=None))
        it.deregister(0, 1)
        it.tracker.forget(it.blocks.forget("clicks-0", 1))
        it.settle()
        assert it.calls.cleanups == []


# -- rates -----------------------------------------------------------------------------------------


def test_a_rate_reaches_the_receiver_and_its_next_start() -> None:
    with driver() as it:
        launch = it.launches(1)[0]
        it.tracker.update_rate(0, 10.0)
        it.settle()
        assert it.calls.told == []
        assert it.register(0, 1, launch.on[0]).rate == 10.0
        it.tracker.update_rate(0, 20.0)
        it.settle()
        assert it.calls.told == [("endpoint-0-1", UpdateRateLimit(20.0, 2))]
        launch.end("")
        it.launches(2)
        it.tracker.update_rate(0, 30.0)
        it.settle()
        assert len(it.calls.told) == 1, "its endpoint is gone"
        assert it.register(0, 2, launch.on[0]).rate == 30.0


def test_a_rate_that_did_not_arrive_is_told_again_until_another_holds() -> None:
    with driver() as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        it.calls.unreachable = {"endpoint-0-1"}
        it.tracker.update_rate(0, 20.0)
        it.settle()
        told = [("endpoint-0-1", UpdateRateLimit(20.0, 1))]
        assert it.calls.told == told
        it.calls.unreachable = set()
        it.clock.advance(1000)
        wait_for(lambda: len(it.calls.told) == 2, "the rate", 30)
        it.settle()
        assert it.calls.told == told * 2
        it.clock.advance(10_000)
        it.settle()
        assert it.calls.told == told * 2


# -- the end ---------------------------------------------------------------------------------------


def test_a_stop_that_did_not_arrive_is_told_again_and_does_not_mean_at_once() -> None:
    with driver() as it:
        it.register(0, 1, it.launches(1)[0].on[0])
        it.calls.unreachable = {"endpoint-0-1"}
        it.tracker.stop_receivers("enough", 5.0)
        assert it.calls.told == [("endpoint-0-1", StopReceiver("enough"))] * 2
        it.calls.unreachable = set()
        it.tracker.stop_receivers("enough", 5.0)
        assert it.calls.told[2:] == [("endpoint-0-1", StopReceiver("enough", at_once=True))]


def test_all_are_told_to_end_and_none_is_started_again() -> None:
    with driver(executors=3, receivers=3) as it:
        launches = {each.stream_id: each for each in it.launches(3)}
        it.register(0, 1, launches[0].on[0])
        it.register(1, 1, launches[1].on[0])
        assert it.tracker.stop_receivers("enough", 5.0)
        assert it.jobs.waited_s == [5.0]
        assert it.calls.told == [
            ("endpoint-0-1", StopReceiver("enough")),
            ("endpoint-1-1", StopReceiver("enough")),
        ]
        # One deregisters, one is lost, one arrives too late.
        assert it.add_block(block(0)).accepted, "what they have stored counts"
        it.deregister(0, 1, "enough")
        launches[0].end("")
        launches[1].end("lost")
        assert not it.register(2, 1, launches[2].on[0]).accepted
        launches[2].end("")
        it.settle()
        it.clock.advance(60_000)
        it.launches(3)
        assert running(it) == []
        stopped = [info_of(e).stream_id for e in it.events if isinstance(e, ReceiverStopped)]
        assert sorted(stopped) == [0, 1]
        assert it.tracker.stop_receivers("again", 30)


def test_a_restart_that_waits_does_not_outlive_the_stop() -> None:
    with driver() as it:
        it.launches(1)[0].end("boom")
        wait_for(it.has_a_waiter, "the pause", 30)
        it.tracker.stop_receivers("enough", 1)
        wait_for(lambda: not it.has_a_waiter(), "the end of the pause", 30)
        it.clock.advance(60_000)
        it.launches(1)


def test_stopping_ends_everything_and_may_be_repeated() -> None:
    it = DriverWorld([executor(0)], [Silent()])
    it.tracker.start()
    it.register(0, 1, it.launches(1)[0].on[0])
    it.add_block_server("0")
    it.jobs.error = RuntimeError("Spark is gone")
    it.tracker.stop()
    it.tracker.stop()
    assert (it.jobs.cancelled, it.calls.closed) == (2, 2)
    assert it.calls.stopped_servers == ["server-0"]
    assert it.add_block(block(0)).reason == "the stream has been stopped"
    assert not it.register(0, 1, "0").accepted
    it.tracker.update_rate(0, 1.0)
    it.tracker.forget([block(0)])


def test_a_tracker_that_never_started_can_be_stopped() -> None:
    it = DriverWorld([executor(0)], [Silent()])
    assert it.tracker.stop_receivers("enough", 1)
    it.tracker.stop()
    assert it.jobs.launches == []


# -- what others want to know ----------------------------------------------------------------------


def test_executors_that_have_a_receiver_or_will_have_one_are_busy() -> None:
    with driver(executors=4, receivers=[Silent(), Silent("node1"), Silent("elsewhere")]) as it:
        on = {each.stream_id: each.on for each in it.launches(3)}
        assert it.tracker.executors_with_receivers() == {*on[0], "1"}
        it.register(0, 1, on[0][0])
        assert it.tracker.executors_with_receivers() == {on[0][0], "1"}
        it.deregister(0, 1)
        assert it.tracker.executors_with_receivers() == {"1"}


def test_all_that_is_known_of_receivers() -> None:
    with driver(executors=[executor(0)], receivers=2) as it:
        it.launches(2)
        it.register(0, 1, "0")
        infos = it.tracker._registry.infos()
        assert {id_: info.state for id_, info in infos.items()} == {
            0: ReceiverState.ACTIVE,
            1: ReceiverState.SCHEDULED,
        }
        assert infos[0].running is not None
        assert (infos[0].running.executor_id, infos[0].name) == ("0", "Silent")


def test_executors_may_all_talk_at_once() -> None:
    with driver(executors=1, receivers=8) as it:
        it.launches(8)
        failures: list[BaseException] = []

        def talk(stream_id: int) -> None:
            try:
                it.add_block_server(f"x{stream_id}")
                assert it.register(stream_id, 1, "0").accepted
                for n in range(50):
                    assert it.add_block(block(n, stream=stream_id)).accepted
                    it.add_block_server(f"x{stream_id}-{n}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=talk, args=(n,)) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(DEADLINE_S)
        assert failures == []
        assert [it.blocks.end(f"clicks-{n}") for n in range(8)] == [50] * 8
