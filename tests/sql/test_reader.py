from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkTypeError,
    PySparkValueError,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import LongType, StructField, StructType

import tidemill
from tidemill.batches.batch import AdmissionLimit, Offset, OffsetRange, RangeSize
from tidemill.batches.table_source import SplitSource
from tidemill.common import options
from tidemill.errors import UsageError
from tidemill.receivers import register_receiver
from tidemill.receivers.connectors.socket_receiver import SocketReceiver
from tidemill.sources.rate import RateSource
from tidemill.sources.registry import unregister_source
from tidemill.spark.compiler.placeholder import (
    SourceDefinition,
    definition_of,
    streaming_leaves,
    streaming_sources,
)


def definition(df: DataFrame) -> SourceDefinition:
    (source_id,) = streaming_sources(df)
    return definition_of(source_id)


def test_rate_has_sparks_columns_and_makes_a_source_for_each_query(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    assert df.isStreaming
    assert df.schema.simpleString() == "struct<timestamp:timestamp,value:bigint>"
    found = definition(df)
    assert (found.format, found.options["ROWSPERSECOND"], found.path) == ("rate", "5", None)
    assert isinstance(found.make(), RateSource)
    assert found.make() is not found.make()


def test_a_dataframe_keeps_its_sources_through_operations(spark: SparkSession) -> None:
    left = spark.readStream.format("rate").load()
    right = spark.readStream.format("rate").option("rowsPerSecond", 2).load()
    right.createOrReplaceTempView("right_ticks")
    both = left.where("value > 1").union(spark.sql("SELECT * FROM right_ticks")).union(left)
    ids = streaming_sources(both)
    assert ids == [*streaming_sources(left), *streaming_sources(right)]
    assert len(streaming_leaves(both)) == 3
    assert streaming_sources(spark.range(3)) == []


def test_files_are_checked_by_spark_itself(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "day=2026-03-01").mkdir()
    (tmp_path / "day=2026-03-01" / "a.csv").write_text("1,x\n")
    df = (
        spark.readStream.schema("n int, s string, day date")
        .option("maxFilesPerTrigger", 3)
        .option("modifiedAfter", "2020-01-01T00:00:00")
        .csv(str(tmp_path), header=False)
    )
    assert df.columns == ["n", "s", "day"]
    assert df.select("_metadata.file_name").columns == ["file_name"]
    found = definition(df)
    assert (found.format, found.path) == ("csv", str(tmp_path))
    assert found.options["maxfilespertrigger"] == "3"
    assert found.options["modifiedAfter"] == "2020-01-01T00:00:00"
    assert found.schema == df.schema
    assert type(found.make()).__name__ == "FileStreamSource"


@pytest.mark.parametrize("format_name", ["json", "orc", "parquet", "text", "csv", "xml"])
def test_each_file_format_has_its_shortcut(
    spark: SparkSession, tmp_path: Path, format_name: str
) -> None:
    reader = spark.readStream.schema("value string")
    shortcut = getattr(reader, format_name)
    df = shortcut(str(tmp_path), rowTag="a") if format_name == "xml" else shortcut(str(tmp_path))
    assert definition(df).format == format_name
    with pytest.raises(PySparkTypeError):
        getattr(spark.readStream, format_name)(3)


def test_errors_of_spark_stay_sparks(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentException, match="Schema must be specified"):
        spark.readStream.json(str(tmp_path))
    with pytest.raises(IllegalArgumentException, match="needs to know what to read"):
        spark.readStream.format("text").load()
    with pytest.raises(ParseException):
        spark.readStream.schema("a strin g h")
    with pytest.raises(PySparkTypeError):
        spark.readStream.schema(3)  # type: ignore[arg-type]
    with pytest.raises(PySparkValueError):
        spark.readStream.load(" ")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.readStream.table("no_such_table")


def test_an_unknown_format_is_refused_with_the_near_one(spark: SparkSession) -> None:
    with pytest.raises(IllegalArgumentException, match=r"no format 'rat' .* Did you mean rate\?"):
        spark.readStream.format("rat").load()
    with pytest.raises(UsageError, match=r"There are .*csv, .*register_source"):
        spark.readStream.format("gopher").load()
    with pytest.raises(AnalysisException, match="does not support Change Data Capture"):
        spark.readStream.changes("t")


def test_an_unknown_option_is_refused_with_the_near_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate")
    with pytest.raises(
        IllegalArgumentException, match=r"no option rowPerSecond\. Did you mean rowsPerSecond\?"
    ):
        rate.option("rowPerSecond", 1).load()
    with pytest.raises(UsageError, match=r"no option colour\. There are"):
        spark.readStream.format("rate").option("colour", "red").load()
    with pytest.raises(UsageError, match=r"Did you mean maxFilesPerTrigger\?"):
        spark.readStream.option("maxFilePerTrigger", 1).text(str(tmp_path))
    with pytest.raises(UsageError, match=r"format csv has no option headr\. Did you mean header\?"):
        spark.readStream.schema("a int").option("headr", True).csv(str(tmp_path))


def test_an_option_that_may_be_somebodys_is_said_once(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "_warned", set())
    with caplog.at_level(logging.WARNING, logger="tidemill"):
        for _ in range(2):
            spark.readStream.option("zebra", 1).option("fs.s3a.key", 1).text(str(tmp_path))
    assert [record.message for record in caplog.records] == [
        "the format text has no option zebra that is known: it may have no effect"
    ]


def test_admission_options_hold_for_every_format(spark: SparkSession, tmp_path: Path) -> None:
    for reader in (
        spark.readStream.format("rate"),
        spark.readStream.format("text").option("path", str(tmp_path)),
    ):
        found = definition(
            reader.option("backpressure", True).option("maxRatePerSecond", 250).load()
        )
        assert (found.backpressure, found.max_rate_per_s) == (True, 250.0)
        assert "backpressure" not in found.options
    found = definition(spark.readStream.text(str(tmp_path)))
    assert (found.backpressure, found.max_rate_per_s) == (None, None)
    with pytest.raises(UsageError, match="option backpressure of the source rate is 'maybe'"):
        spark.readStream.format("rate").option("backpressure", "maybe").load()
    with pytest.raises(UsageError, match="option maxRatePerSecond of the source rate is '0'"):
        spark.readStream.format("rate").option("maxRatePerSecond", 0).load()


def test_a_source_has_its_own_columns(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"leave out schema\(\.\.\.\)"):
        spark.readStream.format("rate").schema("a int").load()
    same = spark.readStream.format("rate").schema("timestamp timestamp, value bigint").load()
    assert same.isStreaming


def test_a_source_may_have_a_name(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.name("orders_1").text(str(tmp_path))
    assert definition(df).name == "orders_1"
    with pytest.raises(PySparkValueError, match="letters, digits, and underscores"):
        spark.readStream.name("or ders")
    with pytest.raises(PySparkTypeError):
        spark.readStream.name(3)  # type: ignore[arg-type]


def test_none_is_no_option_and_the_last_value_counts(spark: SparkSession) -> None:
    reader = spark.readStream.format("rate").option("rowsPerSecond", None)
    reader = reader.options(rowsPerSecond=1, rampUpTime=None).option("ROWSpersecond", 7)
    assert dict(definition(reader.load()).options) == {"ROWSpersecond": "7"}


def test_a_table_of_files_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS streamed")
    spark.sql(f"CREATE TABLE streamed (a INT, b STRING) USING parquet LOCATION '{tmp_path}'")
    try:
        df = spark.readStream.option("maxFilesPerTrigger", 2).table("streamed")
        found = definition(df)
        assert (found.format, found.schema) == ("parquet", df.schema)
        assert found.path is not None
        assert found.path.endswith(str(tmp_path))
        assert found.options["maxFilesPerTrigger"] == "2"
        assert type(found.make()).__name__ == "FileStreamSource"
    finally:
        spark.sql("DROP TABLE streamed")


def test_a_folder_by_the_name_that_sql_has_for_it_is_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "in")
    spark.range(3).selectExpr("id", "id % 2 as odd").write.partitionBy("odd").json(folder)
    name = f"json.`{folder}`"
    df = spark.readStream.option("maxFilesPerTrigger", 1).table(name)
    assert df.isStreaming
    assert df.schema == spark.read.table(name).schema
    assert definition(df).options["maxFilesPerTrigger"] == "1"
    assert sorted(df.collect()) == sorted(spark.read.table(name).collect())
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        spark.readStream.table(f"parquet.`{tmp_path}/nothing`")


class Numbers(SplitSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.per_batch = int(options.get("perBatch", "10"))

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType())])

    def initial_offset(self) -> Offset:
        return 0

    def latest_offset(self, start: Offset, limit: AdmissionLimit, time_ms: int) -> Offset:
        return start + self.per_batch

    def size(self, range_: OffsetRange) -> RangeSize:
        return RangeSize(records=range_.end - range_.start)

    def splits(self, range_: OffsetRange, parallelism: int) -> Any:
        return [[range_.start, range_.end]]

    def split_reader(self) -> Any:
        return print


