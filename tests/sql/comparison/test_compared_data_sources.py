"""Python data sources on Spark's own engine and on Tidemill: the same calls, offsets, rows and errors.

Spark starts a Python process for each reader and each commit, so a run tries only some of the cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from tests.sql.comparison.data_sources import (
    READER_MISTAKES,
    SOURCES,
    WRITER_MISTAKES,
    Calls,
    Good,
    GoodWriter,
    Noting,
    Prepared,
    PreparedSimple,
    Simple,
    Unlimited,
    mistaken,
)
from tests.sql.comparison.engines import condition_of
from tests.sql.streams import LONG

T = TypeVar("T")

CONDITION = re.compile(r"\[([A-Z_]+)\]")
# Spark's error for a Python process that takes more than some seconds to start.
BUSY = "Python worker failed to connect back"


def of_spark(run: Callable[[Path], T], folder: Path) -> T:
    """Run something on Spark's engine, again if the machine was too busy for it."""
    for attempt in range(5):
        try:
            return run(folder / f"spark-{attempt}")
        except StreamingQueryException as error:
            if BUSY not in str(error):
                raise
    pytest.skip("the machine is too busy to start Spark's Python workers")


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession, sparks: SparkSession) -> None:
    mistakes = [
        mistaken(number, base, methods)
        for base, listed in ((Good, READER_MISTAKES), (GoodWriter, WRITER_MISTAKES))
        for number, methods in enumerate(listed.values())
    ]
    # In this order: Spark looks for the name of a new class in the session of the thread, too.
    for session in (sparks, spark):
        for cls in (*SOURCES, *mistakes):
            session.dataSource.register(cls)


@dataclass
class Seen:
    """What a program, its data source and its listeners have seen."""

    calls: list[list[Any]]
    progress: list[tuple[Any, ...]]


def run(
    session: SparkSession,
    source: type[DataSource],
    trigger: dict[str, bool],
    folder: Path,
    *,
    ends: tuple[int, ...] = (4, 6),
    sink: str = "noop",
    mode: str = "append",
    operation: Callable[[DataFrame], DataFrame] = lambda df: df,
    failing: str = "",
) -> Seen:
    """Start the query once for each end of its input, and let it read all."""
    folder.mkdir()
    seen = Seen([], [])
    for end in ends:
        (folder / "end").write_text(str(end))
        stream = session.readStream.format(source.name()).option("FOLDER", str(folder)).load()
        writer = operation(stream).writeStream.format(sink).outputMode(mode).trigger(**trigger)
        options = {"checkpointLocation": str(folder / "checkpoint")}
        if sink != "noop":
            options |= {"folder": str(folder), "failing": failing}
        query = writer.options(**options).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
            seen.calls = Calls.noted(folder)
        seen.progress += [
            (
                each.batchId,
                each.numInputRows,
                each.sink.numOutputRows,
                *((part.startOffset, part.endOffset, part.latestOffset) for part in each.sources),
            )
            for each in query.recentProgress
        ]
    return seen


def planning(seen: Seen) -> list[list[Any]]:
    """Return the calls by which batches are planned.

    Spark asks for the initial offset more than once, and commits a batch when it plans the next one; and it
    may ask for the partitions of an empty range.
    """
    return [
        call
        for call in seen.calls
        if call[0] not in ("initialOffset", "commit", "read", "streamWriter")
        and not (call[0] == "partitions" and call[1] == call[2])
    ]


AVAILABLE_NOW, ONCE = {"availableNow": True}, {"once": True}


READ = [(Noting, AVAILABLE_NOW), (Prepared, AVAILABLE_NOW), (PreparedSimple, AVAILABLE_NOW)]
READ_IN_A_LONG_RUN = [
    (Noting, ONCE),
    (Prepared, ONCE),
    (Unlimited, AVAILABLE_NOW),
    (Unlimited, ONCE),
    (Simple, AVAILABLE_NOW),
    (Simple, ONCE),
    (PreparedSimple, ONCE),
]


