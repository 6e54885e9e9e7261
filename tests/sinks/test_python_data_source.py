"""Python data sources that a query writes to."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

import tidemill
from tests.sinks.output import FakeQuery
from tests.sinks.python_writers import (
    ArrowFolder,
    Folder,
    FolderWriter,
    Written,
    calls_in,
    rows_in,
)
from tests.waiting import wait_for
from tidemill.errors import OwnershipLostError
from tidemill.sinks.python_data_source import PythonDataSourceSink
from tidemill.sources.memory_stream import MemoryStream
from tidemill.spark.errors.data_source_errors import DataSourceMethodError
from tidemill.spark.errors.failures import user_traceback

ROWS = [(n, str(n)) for n in range(6)]


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> FakeQuery:
    return FakeQuery(spark, tmp_path / "checkpoint")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def writing(**methods: Any) -> type[DataSource]:
    """Return a data source like :class:`Folder` whose writer has other methods."""
    writer = type("Writer", (FolderWriter,), methods)

    class Source(Folder):
        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            return writer(self.options["path"], overwrite)  # type: ignore[no-any-return]

    return Source


def start(query: FakeQuery, cls: type[DataSource], out: Path, **options: str) -> Any:
    return query.start(PythonDataSourceSink(cls, {"PATH": str(out), **options}))


def in_partitions(query: FakeQuery, partitions: int) -> Any:
    """Return the rows in partitions of their numbers: the first has 0, the second 1 and so on."""
    rdd = query.spark.sparkContext.parallelize(ROWS[:partitions], partitions)
    return query.spark.createDataFrame(rdd, query.schema)


def test_tasks_write_and_the_driver_commits_their_messages_in_order(
    query: FakeQuery, out: Path
) -> None:
    start(query, Folder, out)
    assert query.stage(0, ROWS) == 6
    assert rows_in(out) == []
    query.sink.commit(0)
    assert rows_in(out) == ROWS
    rows = in_partitions(query, 3).where("k <> 1")  # a task without rows has a message as well
    query.write(1, rows)
    assert calls_in(out)[1] == ["commit", [1, 0, 1], 1]
    assert list(out.glob("staged-*")) == []


def test_a_batch_that_comes_again_is_written_and_committed_again(
    query: FakeQuery, out: Path
) -> None:
    """The writer knows the id. Tidemill does not remember for it, as Spark does not."""
    for _ in range(2):
        start(query, Folder, out)
        assert not query.sink.has_batch(0)
        query.write(0, ROWS)
    assert [call[::2] for call in calls_in(out)] == [["commit", 0], ["commit", 0]]
    assert rows_in(out) == ROWS


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_complete_mode_overwrites(query: FakeQuery, out: Path, mode: str) -> None:
    query.mode = mode
    start(query, Folder, out)
    query.write(0, ROWS[:2])
    query.write(1, ROWS[2:4])
    assert rows_in(out) == (ROWS[:4] if mode == "append" else ROWS[2:4])


def test_an_arrow_writer_gets_batches_with_the_names_of_the_query(
    spark: SparkSession, tmp_path: Path, out: Path
) -> None:
    query = FakeQuery(spark, tmp_path / "checkpoint", "k long, k string")
    start(query, ArrowFolder, out)
    assert query.write(0, ROWS) == 6
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {tuple(names) for task in found for names, _ in task} == {("k", "k")}
    assert sum(rows for task in found for _, rows in task) == 6


def test_rows_have_their_names_even_if_two_are_alike(
    spark: SparkSession, tmp_path: Path, out: Path
) -> None:
    def write(self: Any, rows: Iterator[Row]) -> WriterCommitMessage:
        assert {tuple(row.__fields__) for row in rows} == {("k", "k")}
        return Written("", 0)

    query = FakeQuery(spark, tmp_path / "checkpoint", "k long, k string")
    start(query, writing(write=write, commit=lambda *arguments: None), out)
    assert query.write(0, ROWS) == 6


def test_rows_that_the_writer_does_not_read_are_computed_all_the_same(
    query: FakeQuery, out: Path
) -> None:
    seen = query.spark.sparkContext.accumulator(0)
    computed = F.udf(lambda k: seen.add(1) or k, "long")
    nothing = {"write": lambda self, rows: Written("", 0), "commit": lambda *arguments: None}
    start(query, writing(**nothing), out)
    rows = query.spark.createDataFrame(ROWS, query.schema)
    assert query.write(0, rows.withColumn("k", computed("k"))) == 6
    assert seen.value == 6


def test_a_task_that_fails_aborts_the_batch_with_the_messages_of_the_others(
    query: FakeQuery, out: Path, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"

    def write(self: Any, rows: Iterator[Row]) -> WriterCommitMessage:
        (row,) = rows
        if row.k == 1:
            wait_for(ready.exists, "the message of the other task", 120)
            raise ValueError("a poisonous row")
        return FolderWriter.write(self, iter([row]))

    sink = start(query, writing(write=write), out)
    with (
        threads_waiting(lambda: bool(sink._messages.value), ready.touch),
        pytest.raises(Exception, match="a poisonous row") as caught,
    ):
        query.write(3, in_partitions(query, 2))
    shown = user_traceback(caught.value)
    assert "in write" in shown
    assert "python_write_task" not in shown
    assert calls_in(out) == [["abort", [1, None], 3]]
    assert list(out.glob("staged-*")) == []
    query.start(PythonDataSourceSink(Folder, {"path": str(out)}))
    query.write(3, ROWS)
    assert rows_in(out) == ROWS


@contextmanager
def threads_waiting(condition: Callable[[], bool], then: Callable[[], None]) -> Iterator[None]:
    """Do something once a condition holds, while the block runs."""

    def wait() -> None:
        wait_for(condition, "the condition of the test", 120)
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


def failing(method: str) -> Callable[..., Any]:
    def raise_(self: Any, messages: Any, batchId: int) -> None:
        FolderWriter.note(self, method, messages, batchId)
        raise ValueError(f"cannot {method} batch {batchId}")

    return raise_


def test_a_commit_that_fails_is_followed_by_an_abort(query: FakeQuery, out: Path) -> None:
    start(query, writing(commit=failing("commit")), out)
    query.stage(0, ROWS[:1])
    with pytest.raises(DataSourceMethodError) as caught:
        query.sink.commit(0)
    said = str(caught.value)
    assert said.startswith("Traceback")
    assert "in raise_" in said
    assert "tidemill/" not in said
    assert said.endswith("writer.commit() of the Python data source 'test_folder' failed.")
    assert [call[0] for call in calls_in(out)] == ["commit", "abort"]
    query.sink.commit(0)
    query.sink.stop()
    assert len(calls_in(out)) == 2, "nothing is staged any more"


def test_a_commit_that_ends_the_program_is_followed_by_an_abort(
    query: FakeQuery, out: Path
) -> None:
    def leave(self: FolderWriter, messages: list[Any], batch_id: int) -> None:
        raise SystemExit(3)

    start(query, writing(commit=leave), out)
    query.stage(0, ROWS[:1])
    with pytest.raises(SystemExit):
        query.sink.commit(0)
    assert [call[0] for call in calls_in(out)] == ["abort"]


def test_an_abort_that_fails_is_logged_and_hides_nothing(
    query: FakeQuery, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(query, writing(commit=failing("commit"), abort=failing("abort")), out)
    query.stage(0, ROWS[:1])
    with caplog.at_level(logging.ERROR), pytest.raises(Exception, match="cannot commit batch 0"):
        query.sink.commit(0)
    (logged,) = [record.getMessage() for record in caplog.records]
    assert "batch 0 could not be aborted" in logged
    assert "cannot abort batch 0" in logged
    assert "cannot commit" not in logged


def test_what_was_staged_and_is_given_up_is_aborted(query: FakeQuery, out: Path) -> None:
    start(query, Folder, out)
    query.stage(0, ROWS[:1])
    query.stage(0, ROWS[:2])
    assert [call[0] for call in calls_in(out)] == ["abort"]
    query.sink.stop()
    query.sink.stop()
    assert [call[0] for call in calls_in(out)] == ["abort", "abort"]
    assert list(out.glob("staged-*")) == []


def test_a_driver_that_has_been_replaced_aborts_nothing(
    query: FakeQuery, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is its successor's, who may have committed it."""
    start(query, Folder, out)
    query.stage(0, ROWS[:1])

    def lost() -> Any:
        raise OwnershipLostError("another driver has it")

    monkeypatch.setattr(query.storage, "as_owner", lost)
    query.sink.stop()
    assert calls_in(out) == []


