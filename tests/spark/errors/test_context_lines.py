"""PySpark's own line of JSON about an error: not on the terminal where Tidemill tells of the error."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from tests.manual_stream import Stream
from tests.sql.batches import stopped_at_end
from tidemill.errors import BatchError
from tidemill.spark.errors.context_lines import (
    LOGGERS,
    hold_back_context_lines,
    told_in_short,
)


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    """What PySpark's handlers print from now on."""
    hold_back_context_lines()
    printed = io.StringIO()
    handlers: list[Any] = [PySparkLogger.getLogger(name).handlers[0] for name in LOGGERS]
    before = [handler.setStream(printed) for handler in handlers]
    yield printed
    for handler, stream in zip(handlers, before, strict=True):
        handler.setStream(stream)


def ticks(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_line_is_printed_unless_the_block_raises(name: str, terminal: io.StringIO) -> None:
    logger = PySparkLogger.getLogger(name)

    def fail() -> None:
        with told_in_short():
            logger.error("told elsewhere")
            raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        fail()
    with told_in_short(always=True):
        logger.error("looked at")
    assert terminal.getvalue() == ""
    with told_in_short():
        with told_in_short():
            logger.error("the program has handled it")
        assert terminal.getvalue() == ""
    assert terminal.getvalue().count("the program has handled it") == 1
    logger.error("nobody tells of it")
    assert "nobody tells of it" in terminal.getvalue()


def test_it_is_said_to_hold_back_once(terminal: io.StringIO) -> None:
    logger = PySparkLogger.getLogger(LOGGERS[0])
    before = list(logger.handlers[0].filters)
    hold_back_context_lines()
    assert logger.handlers[0].filters == before


def test_a_query_that_fails_in_an_expression_prints_none(
    spark: SparkSession, terminal: io.StringIO
) -> None:
    query = ticks(spark).selectExpr("1 / (value - value)").writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination()
    assert failed.value._cause.getCondition() == "DIVIDE_BY_ZERO"
    assert terminal.getvalue() == ""


def test_a_function_of_a_batch_prints_what_it_handles(
    spark: SparkSession, terminal: io.StringIO
) -> None:
    handled = []

    def save(df: DataFrame, batch_id: int) -> None:
        try:
            df.select("nope")
        except AnalysisException as error:
            handled.append(error.getCondition())

    query = ticks(spark).writeStream.foreachBatch(save).trigger(once=True).start()
    with stopped_at_end(query):
        query.awaitTermination()
    assert handled == ["UNRESOLVED_COLUMN.WITH_SUGGESTION"]
    assert terminal.getvalue().count('"level": "ERROR"') == 1


def test_a_dstream_that_fails_prints_none(
    stream: Stream, spark: SparkSession, terminal: io.StringIO
) -> None:
    stream.ssc.queueStream([[1]]).foreachRDD(
        lambda rdd: spark.createDataFrame(rdd, "int").selectExpr("1 / (value - value)").collect()
    )
    with pytest.raises(BatchError, match="DIVIDE_BY_ZERO"):
        stream.start_and_run(1)
    assert terminal.getvalue() == ""
