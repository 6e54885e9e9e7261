from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAttributeError,
    PySparkTypeError,
    PySparkValueError,
)
from pyspark.sql import SparkSession

from tests.sql.fake_execution import FakeExecution
from tidemill.common.clock import SystemClock
from tidemill.errors import (
    OptionError,
    QueryError,
    SinkError,
    SourceError,
    UnsupportedError,
    UsageError,
)
from tidemill.sql import DataStreamWriter
from tidemill.sql.execution.triggers import AvailableNow, Once, ProcessingTime
from tidemill.testing import ManualClock

Faked = tuple[SparkSession, list[FakeExecution]]


def writer(session: SparkSession) -> DataStreamWriter:
    made = session.readStream.format("rate").load().writeStream
    assert isinstance(made, DataStreamWriter)
    return made


def test_everything_reaches_the_execution(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    clock = ManualClock()
    df = session.readStream.format("rate").load()
    (
        df.writeStream.outputMode("Append")
        .format("csv")
        .option("header", True)
        .options(checkpointLocation=str(tmp_path / "c"), sep=None)
        .partitionBy("value")
        .queryName("ticks")
        .trigger(processingTime=" 5 seconds ")
        .clock(clock)
        .start(str(tmp_path / "out"))
    )
    spec = made[0].spec
    assert (spec.name, spec.mode) == ("ticks", "append")
    assert spec.trigger == ProcessingTime(5000)
    assert spec.clock is clock
    assert spec.options == {"header": "true", "checkpointLocation": str(tmp_path / "c")}
    assert spec.checkpoint == str(tmp_path / "c")
    assert (spec.session, spec.df) == (df.sparkSession, df)
    assert spec.sinks[0].description() == f"FileSink[{tmp_path / 'out'}]"


def test_all_of_it_can_be_said_in_start(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    writer(session).start(
        str(tmp_path / "out"),
        format="json",
        outputMode="append",
        partitionBy="value",
        queryName="ticks",
        checkpointLocation=str(tmp_path / "c"),
    )
    spec = made[0].spec
    assert (spec.name, spec.sinks[0].description()) == (
        "ticks",
        f"FileSink[{tmp_path / 'out'}]",
    )
    assert spec.trigger == ProcessingTime(0)
    assert isinstance(spec.clock, SystemClock)


@pytest.mark.parametrize(
    ("format_name", "sink"), [("console", "Console"), ("memory", "Memory"), ("noop", "Noop")]
)
def test_sinks_without_files_need_no_checkpoint(faked: Faked, format_name: str, sink: str) -> None:
    session, made = faked
    writer(session).format(format_name).queryName("t").start()
    assert made[0].has_temporary_checkpoint
    assert made[0].spec.sinks[0].description().startswith(sink)


def test_functions_are_sinks(faked: Faked) -> None:
    session, made = faked
    writer(session).foreach(print).start()
    writer(session).foreachBatch(lambda df, batch_id: None).start()
    writer(session).foreachBatch(print).format("noop").start()  # the last call counts
    assert [type(each.spec.sinks[0]).__name__ for each in made] == [
        "ForeachSink",
        "ForeachBatchSink",
        "NoopSink",
    ]
    with pytest.raises(PySparkAttributeError, match="process"):
        writer(session).foreach(3)
    with pytest.raises(PySparkTypeError):
        writer(session).foreachBatch(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"processingTime": "1 minute"}, ProcessingTime(60_000)),
        ({"once": True}, Once()),
        ({"availableNow": True}, AvailableNow()),
    ],
)
def test_triggers(faked: Faked, given: dict[str, Any], expected: Any) -> None:
    session, made = faked
    writer(session).format("noop").trigger(**given).start()
    assert made[0].spec.trigger == expected


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"once": True, "availableNow": True},
        {"once": False},
        {"availableNow": 1},
        {"processingTime": ""},
        {"processingTime": 5},
        {"continuous": " "},
    ],
)
def test_triggers_that_pyspark_refuses(faked: Faked, given: dict[str, Any]) -> None:
    with pytest.raises(PySparkValueError):
        writer(faked[0]).trigger(**given)


