from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    StreamingQueryException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQueryManager as SparksManager
from pyspark.sql.streaming.readwriter import DataStreamReader as SparksReader
from pyspark.sql.streaming.readwriter import DataStreamWriter as SparksWriter

import tidemill
from tests.sql.fake_execution import FakeExecution
from tidemill.errors import SetupError, UnsupportedError, UsageError
from tidemill.sql import DataStreamReader, DataStreamWriter, StreamingQueryManager, attach

Faked = tuple[SparkSession, list[FakeExecution]]


def test_an_attached_session_has_our_streaming_and_others_have_sparks(
    other_session: SparkSession,
) -> None:
    assert type(other_session.readStream) is SparksReader
    assert tidemill.attach(other_session) is other_session
    assert type(other_session.readStream) is DataStreamReader
    assert type(other_session.streams) is StreamingQueryManager
    stream = other_session.readStream.format("rate").load()
    assert type(stream.writeStream) is DataStreamWriter
    third = other_session.newSession()
    assert type(third.readStream) is SparksReader
    assert type(third.streams) is SparksManager
    assert third.streams is third.streams
    assert type(third.readStream.format("rate").load().writeStream) is SparksWriter


def test_attaching_twice_changes_nothing(other_session: SparkSession) -> None:
    tidemill.attach(other_session)
    manager = other_session.streams
    tidemill.attach(other_session)
    assert other_session.streams is manager


def test_a_session_is_known_whichever_way_it_comes(other_session: SparkSession) -> None:
    tidemill.attach(other_session)
    again = SparkSession(other_session.sparkContext, other_session._jsparkSession)
    assert again is not other_session
    assert again.streams is other_session.streams
    other_session.readStream.format("rate").load().createOrReplaceTempView("ticks")
    from_sql = again.sql("SELECT value + 1 AS next FROM ticks")
    assert type(from_sql.writeStream) is DataStreamWriter
    assert from_sql.sparkSession.streams is other_session.streams


def test_detaching_gives_everything_back_to_spark(other_session: SparkSession) -> None:
    tidemill.attach(other_session)
    assert tidemill.detach(other_session) is other_session
    assert type(other_session.readStream) is SparksReader
    assert type(other_session.streams) is SparksManager
    assert tidemill.detach(other_session) is other_session


def test_spark_refuses_a_stream_of_tidemills_that_reaches_its_engine(
    other_session: SparkSession,
) -> None:
    tidemill.attach(other_session)
    ticks = other_session.readStream.format("rate").load()
    ticks.createOrReplaceGlobalTempView("ticks_of_tidemill")
    elsewhere = other_session.newSession()
    tidemill.detach(other_session)
    try:
        for stream in (ticks, elsewhere.table("global_temp.ticks_of_tidemill")):
            query = stream.writeStream.format("noop").start()
            with pytest.raises(StreamingQueryException, match=r"This stream is Tidemill's.*attach"):
                query.awaitTermination(60)
    finally:
        elsewhere.catalog.dropGlobalTempView("ticks_of_tidemill")


def test_nobody_detaches_under_a_running_query(faked: Faked) -> None:
    session, made = faked
    ticks = session.readStream.format("rate").load()
    ticks.writeStream.format("noop").queryName("ticks").start()
    with pytest.raises(SetupError, match=r"1 queries still run in this session \(ticks\)"):
        tidemill.detach(session)
    made[0].end()
    tidemill.detach(session)


def test_the_session_that_tidemill_makes_is_attached(spark: SparkSession) -> None:
    assert type(spark.readStream) is DataStreamReader
    assert tidemill.session() is spark


def test_spark_connect_is_refused() -> None:
    class ConnectSession:
        __module__ = "pyspark.sql.connect.session"

    with pytest.raises(UnsupportedError, match=r"tidemill\.session"):
        tidemill.attach(ConnectSession())  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="not int"):
        tidemill.attach(3)  # type: ignore[arg-type]


CELLS = """
from pyspark.sql import SparkSession
import tidemill
from tidemill.errors import SetupError

def make_session():  # cell 1
    global spark
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
    assert tidemill.attach(spark) is spark

def start_query():  # cell 2
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    writer = ticks.writeStream.format("memory").queryName("ticks")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert type(query).__module__ == "tidemill.sql.query"
    assert spark.table("ticks").count() == 2, spark.table("ticks").count()

make_session()
make_session()
start_query()
start_query()
spark.stop()
try:
    tidemill.attach(spark)
except SetupError as error:
    assert "has been stopped" in str(error)
make_session()
start_query()
spark.sparkContext.stop()
make_session()
make_session()
start_query()
print("all cells ran")
spark.stop()
"""


