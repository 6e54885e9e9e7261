"""Settings of queries, by what each of them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.sql.batches import Batches, advance, first_trigger, session_settings, stopped_at_end
from tests.sql.execution.numbers import read, rows
from tests.waiting import wait_for
from tidemill.receivers import Receiver, register_receiver
from tidemill.sources.registry import unregister_source
from tidemill.state import operators
from tidemill.testing import ManualClock, MemoryStream

RETAIN = "spark.sql.streaming.minBatchesToRetain"
EVERY_SECOND = {"processingTime": "1 second"}


def numbers_in(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def state_batches(checkpoint: Path) -> set[int]:
    """The batches whose versions of state have files."""
    return {int(path.name.split(".")[0]) for path in checkpoint.glob("state/0/0/*.*")}


@pytest.mark.parametrize(("retain", "kept"), [("2", [6, 7]), ("5", [3, 4, 5, 6, 7])])
def test_offsets_commits_and_state_of_so_many_batches_stay(
    spark: SparkSession,
    numbers: MemoryStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    retain: str,
    kept: list[int],
) -> None:
    monkeypatch.setattr(operators, "SNAPSHOT_EVERY", 1)
    batches, checkpoint = Batches(), tmp_path / "c"
    settings = {RETAIN: retain, "spark.sql.shuffle.partitions": "1"}
    with session_settings(spark, settings):
        totals = read(spark, numbers).groupBy().sum("n")
        query = batches.start(totals, checkpoint, mode="complete")
    with stopped_at_end(query):
        for value in range(8):
            numbers.add(rows(value))
            batches.wait(value + 1)
            state: Any = query._execution._opened.pipeline.state
            assert state.drain(60)
    assert numbers_in(checkpoint / "offsets") == kept
    assert numbers_in(checkpoint / "commits") == kept
    # The state that the oldest of them started from, and no older one.
    assert min(state_batches(checkpoint)) in (kept[0] - 2, kept[0] - 1)
    assert batches.values(7) == [28]


def test_so_many_progress_reports_stay(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    with session_settings(spark, {"spark.sql.streaming.numRecentProgressUpdates": "2"}):
        query = batches.start(read(spark, numbers), tmp_path / "c")
    with stopped_at_end(query):
        for value in range(4):
            numbers.add(rows(value))
            batches.wait(value + 1)
        wait_for(lambda: query.recentProgress[-1].batchId == 3, "the last report")
        assert [progress.batchId for progress in query.recentProgress] == [2, 3]


def test_an_idle_query_says_so_as_often_as_it_is_told(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    clock, batches = ManualClock(), Batches()
    with session_settings(spark, {"spark.sql.streaming.noDataProgressEventInterval": "3s"}):
        query = batches.start(
            read(spark, numbers), tmp_path / "c", trigger=EVERY_SECOND, clock=clock
        )
    with stopped_at_end(query):
        first_trigger(query)
        for _ in range(7):
            advance(query, clock, 1000)
        seconds = [progress.timestamp[17:19] for progress in query.recentProgress]
        assert seconds == ["00", "03", "06"]


def test_receivers_of_a_query_follow_the_settings_of_its_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They were read from the Spark context, which ``spark.conf.set`` does not reach."""

    class Once(Receiver):
        def onStart(self) -> None:
            self.store(["a", "b"])

        def onStop(self) -> None:
            pass

    register_receiver("once", lambda options: Once())
    try:
        for log, folders in (("true", {"blocks", "data"}), ("false", {"blocks"})):
            batches, checkpoint = Batches(), tmp_path / log
            with session_settings(spark, {"spark.streaming.receiver.writeAheadLog.enable": log}):
                lines = spark.readStream.format("once").load()
                query = batches.start(lines, checkpoint)
            with stopped_at_end(query):
                batches.wait(1)
                assert {path.name for path in (checkpoint / "received").iterdir()} == folders
    finally:
        unregister_source("once")


def test_state_has_so_many_partitions(
    spark: SparkSession, numbers: MemoryStream, tmp_path: Path
) -> None:
    batches = Batches()
    with session_settings(spark, {"spark.sql.shuffle.partitions": "3"}):
        query = batches.start(read(spark, numbers).groupBy("n").count(), tmp_path, mode="complete")
    with stopped_at_end(query):
        numbers.add(rows(*range(20)))
        batches.wait(1)
    assert {path.name for path in (tmp_path / "state" / "0").iterdir()} == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("deletion", "delay", "names"),
    [
        ("true", "0", {"3.compact", "4"}),
        ("true", "1h", {"0", "1.compact", "2", "3.compact", "4"}),
        ("false", "0", {"0", "1.compact", "2", "3.compact", "4"}),
    ],
)
def test_lists_of_a_file_sink_stay_if_wanted(
    spark: SparkSession,
    numbers: MemoryStream,
    tmp_path: Path,
    deletion: str,
    delay: str,
    names: set[str],
) -> None:
    log = "spark.sql.streaming.fileSink.log"
    settings = {
        f"{log}.deletion": deletion,
        f"{log}.cleanupDelay": delay,
        f"{log}.compactInterval": "2",
        RETAIN: "1",
    }
    with session_settings(spark, settings):
        writer = read(spark, numbers).writeStream.option("checkpointLocation", tmp_path / "c")
        query = writer.format("json").start(str(tmp_path / "out"))
    with stopped_at_end(query):
        for value in range(5):
            numbers.add(rows(value))
            query.processAllAvailable()
    manifest = (tmp_path / "out" / "_spark_metadata").iterdir()
    assert {path.name for path in manifest if path.name[0] != "."} == names


def test_the_path_of_start_wins_over_the_option_only_if_it_may(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("tide")
    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.trigger(availableNow=True)
    writer = writer.format("text").option("path", str(tmp_path / "other"))
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(AnalysisException, match=r"legacy\.pathOptionBehavior\.enabled"):
        writer.start(str(tmp_path / "out"))
    with session_settings(spark, {"spark.sql.legacy.pathOptionBehavior.enabled": "true"}):
        writer.start(str(tmp_path / "out")).awaitTermination()
    assert [row.value for row in spark.read.text(str(tmp_path / "out")).collect()] == ["tide"]
    assert not (tmp_path / "other").exists()


def test_every_source_needs_a_name_if_sources_may_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
    with session_settings(spark, settings):
        for reader in (spark.readStream.format("rate"), spark.readStream.format("text")):
            with pytest.raises(AnalysisException) as unnamed:
                reader.load(str(tmp_path))
            assert unnamed.value.getCondition() == (
                "STREAMING_QUERY_EVOLUTION_ERROR.UNNAMED_STREAMING_SOURCES_WITH_ENFORCEMENT"
            )
            assert reader.name("mine").load(str(tmp_path)).isStreaming
    assert spark.readStream.format("rate").name("mine").load().isStreaming


def test_a_sink_needs_a_name_if_sinks_may_change(spark: SparkSession) -> None:
    writer: Any = spark.readStream.format("rate").load().writeStream.format("noop")
    with pytest.raises(AnalysisException) as bad:
        writer.name("a b")
    assert bad.value.getCondition() == "STREAMING_QUERY_EVOLUTION_ERROR.INVALID_SINK_NAME"
    assert bad.value.getSqlState() == "42KDE"
    with session_settings(
        spark, {"spark.sql.streaming.queryEvolution.enableSinkEvolution": "true"}
    ):
        with pytest.raises(AnalysisException, match=r"writeStream\.name"):
            writer.start()
        writer.name("mine").start().stop()