def test_triggers_that_we_refuse_say_what_to_use(faked: Faked) -> None:
    for given in ({"continuous": "1 second"}, {"realTime": "5 minutes"}):
        waiting = writer(faked[0]).format("noop").trigger(**given)
        with pytest.raises(UnsupportedError, match=r"trigger\(processingTime="):
            waiting.start()
    with pytest.raises(IllegalArgumentException, match="no unit of time"):
        writer(faked[0]).trigger(processingTime="5 bananas")


@pytest.mark.parametrize("wrong", ["", " ", None, 3])
def test_empty_texts_are_refused(faked: Faked, wrong: Any) -> None:
    for method in ("outputMode", "queryName"):
        with pytest.raises(PySparkValueError):
            getattr(writer(faked[0]), method)(wrong)


def test_what_cannot_be_is_refused_and_starts_nothing(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    with pytest.raises(IllegalArgumentException, match="Invalid streaming output mode: upsert"):
        writer(session).outputMode("upsert")
    with pytest.raises(AnalysisException, match="queryName must be specified for memory sink"):
        writer(session).format("memory").start()
    with pytest.raises(AnalysisException, match="Hive data source can only be used with tables"):
        writer(session).format("hive").start()
    with pytest.raises(AnalysisException, match="no such column; there are timestamp, value"):
        writer(session).format("parquet").partitionBy(["day"]).start(str(tmp_path))
    with pytest.raises(AnalysisException, match="'foreachbatch' does not support partitioning"):
        writer(session).foreachBatch(print).partitionBy("value").start()
    with pytest.raises(IllegalArgumentException, match="needs a directory"):
        writer(session).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(AnalysisException, match="two paths"):
        writer(session).option("path", "/a").start("/b")
    with pytest.raises(UsageError, match="numRow"):
        writer(session).format("console").option("numRow", 3).start()
    with pytest.raises(AnalysisException, match="exclude each other"):
        writer(session).format("parquet").clusterBy("value").partitionBy("value")
    with pytest.raises(AnalysisException, match="'value' twice"):
        writer(session).partitionBy("value", "Value").start(str(tmp_path))
    with pytest.raises(IllegalArgumentException, match="names no directory"):
        writer(session).start(str(tmp_path), checkpointLocation="")
    with pytest.raises(PySparkTypeError):
        writer(session).partitionBy(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ManualClock"):
        writer(session).clock(3)  # type: ignore[arg-type]
    assert made == []


def test_a_table_is_a_sink(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    writer(session).option("checkpointLocation", str(tmp_path)).toTable("totals", format="parquet")
    assert made[0].spec.sinks[0].description() == "TableSink[totals]"
    with pytest.raises(AnalysisException, match="checkpointLocation must be specified"):
        writer(session).toTable("others")


def test_admission_options_are_options_of_a_query_too(faked: Faked) -> None:
    session, made = faked
    writer(session).format("noop").option("backpressure", True).start()
    assert made[0].spec.options == {"backpressure": "true"}


def test_errors_of_both_worlds_name_the_culprit(faked: Faked, tmp_path: Path) -> None:
    session, made = faked
    with pytest.raises(IllegalArgumentException) as bad_value:
        writer(session).format("console").option("numRows", "many").start()
    assert isinstance(bad_value.value, OptionError)
    assert bad_value.value.option == "numRows"
    with pytest.raises(AnalysisException) as bad_sink:
        writer(session).format("hive").start()
    assert isinstance(bad_sink.value, SinkError)
    assert bad_sink.value.sink == "hive"
    with pytest.raises(AnalysisException) as bad_query:
        writer(session).partitionBy("day").start(str(tmp_path))
    assert isinstance(bad_query.value, QueryError)
    assert bad_query.value.operation == "partitionBy"
    with pytest.raises(AnalysisException) as bad_source:
        session.readStream.schema("n long").format("rate").load()
    assert isinstance(bad_source.value, SourceError)
    assert bad_source.value.source == "rate"
    assert made == []


def test_a_near_output_mode_is_suggested(faked: Faked) -> None:
    with pytest.raises(IllegalArgumentException, match=r"Did you mean append\?"):
        writer(faked[0]).outputMode("apend")