@pytest.mark.parametrize(("source", "trigger"), [*READ, *READ_IN_A_LONG_RUN] if LONG else READ)
def test_readers_are_called_alike(
    spark: SparkSession,
    sparks: SparkSession,
    tmp_path: Path,
    source: type[DataSource],
    trigger: dict[str, bool],
) -> None:
    theirs = of_spark(lambda folder: run(sparks, source, trigger, folder), tmp_path)
    ours = run(spark, source, trigger, tmp_path / "tidemill")
    assert planning(ours) == planning(theirs)
    assert ours.progress == theirs.progress
    read = [sorted(call[1] for call in each.calls if call[0] == "read") for each in (ours, theirs)]
    assert read[0] == read[1]
    commits = [[call[1] for call in each.calls if call[0] == "commit"] for each in (ours, theirs)]
    assert commits[0][:-1] == commits[1], "Spark commits the last batch at the next start"


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_writers_are_called_alike(
    spark: SparkSession, sparks: SparkSession, tmp_path: Path, mode: str
) -> None:
    def write(session: SparkSession, folder: Path) -> Seen:
        operation = (lambda df: df.groupBy("n").count()) if mode == "complete" else (lambda df: df)
        return run(
            session,
            Prepared,
            AVAILABLE_NOW,
            folder,
            ends=(4,),
            sink=Noting.name(),
            mode=mode,
            operation=operation,
        )

    theirs = of_spark(lambda folder: write(sparks, folder), tmp_path)
    ours = write(spark, tmp_path / "tidemill")
    assert ours.progress == theirs.progress
    assert _writing(ours.calls) == _writing(theirs.calls)


@pytest.mark.parametrize("failing", ["write", "commit"])
def test_batches_that_fail_are_aborted_alike(
    spark: SparkSession, sparks: SparkSession, tmp_path: Path, failing: str
) -> None:
    def fail(session: SparkSession, folder: Path) -> list[Any]:
        with pytest.raises(StreamingQueryException, match=f"{failing} fails") as caught:
            run(
                session,
                Noting,
                AVAILABLE_NOW,
                folder,
                ends=(1,),
                sink=Noting.name(),
                failing=failing,
            )
        return [condition_of(caught.value), *_writing(Calls.noted(folder))]

    def fail_on_spark(folder: Path) -> list[Any]:
        try:
            return fail(sparks, folder)
        except AssertionError as error:  # another failure than the one we asked for
            raise StreamingQueryException(str(error)) from error

    theirs = of_spark(fail_on_spark, tmp_path)
    assert fail(spark, tmp_path / "tidemill") == theirs


def _writing(calls: list[list[Any]]) -> list[list[Any]]:
    """Return the calls of the writer on the driver, and once how it was made."""
    made = [call for call in calls if call[0] == "streamWriter"]
    assert all(call == made[0] for call in made)
    return [made[0], *(call for call in calls if call[0].startswith("writer."))]


# Tidemill asks for it in start(): the error comes from there.
EARLIER = ("initialOffset raises", "no initialOffset")
# Tidemill names the error of write(), where Spark only says that the abort has failed, or nothing at all.
CLEARER = ("texts for partitions", "a message with a lock")

CASES = [
    *(("reader", number, name) for number, name in enumerate(READER_MISTAKES)),
    *(("writer", number, name) for number, name in enumerate(WRITER_MISTAKES)),
]


@pytest.mark.parametrize(
    ("kind", "number", "name"), CASES if LONG else [CASES[0], CASES[18], CASES[20]]
)
def test_mistakes_are_told_alike(
    spark: SparkSession,
    sparks: SparkSession,
    tmp_path: Path,
    kind: str,
    number: int,
    name: str,
) -> None:
    base, listed = (Good, READER_MISTAKES) if kind == "reader" else (GoodWriter, WRITER_MISTAKES)
    format_name = mistaken(number, base, listed[name]).name()

    def attempt(session: SparkSession, folder: Path) -> set[str] | None:
        """Return the conditions that the error names, or None if there is no error."""
        is_reader = kind == "reader"
        generated = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 3)
        stream = session.readStream.format(format_name).load() if is_reader else generated.load()
        writer = stream.writeStream.format("noop" if is_reader else format_name)
        writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
        query = None
        try:
            query = writer.start()
            query.awaitTermination()
        except Exception as error:
            is_expected = name in EARLIER or isinstance(error, StreamingQueryException)
            if not is_expected or BUSY in str(error):
                raise
            return set(CONDITION.findall(str(error))) - {"STREAM_FAILED", "PYTHON_EXCEPTION"}
        finally:
            if query is not None:
                query.stop()
        return None

    theirs = of_spark(lambda folder: attempt(sparks, folder), tmp_path)
    ours = attempt(spark, tmp_path / "tidemill")
    if name in CLEARER:
        assert None not in (theirs, ours)
    else:
        assert ours == theirs
