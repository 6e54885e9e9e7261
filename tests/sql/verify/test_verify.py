from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from tests.checkpoint.drawings import write_unchecked
from tests.sql.batches import Batches, stopped_at_end
from tests.sql.streams import settings_of
from tests.sql.verify.names import NAMES
from tests.waiting import wait_for
from tidemill.errors import IllegalStateError, UnsupportedError
from tidemill.testing import ManualClock, MemoryStream


@pytest.fixture
def orders() -> Iterator[MemoryStream]:
    stream = MemoryStream("id long, name string, amount double, at timestamp", keep=True)
    yield stream
    stream.close()


def order(id: int, name: str = "a", amount: float = 0.1, second: int = 0) -> Row:
    return Row(id=id, name=name, amount=amount, at=datetime.fromtimestamp(second, UTC))


Operation = Callable[[DataFrame], DataFrame]


class Written:
    """Feeds a query and verifies it. Its sink is memory or files."""

    def __init__(
        self,
        spark: SparkSession,
        stream: MemoryStream,
        folder: Path,
        operation: Operation,
        mode: str,
    ) -> None:
        self.spark = spark
        self.stream = stream
        self.folder = folder
        self.operation = operation
        self.mode = mode

    def start(self, sink: str = "memory", **settings: Any) -> Any:
        df = self.operation(self.spark.readStream.format(self.stream.name).load())
        writer = df.writeStream.outputMode(self.mode).queryName("verified").format(sink)
        writer = writer.option("checkpointLocation", str(self.folder / "c"))
        if sink not in ("memory", "noop"):
            writer = writer.option("path", str(self.folder / "out"))
        self.query = writer.start()
        return self.query

    def feed(self, *rows: Row) -> Any:
        self.stream.add(list(rows))
        self.query.processAllAvailable()
        return self.query.verify()