def test_a_source_of_the_users_own(spark: SparkSession) -> None:
    tidemill.register_source("my-numbers", Numbers)
    try:
        df = spark.readStream.format("my-numbers").option("perbatch", 100).load()
        assert df.columns == ["n"]
        assert definition(df).make().per_batch == 100
        with pytest.raises(UsageError, match=r"Did you mean my-numbers\?"):
            spark.readStream.format("my-number").load()
    finally:
        unregister_source("my-numbers")


def test_receivers_are_formats(spark: SparkSession) -> None:
    http = spark.readStream.format("http").option("port", 8090).load()
    assert http.schema.simpleString() == "struct<value:string>"
    assert definition(http).make().description() == "Receiver[http: HttpReceiver]"
    rows = spark.readStream.format("http").schema("a int, b string").option("port", 8090).load()
    assert rows.columns == ["a", "b"]
    assert definition(rows).make().schema() == rows.schema
    with pytest.raises(UsageError, match=r"no option prot\. Did you mean port\?"):
        spark.readStream.format("http").option("prot", 8090).load()
    with pytest.raises(UsageError, match="port"):
        spark.readStream.format("http").load()
    register_receiver("ticker", lambda options: SocketReceiver(options["host"], 9))
    try:
        ticker = spark.readStream.format("ticker").schema("n int").option("host", "h").load()
        assert ticker.columns == ["n"]
    finally:
        unregister_source("ticker")


class Letters(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        return iter([("a",)]), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([("a",)])


class LettersSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "letters"

    def schema(self) -> str:
        return "letter string"

    def simpleStreamReader(self, schema: StructType) -> Letters:
        return Letters()


def test_a_python_data_source_of_pyspark(spark: SparkSession) -> None:
    spark.dataSource.register(LettersSource)
    df = spark.readStream.format("letters").load()
    assert df.columns == ["letter"]
    assert definition(df).make().description() == "PythonDataSource[letters]"