class NoWriter(Folder):
    streamWriter = DataSource.streamWriter


class WrongWriter(Folder):
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return "a writer"


class FailingWriter(Folder):
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        raise ValueError("boom")


class UnpicklableWriter(Folder):
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = FolderWriter("", overwrite)
        writer.lock = threading.Lock()  # type: ignore[attr-defined]
        return writer


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (NoWriter, r"cannot be written to as a stream: its class has no streamWriter\(\)"),
        (WrongWriter, r"must return a DataSourceStreamWriter or .*, not 'a writer'"),
        (FailingWriter, r"in streamWriter\n(.*\n)+ValueError: boom\n\n.*streamWriter\(\) of the"),
        (UnpicklableWriter, r"cannot be pickled .*Open connections and files in write\(\)"),
    ],
)
def test_a_class_that_cannot_write_is_refused_when_the_query_starts(
    query: FakeQuery, out: Path, cls: type[DataSource], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message) as caught:
        start(query, cls, out)
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"


def with_lock() -> WriterCommitMessage:
    message = WriterCommitMessage()
    message.lock = threading.Lock()  # type: ignore[attr-defined]
    return message


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (lambda: None, "DATA_SOURCE_TYPE_MISMATCH.* must return a WriterCommitMessage, not NoneTy"),
        (lambda: "done", "DATA_SOURCE_TYPE_MISMATCH.* must return a WriterCommitMessage, not str"),
        (with_lock, "cannot be pickled .* return names and numbers, not open files"),
    ],
)
def test_a_message_that_cannot_travel_is_said(
    query: FakeQuery, out: Path, message: Callable[[], Any], said: str
) -> None:
    start(query, writing(write=lambda self, rows: message()), out)
    with pytest.raises(Exception, match=said) as caught:
        query.write(0, ROWS)
    told = user_traceback(caught.value)
    assert told.startswith("SinkError: "), "nothing of ours comes first"
    assert "SQLSTATE" not in told
    assert calls_in(out)[0][0] == "abort"


