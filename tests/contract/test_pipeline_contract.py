"""What every pipeline must do, whatever it runs on a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tidemill
from tests.waiting import wait_for
from tidemill.batches.batch import Batch, BatchShape, OffsetRange, RangeSize
from tidemill.batches.pipeline import Pipeline
from tidemill.batches.sink import Sink
from tidemill.streaming import StreamingContext
from tidemill.testing import BatchDriver, ManualClock, MemoryStream


@dataclass
class Subject:
    """A running stream of words that keeps a count of each: its pipeline, and what batches give."""

    pipeline: Pipeline
    # Adds words, and lets their batch run.
    feed: Callable[[list[str]], None]
    # The counts that the stream has given, the latest of each word.
    counts: Callable[[], dict[str, int]]
    batches: list[Batch]
    sinks_seen: list[list[Sink]]
    # Makes the program's own function raise, once there is something in it.
    fail: list[bool]


def spy_on(pipeline: Pipeline, subject_batches: list[Batch], sinks_seen: list[list[Sink]]) -> None:
    run = pipeline.run

    def spy(batch: Batch, sinks: Any) -> Any:
        subject_batches.append(batch)
        sinks_seen.append(list(sinks))
        return run(batch, sinks)

    pipeline.run = spy  # type: ignore[method-assign]


@pytest.fixture
def dstreams(sc: SparkContext, tmp_path: Path) -> Iterator[Subject]:
    clock = ManualClock(100_000)
    ssc = StreamingContext(sc, 1, clock=clock)
    ssc.checkpoint(str(tmp_path / "checkpoint"))
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    counts: dict[str, int] = {}
    words = ssc.textFileStream(str(incoming)).map(lambda word: (word, 1))
    totals = words.updateStateByKey(lambda new, total: sum(new) + (total or 0))
    fail: list[bool] = []

    def take(rdd: Any) -> None:
        if fail:
            raise ValueError("asked to fail")
        counts.update(rdd.collect())

    totals.foreachRDD(take)
    ssc.start()
    driver = BatchDriver(ssc, clock)

    def feed(added: list[str]) -> None:
        partial = tmp_path / "partial"
        partial.write_text("".join(f"{word}\n" for word in added))
        os.utime(partial, (clock.now_ms() / 1000, clock.now_ms() / 1000))
        partial.rename(incoming / f"{clock.now_ms()}.txt")
        driver.run(1)

    assert ssc._run is not None
    subject = Subject(ssc._run.pipeline, feed, lambda: counts, [], [], fail)
    spy_on(subject.pipeline, subject.batches, subject.sinks_seen)
    yield subject
    ssc.stop(stopSparkContext=False)


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[Subject]:
    session = spark.newSession()
    tidemill.attach(session)
    stream = MemoryStream("word string", keep=True)
    counts: dict[str, int] = {}

    fail: list[bool] = []

    def take(df: Any, batch_id: int) -> None:
        if fail:
            raise ValueError("asked to fail")
        counts.update((row.word, row["count"]) for row in df.collect())

    query = (
        session.readStream.format(stream.name)
        .load()
        .groupBy("word")
        .agg(F.count("*").alias("count"))
        .writeStream.outputMode("update")
        .foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def feed(added: list[str]) -> None:
        stream.add([(word,) for word in added])
        query.processAllAvailable()

    execution: Any = query._execution
    subject = Subject(execution._opened.pipeline, feed, lambda: counts, [], [], fail)
    spy_on(subject.pipeline, subject.batches, subject.sinks_seen)
    yield subject
    query.stop()
    tidemill.detach(session)
    stream.close()


@pytest.fixture(params=["dstreams", "queries"])
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.getfixturevalue(request.param)
    return found


def test_the_shape_is_a_number_of_tasks(subject: Subject) -> None:
    batch = Batch(7, 1000, {0: OffsetRange(0, 10)}, {0: RangeSize(records=10)})
    shape = subject.pipeline.shape(batch)
    assert isinstance(shape, BatchShape)
    assert shape.tasks >= 1
    assert shape == subject.pipeline.shape(batch)


def test_a_batch_runs_in_the_shape_that_it_has(subject: Subject) -> None:
    subject.feed(["a", "b", "a"])
    (batch,) = [each for each in subject.batches if not each.ranges[0].is_empty]
    assert batch.shape.tasks >= 1
    assert subject.counts() == {"a": 2, "b": 1}


def test_state_goes_on_from_the_committed_version(subject: Subject) -> None:
    subject.feed(["a", "b", "a"])
    subject.feed(["b", "c"])
    assert subject.counts() == {"a": 2, "b": 2, "c": 1}
    state = subject.pipeline.state
    assert state is not None
    last = max(batch.batch_id for batch in subject.batches)
    wait_for(lambda: state.operators.is_committed(last), "the commit")


def test_a_batch_that_is_run_again_has_the_same_result(subject: Subject) -> None:
    """As after a crash before its commit: from the same state, to the same counts."""
    subject.feed(["a", "b", "a"])
    run = subject.pipeline.run
    twice: list[Batch] = []

    def run_twice(batch: Batch, sinks: Any) -> Any:
        if not batch.ranges[0].is_empty:
            twice.append(batch)
            run(batch, sinks)
            if hasattr(subject.pipeline, "_graph"):  # the graph remembers RDDs of a batch that ran
                for node in subject.pipeline._graph._nodes:
                    node.generated.pop(batch.time_ms, None)
        return run(batch, sinks)

    subject.pipeline.run = run_twice  # type: ignore[method-assign]
    subject.feed(["b", "c"])
    assert len(twice) == 1
    assert subject.counts() == {"a": 2, "b": 2, "c": 1}


def test_what_is_forgotten_is_never_the_future(subject: Subject) -> None:
    subject.feed(["a"])
    subject.feed(["b"])
    last = max(subject.batches, key=lambda batch: batch.batch_id)
    assert subject.pipeline.forget(last) <= last.batch_id + 1


def test_a_batch_whose_function_fails_is_raised_and_not_committed(subject: Subject) -> None:
    subject.feed(["a"])
    subject.fail.append(True)
    with pytest.raises(Exception, match="asked to fail"):
        subject.feed(["b"])
    last = max(batch.batch_id for batch in subject.batches)
    state = subject.pipeline.state
    assert state is not None
    assert not state.operators.is_committed(last)
