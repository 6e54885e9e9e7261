"""``df.show()`` and other actions on a stream show the rows it has now, without a query."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StructField, StructType

import tidemill
from tests.sql.batches import Batches, stopped_at_end
from tidemill.batches.batch import RangeSize
from tidemill.batches.table_source import SplitSource
from tidemill.errors import UnsupportedError
from tidemill.sources.registry import unregister_source
from tidemill.testing import MemoryStream


@pytest.fixture
def events() -> Iterator[MemoryStream]:
    stream = MemoryStream("id long, at timestamp", keep=True)
    for number in (1, 2, 2, 3):
        stream.add([(number, datetime.fromtimestamp(10 * number, UTC))])
    yield stream
    stream.close()


def read(spark: SparkSession, stream: MemoryStream) -> Any:
    return spark.readStream.format(stream.name).load()


def test_every_action_reads_what_there_is(
    spark: SparkSession, events: MemoryStream, capsys: pytest.CaptureFixture[str]
) -> None:
    df = read(spark, events).select("id").where("id > 1")
    assert df.isStreaming
    assert df.count() == 3
    assert sorted(row.id for row in df.collect()) == [2, 2, 3]
    assert len(df.take(2)) == 2
    assert df.first() is not None
    assert len(df.head(2)) == 2
    assert not df.isEmpty()
    assert sorted(df.toPandas()["id"]) == [2, 2, 3]
    assert sorted(df.toArrow()["id"].to_pylist()) == [2, 2, 3]
    assert len(list(df.toLocalIterator())) == 3
    df.groupBy("id").count().orderBy("id").show()
    assert capsys.readouterr().out.splitlines()[3:5] == ["|  2|    2|", "|  3|    1|"]
    events.add([(9, None)])
    assert df.count() == 4
    assert df.isStreaming  # a query can still be started on it


def test_operations_that_a_stream_has_state_for(spark: SparkSession, events: MemoryStream) -> None:
    df = read(spark, events)
    timed = df.withWatermark("at", "5 seconds")
    assert timed.groupBy(sql.window("at", "20 seconds")).count().count() == 2
    assert df.dropDuplicates(["id"]).count() == 3
    assert timed.dropDuplicatesWithinWatermark(["id"]).count() == 3
    assert df.select("id").distinct().count() == 3
    names = spark.createDataFrame([(1, "one"), (3, "three")], "id long, name string")
    joined = df.join(names, "id", "left").select("id", "name").distinct()
    assert sorted(tuple(row) for row in joined.collect()) == [(1, "one"), (2, None), (3, "three")]
    # Even operations that a running query cannot do.
    assert [row.id for row in df.orderBy(sql.desc("id")).limit(2).collect()] == [3, 2]
    assert df.join(df.select("id"), "id").count() == 6


def test_views_in_sql(spark: SparkSession, events: MemoryStream) -> None:
    read(spark, events).createOrReplaceTempView("events_now")
    try:
        few = "WITH few AS (SELECT * FROM events_now WHERE id < 3)"
        found = spark.sql(f"{few} SELECT id, count(*) AS n FROM few GROUP BY id")
        assert found.isStreaming
        assert sorted(map(tuple, found.collect())) == [(1, 1), (2, 2)]
    finally:
        spark.catalog.dropTempView("events_now")


def test_files_with_their_options_and_folders(spark: SparkSession, tmp_path: Path) -> None:
    for day in ("1", "2"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.csv").write_text("n;name\n1;x\n2;y\n")
    files = spark.readStream.schema("n long, name string, day int").option("maxFilesPerTrigger", 1)
    df = files.csv(str(tmp_path), sep=";", header=True)
    assert df.count() == 4
    assert {row.day for row in df.select("day").collect()} == {1, 2}
    assert df.select("_metadata.file_name").distinct().count() == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert spark.readStream.text(str(empty)).count() == 0


def test_a_rate_begins_now(spark: SparkSession) -> None:
    assert spark.readStream.format("rate").load().count() == 0
    batches = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load()
    assert batches.count() == 7


class Endless(SplitSource):
    """Always has three rows more."""

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def initial_offset(self) -> Any:
        return 0

    def latest_offset(self, start: Any, limit: Any, time_ms: int) -> Any:
        return start + 3

    def size(self, range_: Any) -> RangeSize:
        return RangeSize(3)

    def splits(self, range_: Any, parallelism: int) -> list[Any]:
        return [[n] for n in range(range_.start, range_.end)]

    def split_reader(self) -> Any:
        return read_one


def read_one(split: Any) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": pa.array(split, pa.int64())})


def test_a_source_of_the_user(spark: SparkSession) -> None:
    tidemill.register_source("endless-now", lambda options: Endless())
    try:
        df = spark.readStream.format("endless-now").load()
        assert sorted(df.collect()) == [Row(n=0), Row(n=1), Row(n=2)]
    finally:
        unregister_source("endless-now")


def test_a_socket_cannot_be_looked_at(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = spark.readStream.format("socket").option("host", "127.0.0.1")
        df = lines.option("port", server.getsockname()[1]).load()
        with pytest.raises(UnsupportedError, match=r"cannot be read without starting it.*console"):
            df.show()
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.accept()


def test_another_stream_inside_of_a_batch(
    spark: SparkSession, events: MemoryStream, tmp_path: Path
) -> None:
    other = MemoryStream("id long", keep=True)
    seen: list[int] = []

    def look(df: Any, batch_id: int) -> None:
        seen.append(df.join(read(spark, events), "id").count())
        seen.append(read(spark, events).count())

    batches = Batches(on_batch=look)
    with stopped_at_end(batches.start(read(spark, other), tmp_path / "c")):
        other.add([(2,), (3,)])
        batches.query.processAllAvailable()
    other.close()
    assert seen == [3, 4]
    assert batches.sizes == [2]


def test_looking_does_not_disturb_a_query(spark: SparkSession, events: MemoryStream) -> None:
    forgetful = MemoryStream("id long")
    batches = Batches()
    with stopped_at_end(batches.start(read(spark, forgetful))):
        forgetful.add([(1,)])
        assert read(spark, forgetful).count() in (0, 1)
        batches.query.processAllAvailable()
        assert read(spark, forgetful).count() == 0
        forgetful.add([(2,)])
        batches.query.processAllAvailable()
        assert batches.sizes == [1, 1]
    forgetful.close()
