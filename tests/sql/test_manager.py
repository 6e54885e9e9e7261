from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkTypeError,
    PySparkValueError,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from tests.sql.fake_execution import FakeExecution
from tests.waiting import DEADLINE_S, wait_for
from tidemill.errors import BatchError, UsageError
from tidemill.progress.query_progress import ProgressReporter, SinkReport
from tidemill.sql import StreamingQuery
from tidemill.testing import ManualClock

Faked = tuple[SparkSession, list[FakeExecution]]


def start(session: SparkSession, name: str | None = None, **options: Any) -> StreamingQuery:
    writer = ticks(session).writeStream.format("noop").options(**options)
    if name is not None:
        writer = writer.queryName(name)
    query = writer.start()
    assert isinstance(query, StreamingQuery)
    return query


def ticks(session: SparkSession) -> DataFrame:
    return session.readStream.format("rate").load()


def test_a_query_is_active_until_it_ends(faked: Faked) -> None:
    session, made = faked
    first, second = start(session, "first"), start(session)
    assert session.streams.active == [first, second]
    assert session.streams.get(first.id) is first
    assert (first.name, second.name) == ("first", None)
    assert first.isActive
    assert "first" in repr(first)
    made[0].end()
    assert session.streams.active == [second]
    assert session.streams.get(first.id) is None
    assert not first.isActive
    assert made[0].asked == ["start"]


def test_an_id_that_is_none_is_refused(faked: Faked) -> None:
    session, _ = faked
    with pytest.raises(IllegalArgumentException, match="Invalid UUID string: zzz"):
        session.streams.get("zzz")


def test_a_name_is_taken_while_its_query_runs(faked: Faked) -> None:
    session, made = faked
    start(session, "totals")
    with pytest.raises(
        IllegalArgumentException, match="with name totals as a query with that name"
    ):
        start(session, "totals")
    made[0].end()
    start(session, "totals")


def test_a_checkpoint_has_one_query_at_a_time(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    session.conf.set("spark.sql.streaming.stopActiveRunOnRestart", False)
    first = start(session, "first", checkpointLocation=str(tmp_path / "c"))
    for same in (f"file://{tmp_path}/c", f"file:{tmp_path}/c", os.path.relpath(tmp_path / "c")):
        with pytest.raises(UsageError, match="in use by the query 'first', which is still active"):
            start(session, checkpointLocation=same)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "metadata").write_bytes((tmp_path / "c" / "metadata").read_bytes())
    made[0].end()
    again = start(session, checkpointLocation=str(tmp_path / "c"))
    assert (again.id, again.runId == first.runId) == (first.id, False)
    with pytest.raises(UsageError, match="still active"):
        start(session, checkpointLocation=str(tmp_path / "copy"))
    assert [execution.is_active for execution in made] == [False, True]


