"""Receivers as formats of structured queries."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.batches.planning import plan_batch
from tests.receivers.driver.driver_world import Silent
from tests.receivers.table_world import World
from tests.sources.reading import read, rows
from tests.waiting import wait_for
from tidemill.batches.batch import UNLIMITED, AdmissionLimit, OffsetRange
from tidemill.batches.planner import BatchPlanner, PlannedSource
from tidemill.checkpoint.batch_log import BatchLog
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.common.clock import ManualClock
from tidemill.errors import OptionError, SourceError, UsageError
from tidemill.progress.listener_bus import ListenerBus
from tidemill.receivers import register_receiver
from tidemill.receivers.blocks.format import encode_lines, encode_records
from tidemill.receivers.connectors.formats import receiver_format
from tidemill.receivers.connectors.http.receiver import HttpReceiver
from tidemill.receivers.connectors.mqtt.receiver import MqttReceiver
from tidemill.receivers.driver.running_receivers import ReceiverOfStream, RunningReceivers
from tidemill.receivers.receiver import Receiver
from tidemill.receivers.table_source import TEXT, ReceiverTable
from tidemill.sources.registry import RECEIVER_FORMATS, source_named, unregister_source

PAIRS = StructType([StructField("id", LongType()), StructField("name", StringType())])


def test_blocks_of_a_range_are_rows_and_the_same_again(tmp_path: Path) -> None:
    it = World(tmp_path)
    it.add(encode_lines([b"a\nb\n"], 2))
    it.add(encode_records(["c"]))
    assert it.source.latest_offset(0, UNLIMITED, 0) == 2
    assert rows(it.source, 0, 2) == [("a",), ("b",), ("c",)]
    assert rows(it.source, 0, 2, parallelism=5) == [("a",), ("b",), ("c",)]
    assert rows(it.source, 1, 2) == [("c",)]
    assert rows(it.source, 2, 2) == []
    assert it.source.size(OffsetRange(0, 2)).records == 3
    splits = list(it.source.splits(OffsetRange(0, 2), 2))
    assert json.loads(json.dumps(splits)) == splits
    it.source.commit(1)
    assert it.forgotten == ["input-0-a1-0"]
    assert rows(it.source, 1, 2) == [("c",)]


def test_limits_are_kept_in_whole_blocks_and_never_stall(tmp_path: Path) -> None:
    it = World(tmp_path)
    for size in (2, 2, 5, 1):
        it.add(encode_records(["x"] * size))
    ends, start = [], 0
    while (end := it.source.latest_offset(start, AdmissionLimit(max_records=4), 0)) != start:
        ends.append(end)
        start = end
    assert ends == [2, 3, 4]
    assert not it.source.has_unplanned
    assert it.source.latest_offset(0, AdmissionLimit(max_bytes=1), 0) == 1
    assert it.source.has_unplanned
    it.source.prepare_available_now()
    it.add(encode_records(["later"]))
    assert it.source.latest_offset(0, UNLIMITED, 0) == 4


def test_a_user_schema_and_a_record_that_does_not_fit_it(tmp_path: Path) -> None:
    it = World(tmp_path, PAIRS)
    it.add(encode_records([Row(id=1, name="a"), Row(id=2, name=None)]))
    it.add(encode_records([{"id": 3, "name": "c"}, (4, "d")]))
    it.add(encode_records(["not a pair"]))
    assert rows(it.source, 0, 2) == [(1, "a"), (2, None), (3, "c"), (4, "d")]
    with pytest.raises(UsageError, match=r"block input-0-a1-2 does not fit .*struct<id:bigint"):
        rows(it.source, 2, 3)


# -- by name ---------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    register_receiver("silence", lambda options: Silent(), PAIRS)
    register_receiver("nonsense", lambda options: options["what"])  # type: ignore[arg-type,return-value]
    yield
    unregister_source("silence")
    unregister_source("nonsense")


@pytest.mark.usefixtures("registered")
def test_a_receiver_of_the_programs_own_is_a_format() -> None:
    factory = source_named("Silence")
    assert factory is not None
    source = factory({})
    assert isinstance(source, ReceiverTable)
    assert source.schema() == PAIRS
    assert source.description() == "Receiver[silence: Silent]"
    wrong = source_named("nonsense")
    assert wrong is not None
    with pytest.raises(SourceError, match="returned 'x', which is not a Receiver") as refused:
        wrong({"What": "x"})
    assert refused.value.source == "nonsense"
    with pytest.raises(OptionError, match="a function of options") as bad_factory:
        register_receiver("other", Silent())  # type: ignore[arg-type]
    assert bad_factory.value.option == "factory"
    with pytest.raises(UsageError, match="Tidemill's own"):
        register_receiver("http", lambda options: Silent())


def made(name: str, options: dict[str, str]) -> tuple[Any, StructType]:
    format_ = receiver_format(name)
    assert format_ is not None
    assert format_.known_options is not None
    assert {option.lower() for option in options} <= {o.lower() for o in format_.known_options}
    source = format_(options)
    pickle.dumps(source.receiver)
    return source.receiver, source.schema()


def test_the_receivers_of_tidemill_are_formats(tmp_path: Path) -> None:
    assert all(receiver_format(name) for name in RECEIVER_FORMATS)
    assert receiver_format("rate") is None
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    receiver, schema = made(
        "HTTP",
        {"PORT": "0", "bodyFormat": "json", "tokenFile": str(secret), "storageLevel": "disk_only"},
    )
    assert isinstance(receiver, HttpReceiver)
    assert receiver.storageLevel == StorageLevel.DISK_ONLY
    assert receiver._token() == "s3cret"  # type: ignore[operator]
    assert schema.fieldNames() == ["value"]
    receiver, schema = made(
        "mqtt", {"host": "b", "topics": '["a/#", "b,c"]', "clientId": "me", "tls": "true"}
    )
    assert isinstance(receiver, MqttReceiver)
    assert list(receiver.topics) == ["a/#", "b,c"]
    assert schema.simpleString() == "struct<topic:string,payload:binary>"
    assert (
        made("raw-socket", {"host": "h", "port": "1"})[1].simpleString() == "struct<value:binary>"
    )
    assert made("socket-receiver", {"host": "h", "port": "1"})[1] == TEXT


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("http", {}, "the http receiver needs the option port"),
        ("http", {"port": "x"}, "option port of the http receiver is 'x'"),
        ("http", {"port": "1", "token": "a", "tokenFile": "b"}, "both token and tokenFile"),
        ("http", {"port": "1", "storageLevel": "SHELF"}, "expected the name of a storage level"),
        ("mqtt", {"host": "h", "topics": "a"}, "needs the option clientId"),
        ("mqtt", {"host": "h", "topics": "[1]", "clientId": "a"}, "a JSON list of them"),
        ("raw-socket", {"host": "h", "port": "70000"}, "between 1 and 65535"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(name, options)
    assert message in str(caught.value)


def test_a_reader_may_bring_the_columns(spark: SparkSession) -> None:
    format_ = receiver_format("http")
    assert format_ is not None
    assert format_.with_schema("id long, name string")({"port": "0"}).schema() == PAIRS


# -- with Spark ------------------------------------------------------------------------------------


class Query:
    """The part of a query that handles its receivers."""

    def __init__(self, spark: SparkSession, receiver: Receiver, directory: Path) -> None:
        self.storage = LocalStorage(str(directory))
        self.clock = ManualClock()
        self.bus = ListenerBus("test")
        self.bus.start()
        self.source = ReceiverTable(receiver)
        self.receivers = RunningReceivers(
            spark.sparkContext,
            self.clock,
            self.bus,
            self.storage,
            {0: ReceiverOfStream("0", self.source, "readStream at app.py:7")},
        )
        self.planner = BatchPlanner({0: PlannedSource("0", self.source)}, self.clock, self.storage)
        self.planner.start(0)
        self.unfinished = self.planner.restore(BatchLog(self.storage).load())
        self.receivers.start({})

    def close(self) -> None:
        self.planner.stop()
        self.receivers.close()
        self.bus.stop()


def test_a_query_starts_its_receivers_reads_and_recovers(
    spark: SparkSession, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        format_ = receiver_format("socket-receiver")
        assert format_ is not None
        options = {"host": "127.0.0.1", "port": str(server.getsockname()[1])}
        receiver = format_(options).receiver
        query = Query(spark, receiver, tmp_path)
        try:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"one\ntwo\r\nthree\n")
                wait_for(lambda: query.receivers.records_received == 3, "the lines")
                batch = plan_batch(query.planner, 1000, query.storage)
                range_ = batch.ranges[0]
                reader = query.source.split_reader()
                splits = list(query.source.splits(range_, 2))
                found = spark.sparkContext.parallelize(splits, 1).flatMap(
                    lambda split: [v for b in reader(split) for v in b.column(0).to_pylist()]
                )
                assert found.collect() == ["one", "two", "three"]
                assert query.source.replayable
        finally:
            query.close()

        again = Query(spark, receiver, tmp_path)
        try:
            (unfinished,) = again.unfinished
            assert unfinished.ranges == batch.ranges
            assert read(again.source, unfinished.ranges[0])["value"].to_pylist() == [
                "one", "two", "three",
            ]  # fmt: skip
        finally:
            again.close()
