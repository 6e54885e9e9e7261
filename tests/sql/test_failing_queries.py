"""What is said of a query that fails: the user's frames, the batch, the query, the cure, the log."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import tidemill
from tests.waiting import DEADLINE_S, wait_for
from tidemill.batches.planner import BatchPlanner
from tidemill.errors import SinkError
from tidemill.failures import uncaught
from tidemill.failures.failed_streams import FAILURES_FILE, failures_in
from tidemill.failures.failure_log import FAILURES
from tidemill.failures.uncaught import print_failures_short
from tidemill.spark.errors.user_frames import is_plumbing

MOST_LINES = 20
NOT_FOR_USERS = re.compile(r"py4j|org\.apache|/tidemill/(?!.*\.log)|site-packages/pyspark|\tat ")


def price(value: int) -> int:
    return 1 // (value - 3)


def prices(df: DataFrame) -> DataFrame:
    return df.select(sql.udf(price, "long")("value"))


def nested(value: int) -> int:
    def load(text: str) -> int:
        import json

        return int(json.loads(text)["price"])

    try:
        return load("{")
    except ValueError as error:
        raise LookupError(f"no price for {value}\nlook again\n" * 20) from error


def save(df: DataFrame, batch_id: int) -> None:
    raise ConnectionError("the database is away")


def save_prices(df: DataFrame, batch_id: int) -> None:
    prices(df).collect()


def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()


def bad_json(spark: SparkSession, folder: Path, mode: str) -> DataFrame:
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"a": 1}\n{bad\n')
    return spark.readStream.schema("a long").option("mode", mode).json(str(folder / "in"))


def to_noop(df: DataFrame, folder: Path) -> StreamingQuery:
    return df.writeStream.format("noop").queryName("prices").start()


def to_files(df: DataFrame, folder: Path) -> StreamingQuery:
    writer = df.writeStream.format("parquet").queryName("prices")
    return writer.option("checkpointLocation", str(folder / "c")).start(str(folder / "out"))


def to_batches(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, Path], Any]:
    return lambda df, folder: df.writeStream.foreachBatch(function).queryName("prices").start()


def to_rows(function: Callable[[Any], None]) -> Callable[[DataFrame, Path], Any]:
    return lambda df, folder: df.writeStream.foreach(function).queryName("prices").start()


def fail_on(row: Any) -> None:
    raise KeyError(row.value)


def pieces(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch["no such column"]


def group(value: int) -> int:
    failed = []
    for _ in range(3):
        try:
            price(3)
        except ZeroDivisionError as error:
            failed.append(error)
    raise ExceptionGroup("no prices", failed)


def save_group(df: DataFrame, batch_id: int) -> None:
    group(3)


def typo(value: int) -> int:
    return int(eval("1 +* 2"))  # noqa: S307


FAILING: dict[str, tuple[Callable[..., DataFrame], Callable[..., Any], str, str]] = {
    "a function of a column": (
        lambda spark, folder: prices(rows(spark)),
        to_noop,
        "in price",
        "ZeroDivisionError: integer division or modulo by zero",
    ),
    "a chain of errors with a long message": (
        lambda spark, folder: rows(spark).select(sql.udf(nested, "long")("value")),
        to_noop,
        "in nested",
        "LookupError: no price for",
    ),
    "a group of errors": (
        lambda spark, folder: rows(spark).select(sql.udf(group, "long")("value")),
        to_noop,
        "in group",
        "ExceptionGroup: no prices (3 sub-exceptions)",
    ),
    "a group of errors on the driver": (
        lambda spark, folder: rows(spark),
        to_batches(save_group),
        "in group",
        "ExceptionGroup: no prices (3 sub-exceptions)",
    ),
    "code that is not Python": (
        lambda spark, folder: rows(spark).select(sql.udf(typo, "long")("value")),
        to_noop,
        "in typo",
        "SyntaxError: invalid syntax",
    ),
    "a function on pandas": (
        lambda spark, folder: rows(spark).mapInPandas(pieces, "value long"),
        to_noop,
        "in pieces",
        "KeyError: 'no such column'",
    ),
    "FAILFAST on bad JSON": (
        lambda spark, folder: bad_json(spark, folder, "FAILFAST"),
        to_noop,
        "",
        "Malformed records are detected in record parsing",
    ),
    "an expression": (
        lambda spark, folder: rows(spark).select(sql.expr("1 / (value - value)")),
        to_noop,
        "",
        "[DIVIDE_BY_ZERO] Division by zero",
    ),
    "foreachBatch": (
        lambda spark, folder: rows(spark),
        to_batches(save),
        "in save",
        "ConnectionError: the database is away",
    ),
    "a job inside of foreachBatch": (
        lambda spark, folder: rows(spark),
        to_batches(save_prices),
        "in price",
        "in a Spark job that was started here:",
    ),
    "foreach": (lambda spark, folder: rows(spark), to_rows(fail_on), "in fail_on", "KeyError: "),
    "below a file sink": (
        lambda spark, folder: prices(rows(spark)),
        to_files,
        "in price",
        "ZeroDivisionError",
    ),
}


@pytest.fixture
def short_hook() -> Iterator[None]:
    before = sys.excepthook, uncaught._is_plumbing
    sys.excepthook = sys.__excepthook__
    print_failures_short(is_plumbing)
    yield
    sys.excepthook, uncaught._is_plumbing = before


def printed(call: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the terminal shows when the call is the last one of a program."""
    try:
        call()
    except BaseException as error:
        capsys.readouterr()
        sys.excepthook(type(error), error, error.__traceback__)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_is_told_in_twenty_lines(
    name: str,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    short_hook: None,
) -> None:
    read, start, frame, error = FAILING[name]
    query = start(read(spark, tmp_path), tmp_path)
    lines = printed(query.awaitTermination, capsys)
    text = "\n".join(lines)
    assert lines == str(query.exception()).splitlines()
    assert len(lines) < MOST_LINES  # the log adds a line
    assert NOT_FOR_USERS.search(text) is None, text
    assert error in text
    if frame:
        assert lines[0] == "Traceback (most recent call last):"
        assert re.search(r'File "[^"]*test_failing_queries\.py", line \d+, ' + frame, text)
    else:
        assert error in "\n".join(lines[:2])
    assert re.search(r"^Batch 0 failed (on the executors|on the driver|in Spark)\.$", text, re.M)
    assert f"Query 'prices' [id = {query.id}" in text
    cure = "it runs the batch again" if start is to_files else "it begins anew"
    assert cure in text
    assert query.exception().__cause__ is None
    assert query.exception().cause is not None
    path = re.findall(r"The whole trace is in (\S+\.log)\.", text)[0]
    whole = Path(path).read_text().rpartition("==== ")[2]
    assert "the query 'prices' failed" in whole
    assert "tidemill/sql/execution/query_pipeline.py" in whole
    if "on the driver" not in text:
        assert "\tat org.apache.spark" in whole