def test_the_cells_of_a_notebook_run_again_also_after_a_stop(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CELLS], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.stdout.endswith("all cells ran\n"), done.stderr[-3000:]
    assert done.returncode == 0


def test_a_query_that_runs_keeps_its_name_and_a_cell_that_starts_it_again_is_told(
    other_session: SparkSession,
) -> None:
    tidemill.attach(other_session)
    ticks = other_session.readStream.format("rate").load()
    query = ticks.writeStream.format("noop").queryName("again").start()
    tidemill.attach(other_session)
    with pytest.raises(IllegalArgumentException, match="stop it first"):
        ticks.writeStream.format("noop").queryName("again").start()
    next(each for each in other_session.streams.active if each.name == "again").stop()
    assert not query.isActive
    ticks.writeStream.format("noop").queryName("again").start().stop()


def test_importing_tidemill_does_not_import_pyspark(tmp_path: Path) -> None:
    program = "import sys, tidemill, tidemill.sql; sys.exit('pyspark' in sys.modules)"
    root = str(Path(tidemill.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", program], cwd=root, check=False)
    assert done.returncode == 0


def test_a_stream_from_before_is_refused_at_start(other_session: SparkSession) -> None:
    before = other_session.readStream.format("rate").load()
    tidemill.attach(other_session)
    with pytest.raises(UsageError, match=r"made before tidemill\.attach"):
        before.writeStream.format("noop").start()


def test_a_stream_of_sql_is_named_with_the_way_to_have_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(3).write.parquet(str(tmp_path / "t"))
    spark.sql(f"CREATE TABLE of_sql USING parquet LOCATION '{tmp_path}/t'")
    try:
        from_sql = spark.sql("SELECT id FROM STREAM of_sql")
        with pytest.raises(UsageError, match=r"FROM STREAM in SQL.*readStream\.table"):
            from_sql.writeStream.format("noop").start()
        spark.readStream.table("of_sql").createOrReplaceTempView("view_of_sql")
        assert spark.sql("SELECT id FROM STREAM view_of_sql").count() == 3
    finally:
        spark.sql("DROP TABLE of_sql")
        spark.catalog.dropTempView("view_of_sql")


def test_a_batch_dataframe_has_no_write_stream(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="WRITE_STREAM_NOT_ALLOWED"):
        _ = spark.range(3).writeStream


ACTIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("count", ()),
    ("collect", ()),
    ("take", (2,)),
    ("first", ()),
    ("head", ()),
    ("head", (2,)),
    ("tail", (1,)),
    ("isEmpty", ()),
]


@pytest.mark.parametrize(("action", "arguments"), ACTIONS)
def test_actions_on_a_stream_read_what_there_is_now(
    other_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    arguments: tuple[Any, ...],
) -> None:
    now = read_now(other_session, monkeypatch)
    stream = other_session.readStream.format("rate").load()
    assert getattr(stream, action)(*arguments) == getattr(now, action)(*arguments)


def test_tables_and_iterators_on_a_stream(
    other_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    read_now(other_session, monkeypatch)
    stream = other_session.readStream.format("rate").load()
    assert stream.toPandas()["id"].tolist() == [0, 1, 2]
    assert stream.toArrow().num_rows == 3
    assert [row.id for row in stream.toLocalIterator()] == [0, 1, 2]
    stream.show(2)
    assert "only showing top 2 rows" in capsys.readouterr().out
    stream.foreach(lambda row: (tmp_path / str(row.id)).touch())
    stream.foreachPartition(lambda rows: [(tmp_path / f"p{row.id}").touch() for row in rows])  # type: ignore[arg-type,return-value]
    assert len(list(tmp_path.iterdir())) == 6


def test_batch_dataframes_and_streams_of_spark_are_left_alone(
    other_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = other_session.readStream.format("rate").load()
    read_now(other_session, monkeypatch)
    assert other_session.range(7).count() == 7
    with pytest.raises(AnalysisException):
        before.collect()
    tidemill.detach(other_session)
    with pytest.raises(AnalysisException):
        other_session.readStream.format("rate").load().count()


def read_now(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> DataFrame:
    """Attach the session and let every action on its streams see three rows."""
    snapshot = type(sys)("tidemill.sql.verify.snapshot")
    now = session.range(3)
    snapshot.snapshot_until_now = lambda df: now  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tidemill.sql.verify.snapshot", snapshot)
    attach.attach(session)
    return now