@pytest.fixture
def world(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> Iterator[Callable[[Operation, str], Written]]:
    made: list[Written] = []

    def make(operation: Operation, mode: str = "append") -> Written:
        made.append(Written(spark, orders, tmp_path, operation, mode))
        return made[-1]

    yield make
    for each in made:
        each.query.stop()


def by_name(df: DataFrame) -> DataFrame:
    return df.groupBy("name").agg(
        sql.sum("amount").alias("sum"),
        sql.collect_list("id").alias("ids"),
        sql.countDistinct("id").alias("different"),
    )


def by_window(df: DataFrame) -> DataFrame:
    timed = df.withWatermark("at", "10 seconds")
    return timed.groupBy(sql.window("at", "10 seconds"), "name").count()


def test_a_query_without_state_equals_its_batch(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.where("amount > 1").select("id", sql.upper("name")))
    written.start()
    first = written.query.verify()
    assert not first
    assert str(first) == "not known: no batch has been committed yet"
    assert written.feed(order(1, amount=2), order(2))
    outcome = written.feed(order(3, amount=2), order(3, amount=2))
    assert (outcome.batch_id, outcome.rows) == (1, 3)
    assert str(outcome) == (
        "equal after batch 1: 3 rows in the batch query, the same in MemorySink (3 rows)"
    )


def test_a_union_of_streams_equals_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark numbers the tasks of a union as a whole: each reads the splits of its own stream all the same."""
    streams = [MemoryStream("n int", keep=True) for _ in range(2)]
    one, two = (spark.readStream.format(stream.name).load() for stream in streams)
    writer = one.union(two).writeStream.format("memory").queryName("verified_union")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with stopped_at_end(query):
        for number in range(2):
            for place, stream in enumerate(streams):
                stream.add([(10 * place + number,)])
            query.processAllAvailable()
        report = query.verify()
    for stream in streams:
        stream.close()
    assert report.equal, report
    assert report.rows == 4


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_an_aggregation_equals_its_batch(world: Callable[..., Written], mode: str) -> None:
    written = world(by_name, mode)
    written.start()
    for number in range(3):
        rows = order(number, "ab"[number % 2], 0.1 * number), order(7, "b", 1e9)
        written.stream.add(list(rows))
        written.query.processAllAvailable()
    outcome = written.query.verify()
    assert outcome, str(outcome)
    assert outcome.rows == 2
    sink = "MemorySink" if mode == "complete" else "the newest rows of MemorySink"
    assert outcome.compared_with == f"{sink}, the state"


def test_windows_that_are_written_and_those_that_are_open_are_the_batch(
    world: Callable[..., Written],
) -> None:
    written = world(by_window)
    written.start()
    assert written.feed(order(1, second=1), order(2, second=12))
    outcome = written.feed(order(3, second=40))
    assert outcome, str(outcome)
    assert outcome.rows == 3
    assert outcome.compared_with == "MemorySink and the open groups"
    assert "the same in MemorySink (2 rows) and the open groups (1 row)" in str(outcome)
    late = written.feed(order(4, second=2))
    assert not late
    assert late.late_rows == 1
    assert [row["count"] for row in late.missing] == [2]
    assert [row["count"] for row in late.unexpected] == [1]
    assert "dropped, because late: 1 row (see withWatermark)" in str(late)


def test_update_mode_compares_what_the_watermark_has_left(world: Callable[..., Written]) -> None:
    written = world(by_window, "update")
    written.start()
    assert written.feed(order(1, second=1))
    outcome = written.feed(order(3, second=60))
    assert outcome, str(outcome)


def test_of_duplicates_any_row_will_do(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.dropDuplicates(["id"]))
    written.start()
    assert written.feed(order(1, "first"), order(2))
    outcome = written.feed(order(1, "second"), order(3))
    assert outcome, str(outcome)
    assert "all of MemorySink (3 rows) among the rows before dropDuplicates" in str(outcome)


def test_a_row_that_never_came_is_no_duplicate(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.dropDuplicates(["id"]).select("id", "name"))
    written.start()
    assert written.feed(order(1, "first"), order(1, "second"))
    table = written.query._execution._spec.sinks[0]._table
    table._sink.clear()
    forged = written.spark.createDataFrame([(1, "third")], "id long, name string")
    table.write(10**6, table.rows_of(forged), False)
    outcome = written.query.verify()
    assert not outcome
    assert [tuple(row) for row in outcome.unexpected] == [(1, "third")]


def test_a_sink_that_cannot_be_compared_is_not_called_equal(world: Callable[..., Written]) -> None:
    """The state may be equal: whether the sink is, nobody knows."""
    written = world(lambda df: df.groupBy("name").count().select("count"), "update")
    written.start()
    outcome = written.feed(order(1))
    assert not outcome
    assert not outcome.different
    assert str(outcome).startswith("not known after batch 0: 1 row in the batch query, the same in")
    assert "MemorySink does not have all columns of the groupBy" in outcome.not_compared
    written.query.stop()
    shutil.rmtree(written.folder / "c")
    written.mode = "complete"
    written.start("noop")
    outcome = written.feed(order(2))
    assert not outcome
    assert not outcome.different
    assert "cannot be read back" in outcome.not_compared


def test_a_table_is_compared(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.select("id", "name"))
    df = written.operation(written.spark.readStream.format(written.stream.name).load())
    writer = df.writeStream.option("checkpointLocation", str(written.folder / "c"))
    writer = writer.option("path", str(written.folder / "out"))
    try:
        written.query = writer.toTable("verified_table")
        outcome = written.feed(order(1), order(2))
        assert outcome, str(outcome)
        assert outcome.compared_with == "TableSink[verified_table]"
        written.spark.sql("INSERT INTO verified_table VALUES (3, 'c')")
        assert not written.query.verify() or written.spark.table("verified_table").count() == 2
    finally:
        written.spark.sql("DROP TABLE IF EXISTS verified_table")


def test_columns_that_depend_on_the_order_of_duplicates_cannot_be_compared(
    world: Callable[..., Written],
) -> None:
    written = world(lambda df: df.dropDuplicates(["id"]).select("name"))
    written.start()
    with pytest.raises(UnsupportedError, match="select these columns, too"):
        written.feed(order(1))


def test_duplicates_that_are_forgotten_may_come_again(world: Callable[..., Written]) -> None:
    written = world(
        lambda df: df.withWatermark("at", "10 seconds").dropDuplicatesWithinWatermark(["id"])
    )
    written.start()
    assert written.feed(order(1))
    assert written.feed(order(2, second=100))
    outcome = written.feed(order(1, second=100))
    assert not outcome
    assert [row.id for row in outcome.unexpected] == [1]


def test_files_are_read_back(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.where("id > 0").withColumn("day", sql.dayofyear("at")))
    written.start("parquet")
    assert written.feed(order(0))
    assert written.feed(order(1), order(2))
    assert written.query.verify().rows == 2


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


NASTY = ["", None, " a ", "01", "1.0", "x/y", "null", "2026-01-01", 'a"b,c']


@pytest.mark.parametrize(
    ("format", "partition_by", "options"),
    [
        ("csv", ("NAME",), {}),
        ("csv", (), {"header": "true"}),
        ("json", ("name",), {}),
        ("json", ("at",), {}),
        ("parquet", ("name",), {}),
    ],
)
def test_files_are_compared_with_what_such_files_keep_of_a_row(
    spark: SparkSession,
    tmp_path: Path,
    format: str,
    partition_by: tuple[str, ...],
    options: dict[str, str],
) -> None:
    """CSV has no empty strings, no spaces around them and no microseconds, a folder no empty name."""
    stream = MemoryStream("id long, name string, at timestamp, last int", keep=True)
    out = tmp_path / "out"
    writer = spark.readStream.format(stream.name).load().writeStream.format(format)
    writer = writer.partitionBy(*partition_by).options(**options)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(out))
    with stopped_at_end(query):
        at = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
        stream.add([(n, name, at, n) for n, name in enumerate(NASTY)])
        query.processAllAvailable()
        before = files_in(out)
        outcome = query.verify()
        assert outcome, str(outcome)
        assert outcome.rows == len(NASTY)
        assert "files keep them" in str(outcome) or "partitions keep them" in str(outcome)
        assert files_in(out) == before
        next(out.rglob("part-*")).unlink()
        with pytest.raises(UnsupportedError):
            query.verify()
    stream.close()


def test_windows_that_are_written_as_csv_and_those_that_are_open_are_the_batch(
    world: Callable[..., Written],
) -> None:
    written = world(lambda df: by_window(df).select("name", "count", "window.end"))
    written.start("csv")
    assert written.feed(order(1, "", second=1), order(2, " b", second=2))
    outcome = written.feed(order(3, second=40), order(4, "", second=45))
    assert outcome, str(outcome)
    written.feed()
    data = [file for file in (written.folder / "out").glob("part-*") if file.read_text()]
    data[0].write_text(data[0].read_text().replace(",1,", ",2,"))
    for checksum in (written.folder / "out").glob(".part-*"):
        checksum.unlink()
    assert not written.query.verify()


def test_a_sink_that_somebody_has_changed_is_noticed(world: Callable[..., Written]) -> None:
    written = world(lambda df: df.select("id", "name"))
    written.start("parquet")
    written.feed(order(1), order(2), order(2))
    (data,) = (written.folder / "out").glob("part-*")
    changed = written.folder / "changed"
    rows = [(1, "a"), (2, "a"), (3, "forged")]
    written.spark.createDataFrame(rows, "id long, name string").coalesce(1).write.parquet(
        str(changed)
    )
    shutil.copy(next(changed.glob("part-*")), data)
    (written.folder / "out" / f".{data.name}.crc").unlink(missing_ok=True)
    outcome = written.query.verify()
    assert not outcome
    assert [tuple(row) for row in outcome.missing] == [(2, "a")]
    assert [tuple(row) for row in outcome.unexpected] == [(3, "forged")]
    assert "FileSink" in outcome.compared_with
    assert "only: Row(id=3, name='forged')" in str(outcome)


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_state_that_somebody_has_changed_is_noticed(
    world: Callable[..., Written], mode: str
) -> None:
    """The test changes the state by going back to an older version of it."""
    written = world(lambda df: df.groupBy("name").count(), mode)
    written.start("memory")
    for number in range(3):
        written.stream.add([order(number)])
        written.query.processAllAvailable()
    assert written.query.verify()
    written.query.stop()
    before, after = (written.folder / "c" / "commits" / name for name in ("1", "2"))
    write_unchecked(after, before.read_text())
    outcome = written.query.verify()
    assert not outcome
    sink, state = outcome.comparisons
    assert sink.equal
    assert [tuple(row) for row in state.missing] == [("a", 3)]
    assert [tuple(row) for row in state.unexpected] == [("a", 2)]
    assert "in the state only: Row(name='a', count=2)" in str(outcome)


def test_a_query_that_has_stopped_is_verified_from_its_checkpoint(
    world: Callable[..., Written],
) -> None:
    written = world(by_window)
    written.start("parquet")
    written.feed(order(1), order(2, second=50))
    written.query.stop()
    outcome = written.query.verify()
    assert outcome, str(outcome)
    written.start("parquet")
    assert written.feed(order(3, second=100))


def test_a_temporary_checkpoint_is_gone_after_the_query(
    spark: SparkSession, orders: MemoryStream
) -> None:
    query = spark.readStream.format(orders.name).load().writeStream.format("noop").start()
    query.stop()
    with pytest.raises(IllegalStateError, match=r"temporary one is\s+deleted"):
        query.verify()


def test_a_query_that_never_rests_is_verified_between_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    batches = Batches()
    query = batches.start(df.groupBy((sql.col("value") % 3).alias("k")).count(), mode="update")
    with stopped_at_end(query):
        wait_for(lambda: len(batches.rows) > 1, "two batches")
        for _ in range(2):
            outcome = query.verify()
            assert outcome.comparisons[0].equal, str(outcome)
            seen = len(batches.rows)
            wait_for(lambda before=seen: len(batches.rows) > before, "more")  # type: ignore[misc]


def test_two_rows_do_not_take_200_tasks(world: Callable[..., Written]) -> None:
    written = world(by_name, "update")
    written.start()
    written.feed(order(1), order(2, "b"))
    written.stream.add([order(3)])
    written.query.processAllAvailable()
    tracker = written.spark.sparkContext.statusTracker()
    with settings_of(
        written.spark, spark__sql__shuffle__partitions=200, spark__sql__adaptive__enabled=False
    ):
        before = set(tracker.getJobIdsForGroup(None))
        assert written.query.verify()
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(None)) - before]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert 0 < max(stage.numTasks for stage in stages if stage) < 10


def test_the_caller_has_no_traces_of_it(world: Callable[..., Written]) -> None:
    written = world(by_name, "complete")
    written.start()
    sc = written.spark.sparkContext
    sc.setJobDescription("mine")
    before = sc._jsc.sc().getLocalProperties().toString()
    written.feed(order(1))
    assert sc._jsc.sc().getLocalProperties().toString() == before
    sc.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    assert not [
        rdd for rdd in sc._jsc.getPersistentRDDs().values() if "tidemill" in str(rdd).lower()
    ]


def test_files_and_rates_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.json").write_text(json.dumps({"k": name, "n": 1}) + "\n")
    files = spark.readStream.schema("k string, n long").json(str(tmp_path / "in"))
    writer = files.groupBy("k").sum("n").writeStream.outputMode("complete")
    query = writer.foreachBatch(lambda df, n: df.count()).start()
    with stopped_at_end(query):
        query.processAllAvailable()
        assert query.verify().rows == 2
    clock = ManualClock()
    rate = spark.readStream.format("rate").option("rowsPerSecond", 30).option("rampUpTime", 5)
    writer = rate.load().writeStream.format("parquet").clock(clock)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out"))
    with stopped_at_end(query):
        for _ in range(3):
            clock.advance(3000)
            query.processAllAvailable()
        outcome = query.verify()
        assert outcome, str(outcome)
        assert outcome.rows > 30


@pytest.mark.parametrize(
    ("options", "is_known"),
    [
        ({"format": "rate", "rowsPerSecond": 7}, True),
        ({"format": "rate", "rowsPerSecond": 7, "rampUpTime": 5}, False),
        ({"format": "rate-micro-batch", "rowsPerBatch": 7}, False),
        ({"format": "rate-micro-batch", "rowsPerBatch": 7, "advanceMillisPerBatch": 0}, True),
    ],
    ids=str,
)
def test_batches_that_the_checkpoint_has_forgotten_are_read_again_if_it_can_be_done(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], is_known: bool
) -> None:
    checkpoint, clock = tmp_path / "c", ManualClock()
    with settings_of(spark, spark__sql__streaming__minBatchesToRetain=1):
        for _ in range(4):
            clock.advance(2500)
            df = spark.readStream.load(**options)
            writer = df.writeStream.format("parquet").clock(clock).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(checkpoint)).start(str(tmp_path / "o"))
            query.awaitTermination()
    assert not (checkpoint / "offsets" / "0").exists()
    if is_known:
        outcome = query.verify()
        assert outcome, str(outcome)
        assert outcome.rows == df.sparkSession.read.parquet(str(tmp_path / "o")).count() > 0
    else:
        with pytest.raises(UnsupportedError, match=r"forgotten the batches before .*minBatches"):
            query.verify()


def test_input_that_is_gone_is_said_so(spark: SparkSession, tmp_path: Path) -> None:
    forgetful = MemoryStream("n long")
    try:
        query = Batches().start(spark.readStream.format(forgetful.name).load(), mode="update")
        with stopped_at_end(query):
            forgetful.add([(1,)])
            query.processAllAvailable()
            with pytest.raises(UnsupportedError, match="keep=True"):
                query.verify()
    finally:
        forgetful.close()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("a\n")
    query = Batches().start(
        spark.readStream.text(str(tmp_path / "in")).groupBy("value").count(), mode="update"
    )
    with stopped_at_end(query):
        query.processAllAvailable()
        (tmp_path / "in" / "a").unlink()
        with pytest.raises(UnsupportedError, match=f"file://{tmp_path}/in/a .* is gone"):
            query.verify()


@pytest.mark.parametrize("ignore", ["true", "false"])
def test_input_that_the_query_itself_has_cleaned_up_is_named(
    spark: SparkSession, tmp_path: Path, ignore: str
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text(f"{name}\n")
    reader = spark.readStream.option("cleanSource", "delete").option("ignoreMissingFiles", ignore)
    writer = reader.text(str(tmp_path / "in")).writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out"))
    with stopped_at_end(query):
        query.processAllAvailable()
        wait_for(lambda: not list((tmp_path / "in").iterdir()), "the input to be cleaned up")
        with pytest.raises(UnsupportedError, match=r"cleanSource.*\(and 2 others\) .* is gone"):
            query.verify()


def test_columns_of_any_name_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1\n2\n2\n")
    value = spark.readStream.text(str(tmp_path / "in"))
    frame = value.select(*(sql.col("value").alias(name) for name in NAMES))
    query = (
        frame.writeStream.format("memory")
        .queryName("any_name")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    with stopped_at_end(query):
        query.processAllAvailable()
        outcome = query.verify()
        assert outcome, str(outcome)
        assert outcome.rows == 3


def test_what_cannot_be_compared_is_refused(spark: SparkSession, orders: MemoryStream) -> None:
    df = spark.readStream.format(orders.name).load()
    with stopped_at_end(Batches().start(df)) as _:
        orders.add([order(1)])
        (query,) = spark.streams.active
        query.processAllAvailable()
        with pytest.raises(UnsupportedError, match="ForeachBatchSink cannot be read back"):
            query.verify()  # type: ignore[attr-defined]
    now = df.select(sql.current_timestamp())
    with (
        stopped_at_end(query := Batches().start(now)),
        pytest.raises(UnsupportedError, match="asks for the time"),
    ):
        query.verify()
    drawn = df.select(sql.expr("uuid()"))
    with (
        stopped_at_end(query := Batches().start(drawn)),
        pytest.raises(UnsupportedError, match="random functions"),
    ):
        query.verify()
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = spark.readStream.format("socket").option("host", "127.0.0.1")
        counted = lines.option("port", server.getsockname()[1]).load().groupBy("value").count()
        query = Batches().start(counted, mode="complete")
        with stopped_at_end(query):
            connection, _ = server.accept()
            connection.sendall(b"a\n")
            while not query.lastProgress or not query.lastProgress.numInputRows:
                query.processAllAvailable()
            with pytest.raises(UnsupportedError, match="input of a socket stream is gone"):
                query.verify()
            connection.close()