def test_a_source_that_fails_names_the_batch_that_it_was_asked_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the broker is away")

    monkeypatch.setattr(BatchPlanner, "look", ask)
    query = to_noop(rows(spark), tmp_path)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    lines = str(raised.value).splitlines()
    assert "ConnectionError: the broker is away" in lines
    assert lines[-4] == "Batch 0 failed."
    assert lines[-3].startswith("Query 'prices' [id = ")


class Ticks(DataSource):
    """Has three rows, and a reader that cannot forget them."""

    @classmethod
    def name(cls) -> str:
        return "test_failing_ticks"

    def schema(self) -> str:
        return "value long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TicksReader()


class TicksReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"at": 3}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(*partition.value))

    def commit(self, end: dict[str, int]) -> None:
        raise ConnectionError("cannot forget")


def test_an_error_after_the_commit_says_that_the_batch_counts(
    other_session: SparkSession, tmp_path: Path
) -> None:
    spark = tidemill.attach(other_session)
    spark.dataSource.register(Ticks)
    query = to_files(spark.readStream.format(Ticks.name()).load(), tmp_path)
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    lines = str(raised.value).splitlines()
    assert "ConnectionError: cannot forget" in lines
    assert lines[-4] == "Batch 0 is committed; the query failed after it."
    assert lines[-2].endswith("it goes on with the next batch.")
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_a_program_that_ends_in_its_batch_hears_which(spark: SparkSession) -> None:
    query = to_batches(lambda df, batch_id: sys.exit(3))(rows(spark), Path())
    with pytest.raises(StreamingQueryException, match=r"SystemExit: 3\n\nBatch 0 failed\.\n"):
        query.awaitTermination()


def test_a_checkpoint_that_is_gone_is_no_place_to_start_again_from(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    query = to_files(spark.readStream.text(str(tmp_path / "in")), tmp_path)
    query.processAllAvailable()
    shutil.rmtree(tmp_path / "c")
    (tmp_path / "in" / "1.txt").write_text("a")
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    assert "OwnershipLostError" in str(raised.value)
    assert "it runs the batch again" not in str(raised.value)


def test_a_writer_that_cannot_be_sent_is_refused_at_the_start(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    class Writer:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def process(self, row: Any) -> None: ...

    def traces() -> dict[Path, int]:
        return {path: path.stat().st_size for path in Path(FAILURES._folder or "").iterdir()}

    before = traces()
    with pytest.raises(SinkError, match=r"cannot pickle '_thread.lock' object\. Every task gets"):
        rows(spark).writeStream.foreach(Writer()).start()
    assert traces() == before  # a refused start leaves nothing behind
    assert capfd.readouterr().err == ""
    assert spark.streams.active == []


def test_a_failure_that_nobody_awaits_is_logged_whole_and_once(
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = tmp_path / "failures"
    noted.touch()
    monkeypatch.setenv(FAILURES_FILE, str(noted))
    query = to_batches(save)(rows(spark), tmp_path)
    wait_for(lambda: not query.isActive and noted.read_text(), "the failure")
    wait_for(lambda: caplog.records, "the log")
    with pytest.raises(Exception, match="the database is away"):
        query.awaitTermination()
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage() == f"the query 'prices' has failed:\n{query.exception()}"
    assert len(record.getMessage().splitlines()) <= MOST_LINES
    assert failures_in(noted.read_text().splitlines()) == ["the query 'prices' failed"]
    to_noop(rows(spark), tmp_path).stop()
    assert failures_in(noted.read_text().splitlines()) == []  # the program has started it again


def test_a_failure_that_somebody_awaits_is_logged_in_a_line(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def wait_and_fail(df: DataFrame, batch_id: int) -> None:
        go.wait(DEADLINE_S)
        raise ConnectionError("no connection with password='one two'")

    query = rows(spark).writeStream.foreachBatch(wait_and_fail).queryName("prices").start()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: query._is_awaited, "the waiting thread")
    go.set()
    waiting.join(DEADLINE_S)
    assert raised == [query.exception()]
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage() == (
        "the query 'prices' has failed, and whoever waits for it gets the error: "
        "ConnectionError: no connection with password='*****'"
    )


def test_a_query_that_is_stopped_has_not_failed(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    query = to_noop(rows(spark), Path())
    query.stop()
    spark.sparkContext.parallelize([0], 1).count()  # Spark has handled everything before it
    log = Path(spark.conf.get("tidemill.spark.log") or "").read_text()
    assert f"Failed to cancel job group {query.runId}" not in log
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
