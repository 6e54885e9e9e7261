from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidemill.errors import UnsupportedError, UsageError
from tidemill.sinks.console import ConsoleSink
from tidemill.sinks.files.file_sink import FileSink
from tidemill.sinks.foreach import ForeachSink
from tidemill.sinks.foreach_batch import ForeachBatchSink
from tidemill.sinks.memory import MemorySink
from tidemill.sinks.noop import NoopSink
from tidemill.sinks.registry import FILE_FORMATS, sink_for
from tidemill.spark.files.file_formats import format_options, is_file_format


@pytest.mark.parametrize(
    ("arguments", "sink"),
    [
        ({"format": "console", "options": {"NUMROWS": 3, "truncate": False}}, ConsoleSink),
        (
            {"format": "Memory", "query_name": "q", "options": {"checkpointLocation": "/x"}},
            MemorySink,
        ),
        ({"format": "noop", "options": {"spark.streaming.backpressure.enabled": True}}, NoopSink),
        ({"format": "parquet", "path": "/x", "partition_by": ["day"]}, FileSink),
        ({"format": None, "options": {"path": "/x"}}, FileSink),
        ({"format": "org.example.MyFormat", "path": "/x"}, FileSink),
        ({"format": "noop", "options": {"maxRate": 5}, "query_options": ["maxRate"]}, NoopSink),
        ({"format": None, "foreach": print}, ForeachSink),
        ({"format": None, "foreach_batch": print}, ForeachBatchSink),
    ],
)
def test_the_sink_that_was_asked_for(arguments: dict[str, Any], sink: type) -> None:
    assert type(sink_for(**arguments)) is sink


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "parqet", "path": "/x"}, "no sink for the format parqet. Did you mean parquet"),
        ({"format": "consol"}, "Did you mean console"),
        ({"format": "parquet"}, "needs a directory"),
        ({"format": "console", "options": {"numRow": 3}}, "no option numRow. Did you mean numRows"),
        ({"format": "console", "options": {"numRows": "many"}}, "whole number of rows"),
        ({"format": "console", "options": {"truncate": "20"}}, "true or false"),
        (
            {"format": "memory", "options": {"rows": 1}, "query_name": "q"},
            "memory sink has no option rows",
        ),
        ({"format": "memory"}, "queryName"),
        ({"format": None, "foreach": print, "partition_by": ["a"]}, "cannot be partitioned"),
    ],
)
def test_what_nobody_knows_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sink_for(**arguments)


def test_what_is_written_otherwise_is_said() -> None:
    with pytest.raises(UnsupportedError, match="foreachBatch"):
        sink_for("delta")


def test_spark_says_which_formats_and_options_it_has(spark: SparkSession) -> None:
    found = {name for name in FILE_FORMATS if is_file_format(spark, name)}
    assert found == set(FILE_FORMATS) - {"avro"}, "avro is a package of its own"
    assert not is_file_format(spark, "console")
    assert not is_file_format(spark, "no.such.Format")
    assert {"header", "sep"} <= (format_options(spark, "CSV") or set())
    assert format_options(spark, "avro") is None