def test_a_query_stops_the_active_one_on_its_checkpoint(
    faked: Faked, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Spark: a cell of a notebook that starts a query can be run again."""
    session, made = faked
    first = start(session, "first", checkpointLocation=str(tmp_path / "c"))
    second = start(session, checkpointLocation=str(tmp_path / "c"))
    assert (first.isActive, second.isActive, second.id) == (False, True, first.id)
    assert made[0].asked == ["start", ("stop", False, None)]
    assert session.streams.active == [second]
    (warning,) = [each.getMessage() for each in caplog.records if "is stopped" in each.getMessage()]
    assert warning.startswith(
        "the query 'first' is stopped: it is started again from the checkpoint"
    )
    second.stop()
    start(session, checkpointLocation=str(tmp_path / "c"))


def test_a_query_is_not_stopped_from_inside(
    faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = faked
    first = start(session, "first", checkpointLocation=str(tmp_path / "c"))
    monkeypatch.setattr(FakeExecution, "runs_current_thread", True)
    with pytest.raises(UsageError, match="in use by the query 'first', which is still active"):
        start(session, checkpointLocation=str(tmp_path / "c"))
    assert first.isActive


def test_no_query_is_stopped_for_one_that_cannot_run(
    faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = faked
    first = start(session, "first", checkpointLocation=str(tmp_path / "c"))

    def refuse(*_: Any) -> FakeExecution:
        raise UsageError("it cannot run")

    monkeypatch.setattr(session.streams, "_make_execution", refuse)
    with pytest.raises(UsageError, match="it cannot run"):
        start(session, checkpointLocation=str(tmp_path / "c"))
    assert first.isActive


def test_a_temporary_checkpoint_is_deleted_unless_the_query_failed(faked: Faked) -> None:
    session, made = faked
    for _ in range(3):
        start(session)
    assert all(each.checkpoint.is_dir() for each in made)
    assert all(each.has_temporary_checkpoint for each in made)
    made[0].end()
    made[1].end(RuntimeError("broken"))
    session.conf.set("spark.sql.streaming.forceDeleteTempCheckpointLocation", True)
    made[2].end(RuntimeError("broken"))
    assert [each.checkpoint.exists() for each in made] == [False, True, False]


def test_the_session_has_a_directory_for_all_checkpoints(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    start(session, "totals")
    start(session)
    start(session, checkpointLocation=str(tmp_path / "mine"))
    assert made[0].checkpoint == tmp_path / "totals"
    assert made[1].checkpoint.parent == tmp_path
    assert made[2].checkpoint == tmp_path / "mine"
    assert not any(each.has_temporary_checkpoint for each in made)


def test_files_need_a_checkpoint(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    with pytest.raises(
        AnalysisException, match="checkpointLocation must be specified either through"
    ):
        ticks(session).writeStream.format("parquet").start(str(tmp_path))
    assert made == []


def test_waiting_for_one_query(faked: Faked) -> None:
    session, made = faked
    query = start(session)
    assert query.awaitTermination(0.01) is False
    made[0].end()
    assert query.awaitTermination(1) is True
    assert query.awaitTermination() is None
    for wrong in (0, -1, "soon"):
        with pytest.raises(PySparkValueError):
            query.awaitTermination(wrong)  # type: ignore[arg-type]


def test_an_error_is_raised_with_the_users_traceback_first(faked: Faked) -> None:
    session, made = faked
    query = start(session, "totals")
    cause = ZeroDivisionError("division by zero")
    made[0].end(BatchError("Traceback ...\nZeroDivisionError", "batch 3 failed", cause=cause))
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    text = str(raised.value)
    assert text.startswith("Traceback ...\nZeroDivisionError\n\nbatch 3 failed")
    which, cure, log = text.splitlines()[-3:]
    assert which == (
        f"Query 'totals' [id = {query.id}, runId = {query.runId}] ended with this error "
        "(STREAM_FAILED)."
    )
    assert cure == "It has no checkpointLocation: started again, it begins anew."
    assert log.startswith("The whole trace is in ")
    assert query.exception() is raised.value
    assert raised.value.getCondition() == "STREAM_FAILED"
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()


def test_an_error_of_tidemills_own_says_what_to_do_without_a_trace(faked: Faked) -> None:
    session, made = faked
    query = start(session)
    made[0].end(UsageError("write it in another way"))
    assert str(query.exception()).startswith("UsageError: write it in another way\n\nQuery [id =")


def test_waiting_for_any_query(faked: Faked) -> None:
    session, made = faked
    streams = session.streams
    for _ in range(3):
        start(session)
    assert streams.awaitAnyTermination(0) is False
    made[0].end()
    assert streams.awaitAnyTermination(1) is True
    assert streams.awaitAnyTermination() is None
    made[1].end(RuntimeError("broken"))
    with pytest.raises(StreamingQueryException, match="broken"):
        streams.awaitAnyTermination()
    made[2].end()  # a query without an error does not hide the failed one
    with pytest.raises(StreamingQueryException, match="broken"):
        streams.awaitAnyTermination(1)
    streams.resetTerminated()
    assert streams.awaitAnyTermination(0.01) is False
    with pytest.raises(PySparkValueError):
        streams.awaitAnyTermination(-1)


def test_the_error_of_a_query_that_is_about_to_end_is_not_missed(faked: Faked) -> None:
    """A program sees that it is active no more, and asks for the error while its checkpoint is given back."""
    session, made = faked
    start(session)
    start(session)
    made[0].end()
    made[1].is_active = False
    ending = threading.Thread(target=made[1].terminate, args=(RuntimeError("broken"),))
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(session.streams.awaitAnyTermination(60))
        except StreamingQueryException as error:
            answers.append(str(error.getCondition()))

    asking = threading.Thread(target=ask)
    asking.start()
    assert session.streams.awaitAnyTermination(0.01) is True
    ending.start()
    asking.join(DEADLINE_S)
    ending.join(DEADLINE_S)
    assert answers == ["STREAM_FAILED"]


def test_a_waiter_is_woken(faked: Faked) -> None:
    session, made = faked
    start(session)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(session.streams.awaitAnyTermination(60))
    )
    thread.start()
    made[0].end()
    thread.join(DEADLINE_S)
    assert answers == [True]


def test_what_a_query_is_asked_reaches_its_execution(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    session, made = faked
    query = start(session)
    query.processAllAvailable()
    query.explain()
    query.explain(True)
    assert capsys.readouterr().out == "the plan\nthe plan, extended\n"
    assert query.verify().not_compared == "a fake"
    assert query.status["message"] == "Stopped"
    assert query.lastProgress is None
    query.stop(graceful=True, timeout=5)
    query.stop()
    assert made[0].asked == ["start", "process all", ("stop", True, 5), ("stop", False, None)]


class Recorder(StreamingQueryListener):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.seen.append(("started", event.name, str(event.id), str(event.runId)))

    def onQueryProgress(self, event: Any) -> None:
        self.seen.append(("progress", event.progress.batchId))

    def onQueryIdle(self, event: Any) -> None:
        self.seen.append(("idle", event.timestamp))

    def onQueryTerminated(self, event: Any) -> None:
        self.seen.append(("terminated", event.exception, event.errorClassOnException))


def test_listeners_of_pyspark_hear_of_everything(faked: Faked) -> None:
    session, made = faked
    listener, broken = Recorder(), Recorder()
    del broken.seen
    session.streams.addListener(broken)
    session.streams.addListener(listener)
    query = start(session, "totals")
    # start() has returned, so the listeners know
    assert listener.seen == [("started", "totals", query.id, query.runId)]
    clock = ManualClock()
    reports = ProgressReporter(clock, query.id, query.runId, query.name, made[0].bus.post)
    reports.finish_trigger(0, has_executed=True, sources=[], sink=SinkReport("NoopSink"))
    clock.advance(10_000)
    reports.start_trigger()
    reports.finish_trigger(1, has_executed=False, sources=[], sink=SinkReport("NoopSink"))
    made[0].end(RuntimeError("broken"))
    wait_for(lambda: len(listener.seen) == 4, "four events")
    assert listener.seen[1:3] == [("progress", 0), ("idle", "1970-01-01T00:00:10.000Z")]
    assert "broken" in listener.seen[3][1]
    session.streams.removeListener(listener)
    start(session)
    assert len(listener.seen) == 4


def test_only_listeners_are_listeners(faked: Faked) -> None:
    session, _ = faked
    with pytest.raises(PySparkTypeError):
        session.streams.addListener(object())  # type: ignore[arg-type]


def test_a_query_that_cannot_start_leaves_nothing_behind(
    faked: Faked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, made = faked
    listener = Recorder()
    session.streams.addListener(listener)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(FakeExecution, "fails_to_start", UsageError("no such directory"))
    with pytest.raises(UsageError, match="no such directory"):
        start(session, "totals")
    assert session.streams.active == []
    wait_for(lambda: len(listener.seen) == 2, "two events")
    assert listener.seen[1] == ("terminated", "no such directory", None)
    monkeypatch.undo()
    start(session, "totals")
    assert made[1].is_active
