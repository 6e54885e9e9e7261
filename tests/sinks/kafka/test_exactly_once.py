"""Queries whose batches are in Kafka once, with the marker that says so."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.reading import messages_of, values_of
from tests.sinks.kafka.writing import Writing
from tests.waiting import wait_for
from tidemill.sinks.kafka import sink as kafka_sink
from tidemill.testing import ManualClock

Topics = Callable[..., str]


@pytest.fixture
def writing(
    spark: SparkSession, broker: KafkaBroker, topic: Topics, tmp_path: Path
) -> Callable[..., Writing]:
    name = topic()

    def make(**options: Any) -> Writing:
        return Writing(
            spark, broker, tmp_path / "checkpoint", topic=name, exactlyOnce=True, **options
        )

    return make


def numbers(broker: KafkaBroker, it: Writing) -> list[int]:
    return [int(value) for value in values_of(broker, it.options["topic"])]


def forget_commit(it: Writing, batch: int) -> None:
    """Leave the checkpoint as a driver does that dies between a batch and its commit."""
    for path in (it.folder / "commits").glob(f"*{batch}*"):
        path.unlink()


def marker(broker: KafkaBroker, it: Writing, task: int = 0) -> int:
    return broker.group_offset(f"tidemill-{it.query.id}-0-{task}", "tidemill-markers")


def test_a_batch_that_runs_again_is_there_once(broker: KafkaBroker, writing: Any) -> None:
    with writing() as it:
        it.add(1, 2)
        it.add(3)
        assert marker(broker, it) == 2
        it.query.stop()
        forget_commit(it, 1)
        it.start()
        it.add(4)
        assert it.query.recentProgress[0].batchId == 1
        assert all(
            message.headers() is None for message in messages_of(broker, it.options["topic"])
        )
    assert numbers(broker, it) == [1, 2, 3, 4]


def test_a_batch_that_was_planned_and_not_written_is_written(
    broker: KafkaBroker, writing: Any, tmp_path: Path
) -> None:
    with writing() as it:
        it.add(1)
        it.columns = ["string(raise_error('poison')) AS value"]
        it.restart()
        with pytest.raises(Exception, match="poison"):
            it.add(2)
        it.columns = ["string(n) AS value"]
        it.start()
        it.add(3)
    assert numbers(broker, it) == [1, 2, 3]


def test_another_number_of_tasks(broker: KafkaBroker, writing: Any) -> None:
    """The batch that was interrupted keeps the number with which it began."""
    it = writing()
    expected: list[int] = []
    for round_, tasks in enumerate((1, 3, 2, 4, 1)):
        it.options["exactlyOnceTasks"] = str(tasks)
        it.start()
        for batch in range(2):
            rows = [round_ * 1000 + batch * 100 + number for number in range(30)]
            it.add(*rows)
            expected += rows
        last = it.query.lastProgress.batchId
        assert [marker(broker, it, task) for task in range(tasks)] == [last + 1] * tasks
        it.query.stop()
        forget_commit(it, last)
    it.start()
    it.query.processAllAvailable()
    it.query.stop()
    assert sorted(numbers(broker, it)) == expected


def test_messages_of_a_key_keep_their_order_in_several_tasks(
    broker: KafkaBroker, writing: Any
) -> None:
    it = writing(exactlyOnceTasks=3)
    it.columns = ["string(n % 4) AS key", "string(n) AS value"]
    with it:
        it.add(*range(200))
    by_key: dict[bytes, list[int]] = {}
    for message in messages_of(broker, it.options["topic"]):
        by_key.setdefault(message.key(), []).append(int(message.value()))
    assert [by_key[str(key).encode()] for key in range(4)] == [
        list(range(key, 200, 4)) for key in range(4)
    ]


def test_a_marker_that_is_gone(broker: KafkaBroker, writing: Any) -> None:
    it = writing()
    it.start()
    it.add(1)
    it.query.stop()
    group = f"tidemill-{it.query.id}-0-0"
    broker.delete_group(group)
    with it:  # nothing was interrupted: there is nothing to know
        it.add(2)
    for choice, again in (("skip", 0), ("write", 1)):
        forget_commit(it, it.query.lastProgress.batchId)
        broker.delete_group(group)
        it.options.pop("unknownMarker", None)
        with pytest.raises(
            Exception, match=r"marker of tidemill-.* is gone, and batch \d was inter"
        ):
            it.start()
        it.options["unknownMarker"] = choice
        with it:
            it.query.processAllAvailable()
            it.add(10 + again)
    assert numbers(broker, it) == [1, 2, 10, 10, 11]


def test_a_marker_that_does_not_fit(broker: KafkaBroker, writing: Any, tmp_path: Path) -> None:
    """A copy of the checkpoint as it was two batches ago."""
    copy = tmp_path / "copy"
    with writing() as it:
        it.add(1)
        it.query.stop()
        shutil.copytree(it.folder, copy)
        it.start()
        it.add(2)
        it.add(3)
    it.folder = copy
    with pytest.raises(
        Exception, match=r"batches before 3 are in Kafka, .* those before 1 are"
    ) as no:
        it.start()
    assert len(str(no.value).splitlines()) == 1
    assert numbers(broker, it) == [1, 2, 3]


def test_two_sinks_of_one_query_do_not_take_each_other_for_themselves(
    spark: SparkSession, broker: KafkaBroker, topic: Topics, tmp_path: Path
) -> None:
    from tidemill.sinks.registry import sink_for
    from tidemill.testing import MemoryStream

    names = [topic(), topic()]
    stream = MemoryStream("n long", keep=True)

    def run(*rows: int) -> None:
        options = {"kafka.bootstrap.servers": broker.address, "exactlyOnce": "true"}
        query = spark.streams.start_query(  # type: ignore[attr-defined]
            spark.readStream.format(stream.name).load().selectExpr("string(n) AS value"),
            sinks=[sink_for("kafka", options={**options, "topic": name}) for name in names],
            options={"checkpointLocation": str(tmp_path / "checkpoint")},
        )
        stream.add([(row,) for row in rows])
        query.processAllAvailable()
        query.stop()

    run(1, 2)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    run(3)
    assert [values_of(broker, name) for name in names] == [["1", "2", "3"]] * 2


def test_an_idle_query_renews_its_marker(
    broker: KafkaBroker, writing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = writing()
    clock = it.clock = ManualClock()
    with it:
        it.add(1)
        it.query.processAllAvailable()
        renewed: list[int] = []
        monkeypatch.setattr(
            kafka_sink.Markers, "renew", lambda markers: renewed.append(markers.tasks)
        )
        clock.advance(kafka_sink.RENEW_MS - 1)
        it.query.processAllAvailable()
        assert renewed == []
        clock.advance(1)
        it.query.processAllAvailable()
        assert renewed == [1]
        it.query.processAllAvailable()
        assert renewed == [1]


def test_a_renewed_marker_is_the_same_and_the_query_goes_on(
    broker: KafkaBroker, writing: Any
) -> None:
    it = writing(exactlyOnceTasks=2)
    clock = it.clock = ManualClock()
    with it:
        it.add(1)
        it.query.processAllAvailable()
        clock.advance(kafka_sink.RENEW_MS)
        it.query.processAllAvailable()
        assert [marker(broker, it, task) for task in (0, 1)] == [1, 1]
        it.add(2)
    assert sorted(numbers(broker, it)) == [1, 2]


def test_a_batch_without_rows(broker: KafkaBroker, writing: Any) -> None:
    it = writing(exactlyOnceTasks=3)
    it.columns = ["IF(n < 10, string(n), string(n)) AS value"]
    it.rows = lambda rows=it.rows: rows().where("value <> '5'")
    with it:
        it.add(5)
        it.add(1)
        assert [marker(broker, it, task) for task in range(3)] == [2, 2, 2]
    assert numbers(broker, it) == [1]


def test_a_query_that_is_stopped_in_a_batch_leaves_no_transaction_open(
    broker: KafkaBroker, writing: Any, tmp_path: Path
) -> None:
    """Readers of committed rows would wait for its end."""
    it = writing()
    it.columns = ["repeat(string(n), 100000) AS value"]
    name = it.options["topic"]
    it.start()
    it.input.add([(number,) for number in range(400)])
    wait_for(lambda: broker.latest(name) > 0 or not it.query.isActive, "the first rows")
    it.query.stop()
    broker.send(name, ["another"])
    wait_for(lambda: broker.committed(name) == broker.latest(name), "no open transaction")


def test_starts_and_stops_leave_no_threads_behind(broker: KafkaBroker, writing: Any) -> None:
    """Every client of librdkafka has threads of its own, which Python does not count."""

    def threads() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/task"))

    it = writing(exactlyOnceTasks=2)
    counts = []
    for number in range(4):
        it.start()
        it.add(number)
        it.query.stop()
        counts.append(threads())
    assert counts[-1] <= counts[0] + 2, counts
