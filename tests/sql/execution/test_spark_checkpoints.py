"""Queries that Spark and Tidemill run in turns, from one checkpoint directory."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.waiting import wait_for
from tidemill.errors import CheckpointError

PyQuery = Any
SCHEMA = "n long, word string"


@dataclass
class Relay:
    """A query that two engines run in turns. ``read`` and ``write`` are given a session and the reader or
    writer of it; each leg of the relay reads all that is there, and stops.
    """

    tidemill: SparkSession
    sparks: SparkSession
    root: Path
    read: Callable[[Any], DataFrame]
    write: Callable[[Any], Any]
    ids: set[str] = field(default_factory=set)
    legs: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def output(self) -> Path:
        return self.root / "out"

    def start(self, session: SparkSession) -> PyQuery:
        writer = self.write(self.read(session.readStream).writeStream)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        assert type(query).__module__.startswith(
            "tidemill" if session is self.tidemill else "pyspark"
        )
        self.ids.add(query.id)
        return query

    def leg(self, session: SparkSession) -> PyQuery:
        query = self.start(session)
        assert query.awaitTermination(120)
        self.legs += 1
        return query

    def by_spark(self) -> PyQuery:
        return self.leg(self.sparks)

    def by_tidemill(self) -> PyQuery:
        return self.leg(self.tidemill)

    def batches(self, folder: str = "commits") -> list[int]:
        names = [path.name for path in (self.checkpoint / folder).glob("[0-9]*")]
        return sorted(int(name) for name in names if name.isdigit())

    def interrupt(self, manifest: bool = False) -> int:
        """Remove the commit of the last batch, as if its driver had been killed."""
        last = self.batches()[-1]
        self.forget(self.checkpoint / "commits" / str(last))
        if manifest:
            self.forget(self.output / "_spark_metadata" / str(last))
        return last

    @staticmethod
    def forget(file: Path) -> None:
        file.unlink()
        # Spark does not write a file beside whose name there is the checksum of another.
        (file.parent / f".{file.name}.crc").unlink()

    def require_sound(self) -> None:
        """Check that there is one id and a sequence of batches without gaps."""
        assert len(self.ids) == 1
        assert json.loads((self.checkpoint / "metadata").read_text())["id"] in self.ids
        assert self.batches() == self.batches("offsets")
        assert self.batches() == list(range(len(self.batches())))


@pytest.fixture
def relay(spark: SparkSession, tmp_path: Path) -> Callable[..., Relay]:
    (tmp_path / "in").mkdir()
    sparks = spark.newSession()

    def make(read: Callable[[Any], DataFrame], write: Callable[[Any], Any]) -> Relay:
        return Relay(spark, sparks, tmp_path, read, write)

    return make


def put(spark: SparkSession, folder: Path, format: str, numbers: range) -> None:
    """Write the rows of some numbers into two files."""
    rows = [(n, f"word {n}") for n in numbers]
    df = spark.createDataFrame(rows, SCHEMA).coalesce(2)
    writer = df.selectExpr("word as value") if format == "text" else df
    writer.write.format(format).mode("append").save(str(folder))


def rows_of(spark: SparkSession, relay: Relay, format: str, column: str = "word") -> Counter[str]:
    rows = spark.read.schema(f"{column} string").format(format).load(str(relay.output)).collect()
    return Counter(row[0] for row in rows)


def words(numbers: range) -> Counter[str]:
    return Counter(f"word {n}" for n in numbers)


def available_now(writer: Any) -> Any:
    return writer.trigger(availableNow=True)


@pytest.mark.parametrize(
    ("source", "sink", "limit"),
    [("text", "json", 1), ("csv", "parquet", None), ("json", "parquet", 2), ("orc", "json", None)],
)
def test_a_query_over_files_goes_back_and_forth(
    spark: SparkSession, relay: Callable[..., Relay], source: str, sink: str, limit: int | None
) -> None:
    def read(reader: Any) -> DataFrame:
        reader = reader if source == "text" else reader.schema(SCHEMA)
        if limit:
            reader = reader.option("maxFilesPerTrigger", limit)
        df: DataFrame = reader.format(source).load(str(run.root / "in"))
        return df

    def write(writer: Any) -> Any:
        return available_now(writer).format(sink).option("path", str(run.output))

    run = relay(read, write)
    column = "value" if source == "text" else "word"
    begin = run.by_spark if sink == "json" else run.by_tidemill
    other = run.by_tidemill if sink == "json" else run.by_spark
    for number, leg in enumerate([begin, other, begin, other]):
        put(spark, run.root / "in", source, range(number * 10, number * 10 + 10))
        leg()
        run.require_sound()
        for reader in (run.tidemill, run.sparks):
            assert rows_of(reader, run, sink, column) == words(range(number * 10 + 10))
    other()
    begin()  # nothing new: no batch, no row
    run.require_sound()
    assert rows_of(spark, run, sink, column) == words(range(40))


@pytest.mark.parametrize("file", ["offsets/0", "commits/0", "sources/0/0", "metadata"])
def test_a_digit_that_has_changed_is_found_whoever_has_written_the_file(
    spark: SparkSession, relay: Callable[..., Relay], file: str
) -> None:

    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.text(str(run.root / "in"))
        return df

    run = relay(read, lambda writer: available_now(writer).format("noop"))
    put(spark, run.root / "in", "text", range(10))
    for begin in (run.by_tidemill, run.by_spark):
        begin()
        changed = run.checkpoint / file
        sound = changed.read_bytes()
        last_digit = rb"[0-9](?=[^0-9]*$)"
        changed.write_bytes(re.sub(last_digit, lambda d: b"8" if d[0] == b"9" else b"9", sound))
        assert changed.read_bytes() != sound
        with pytest.raises(Exception, match=f"{file}: .*its checksum is wrong"):
            assert run.start(run.tidemill).awaitTermination(120)
        shutil.rmtree(run.checkpoint)


def test_partitioned_directories_and_parquet_go_back_and_forth(
    spark: SparkSession, relay: Callable[..., Relay]
) -> None:
    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.schema(f"{SCHEMA}, day int").parquet(str(run.root / "in"))
        return df.filter("day <> 13").select("word", "day")

    def write(writer: Any) -> Any:
        return (
            available_now(writer)
            .format("parquet")
            .option("path", str(run.output))
            .partitionBy("day")
        )

    run = relay(read, write)
    for day, leg in enumerate([run.by_spark, run.by_tidemill, run.by_spark, run.by_tidemill], 11):
        put(spark, run.root / "in" / f"day={day}", "parquet", range(day, day + 3))
        leg()
    run.require_sound()
    found = Counter((row.word, row.day) for row in spark.read.parquet(str(run.output)).collect())
    assert found == Counter((f"word {n}", d) for d in (11, 12, 14) for n in range(d, d + 3))


@pytest.mark.parametrize("first", ["spark", "tidemill"])
def test_an_interrupted_batch_is_finished_by_the_other_engine(
    spark: SparkSession, relay: Callable[..., Relay], first: str
) -> None:
    """The batch reads the files that were planned for it, not those that have come since."""

    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.schema(SCHEMA).json(str(run.root / "in"))
        return df

    def write(writer: Any) -> Any:
        return available_now(writer).format("json").option("path", str(run.output))

    run = relay(read, write)
    one, other = run.by_spark, run.by_tidemill
    if first == "tidemill":
        one, other = other, one
    # The very first batch: its rows are in the directory, and not yet in the manifest.
    put(spark, run.root / "in", "json", range(10))
    one()
    assert run.interrupt(manifest=True) == 0
    put(spark, run.root / "in", "json", range(10, 20))
    query = other()
    assert [p["batchId"] for p in query.recentProgress if p["numInputRows"]] == [0, 1]
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [10, 10]
    run.require_sound()
    assert rows_of(spark, run, "json") == words(range(20))
    # A batch that is in the sink and not in the commits is not written twice.
    put(spark, run.root / "in", "json", range(20, 30))
    one()
    assert run.interrupt() == 2
    other()
    run.require_sound()
    assert rows_of(spark, run, "json") == words(range(30))
    put(spark, run.root / "in", "json", range(30, 40))
    one()
    assert rows_of(run.sparks, run, "json") == words(range(40))


def test_a_batch_that_was_planned_and_never_run_is_run_by_the_other_engine(
    spark: SparkSession, relay: Callable[..., Relay]
) -> None:
    """A function that fails leaves ``offsets/N`` without ``commits/N``, with either engine."""
    seen: dict[int, list[int]] = {}
    broken = {"now": False}

    def keep(df: DataFrame, batch_id: int) -> None:
        if broken["now"]:
            raise OSError("the database is away")
        assert batch_id not in seen
        seen[batch_id] = sorted(row.n for row in df.collect())

    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.schema(SCHEMA).csv(str(run.root / "in"))
        return df

    run = relay(read, lambda writer: available_now(writer).foreachBatch(keep))
    for number, (one, other) in enumerate(
        [(run.by_spark, run.by_tidemill), (run.by_tidemill, run.by_spark)]
    ):
        put(spark, run.root / "in", "csv", range(20 * number, 20 * number + 10))
        broken["now"] = True
        with pytest.raises(Exception, match="the database is away"):
            one()
        broken["now"] = False
        put(spark, run.root / "in", "csv", range(20 * number + 10, 20 * number + 20))
        other()
    run.require_sound()
    assert seen == {n: list(range(10 * n, 10 * n + 10)) for n in range(4)}


def test_the_rate_source_goes_on_counting(relay: Callable[..., Relay]) -> None:
    values: list[int] = []
    times: list[float] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        rows = sorted(df.collect(), key=lambda row: row.value)
        values.extend(row.value for row in rows)
        times.extend(row.timestamp.timestamp() for row in rows)

    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.format("rate").option("rowsPerSecond", 5).load()
        return df

    run = relay(read, lambda writer: writer.foreachBatch(keep))
    for session in (run.sparks, run.tidemill, run.sparks, run.tidemill):
        before = len(values)
        query = run.start(session)
        wait_for(lambda before=before: len(values) > before, "rows of the rate source")
        query.stop()
    assert len(run.ids) == 1
    # A batch that was stopped half-way came twice, once from each engine.
    assert sorted(set(values)) == list(range(max(values) + 1))
    by_value = dict(zip(values, times, strict=True))
    assert all(abs(by_value[n] - by_value[0] - n / 5) < 0.01 for n in range(len(by_value)))


def test_the_rate_of_batches_goes_on_and_noop_keeps_nothing(relay: Callable[..., Relay]) -> None:
    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.format("rate-micro-batch").option("rowsPerBatch", 7).load()
        return df

    run = relay(read, lambda writer: writer.trigger(once=True).format("noop"))
    ends = []
    for leg in (run.by_spark, run.by_tidemill, run.by_spark, run.by_tidemill):
        progress = leg().lastProgress
        assert progress["numInputRows"] == 7
        ends.append(json.loads(progress["sources"][0]["endOffset"])["offset"])
    run.require_sound()
    assert ends == [7, 14, 21, 28]


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.streaming.offsetLog.formatVersion": "2"},
        {
            "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming."
            "state.RocksDBStateStoreProvider",
        },
    ],
    ids=["offsets", "commits"],
)
def test_logs_of_sparks_second_format_are_read(
    spark: SparkSession, relay: Callable[..., Relay], settings: dict[str, str]
) -> None:
    def read(reader: Any) -> DataFrame:
        files = reader.text(str(run.root / "in"))
        numbers = session["now"].readStream.format("rate-micro-batch").option("rowsPerBatch", 2)
        df: DataFrame = files.union(numbers.load().selectExpr("string(value)"))
        return df

    def write(writer: Any) -> Any:
        return writer.trigger(once=True).format("json").option("path", str(run.output))

    run = relay(read, write)
    session = {"now": run.sparks}
    for name, value in settings.items():
        run.sparks.conf.set(name, value)
    for number, engine in enumerate([run.sparks, run.tidemill, run.sparks]):
        session["now"] = engine
        put(spark, run.root / "in", "text", range(number * 10, number * 10 + 10))
        run.leg(engine)
    first = (run.checkpoint / "offsets" / "0").read_text() + (
        run.checkpoint / "commits" / "0"
    ).read_text()
    assert "v2" in first
    run.require_sound()
    numbers = Counter(map(str, range(6)))
    assert rows_of(spark, run, "json", "value") == words(range(30)) + numbers


# -- queries with state ----------------------------------------------------------------------------


def stateful(run: Relay) -> Callable[[Any], DataFrame]:
    def read(reader: Any) -> DataFrame:
        df: DataFrame = reader.text(str(run.root / "in")).groupBy("value").count()
        return df

    return read


def everything_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("owner") and path.name != ".owner.lock"
    }


def test_state_of_sparks_is_refused_and_left_as_it_is(
    spark: SparkSession, relay: Callable[..., Relay]
) -> None:
    run = relay(
        lambda r: stateful(run)(r), lambda w: available_now(w.outputMode("update").format("noop"))
    )
    put(spark, run.root / "in", "text", range(3))
    run.by_spark()
    before = everything_below(run.checkpoint)
    with pytest.raises(CheckpointError) as refused:
        run.by_tidemill()
    assert str(refused.value) == (
        f"{run.checkpoint} is the checkpoint of a query with state that Spark has run (stateStoreSave), and "
        "Spark's state cannot be read here. Continue it in a session that is not attached, such as "
        "spark.newSession(), or give the query a new checkpointLocation, to read its input from the "
        "beginning. Nothing has been changed."
    )
    run.read = lambda reader: reader.text(str(run.root / "in"))  # another query, without state
    with pytest.raises(CheckpointError, match=r"state that Spark has run \(stateStoreSave\)"):
        run.by_tidemill()
    assert everything_below(run.checkpoint) == before
    run.read = stateful(run)
    run.by_spark()


def test_state_of_ours_survives_that_spark_has_tried(
    spark: SparkSession, relay: Callable[..., Relay]
) -> None:
    counts: dict[str, int] = {}

    def keep(df: DataFrame, batch_id: int) -> None:
        counts.update({row.value: row["count"] for row in df.collect()})

    def write(writer: Any) -> Any:
        return available_now(writer.outputMode("update")).foreachBatch(keep)

    run = relay(lambda reader: stateful(run)(reader), write)
    put(spark, run.root / "in", "text", range(3))
    run.by_tidemill()
    put(spark, run.root / "in", "text", range(2))
    with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
        run.by_spark()
    run.by_tidemill()
    assert counts == {"word 0": 2, "word 1": 2, "word 2": 1}
    run.require_sound()