# -- in a query ------------------------------------------------------------------------------------


@pytest.fixture
def words() -> Iterator[MemoryStream]:
    stream = MemoryStream("k long, v string", keep=True)
    yield stream
    stream.close()


@pytest.mark.parametrize("registered", ["before", "after"])
def test_a_query_writes_to_it_by_name(
    other_session: SparkSession, words: MemoryStream, tmp_path: Path, registered: str
) -> None:
    """A class may be registered before the session is attached, or after."""
    if registered == "before":
        other_session.dataSource.register(Folder)
    spark = tidemill.attach(other_session)
    if registered == "after":
        spark.dataSource.register(Folder)
    writer = spark.readStream.format(words.name).load().writeStream.format("TEST_Folder")
    with pytest.raises(AnalysisException, match="checkpointLocation"):
        writer.start(str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out")
    )
    words.add(ROWS[:2])
    query.processAllAvailable()
    words.add(ROWS[2:])
    query.processAllAvailable()
    progress = [(each.batchId, each.sink.numOutputRows) for each in query.recentProgress]
    assert progress[-2:] == [(0, 2), (1, 4)]
    assert query.lastProgress is not None
    assert query.lastProgress.sink.description == "PythonDataSource[test_folder]"
    query.stop()
    assert rows_in(tmp_path / "out") == ROWS


def test_a_query_that_fails_in_a_task_names_the_writer(
    other_session: SparkSession, words: MemoryStream, tmp_path: Path
) -> None:
    spark = tidemill.attach(other_session)
    spark.dataSource.register(Folder)
    writer = spark.readStream.format(words.name).load().writeStream.format("test_folder")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    words.add(ROWS)
    query = writer.option("poison", "4").start(str(tmp_path / "out"))
    with pytest.raises(StreamingQueryException) as caught:
        query.processAllAvailable()
    said = str(caught.value)
    assert "python_writers.py" in said
    assert "ValueError: a poisonous row" in said
    assert len(said.splitlines()) < 20
    query = writer.option("poison", "none").start(str(tmp_path / "out"))
    query.processAllAvailable()
    query.stop()
    assert [call[0] for call in calls_in(tmp_path / "out")] == ["abort", "commit"]
    assert rows_in(tmp_path / "out") == ROWS


def test_update_mode_and_classes_without_a_writer_are_refused(
    other_session: SparkSession, words: MemoryStream, tmp_path: Path
) -> None:
    class ReadsOnly(DataSource):
        @classmethod
        def name(cls) -> str:
            return "test_reads_only"

    spark = tidemill.attach(other_session)
    spark.dataSource.register(Folder)
    spark.dataSource.register(ReadsOnly)
    counts = spark.readStream.format(words.name).load().groupBy("v").count()

    def begin(name: str, mode: str) -> None:
        options = {"checkpointLocation": str(tmp_path / name), "path": str(tmp_path / "out")}
        counts.writeStream.format(name).outputMode(mode).options(**options).start()

    with pytest.raises(AnalysisException, match=r"update.*it does append, complete"):
        begin("test_folder", "update")
    with pytest.raises(AnalysisException, match=r"its class has no streamWriter\(\)"):
        begin("test_reads_only", "complete")
