"""What Spark says about errors: of its own, of Python's, and of calls that it refuses."""

from __future__ import annotations

import pytest
from pyspark import SparkContext
from pyspark.errors import (
    ArithmeticException,
    PySparkException,
    PythonException,
    UnknownException,
)
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tidemill.errors import BatchError, OptionError
from tidemill.spark.errors.conditions import (
    captured,
    condition_of,
    condition_of_format,
    condition_of_interval,
    condition_of_streaming,
    sql_state_of,
)


def error_of(spark: SparkSession, expression: str) -> Exception:
    with pytest.raises(PySparkException) as raised:
        spark.range(1).selectExpr(expression).collect()
    return raised.value


def in_batch(error: Exception) -> BatchError:
    return BatchError("", "Batch 0 failed.", cause=error)


def test_the_cause_is_what_went_wrong_in_the_job(spark: SparkSession) -> None:
    cause = captured(in_batch(error_of(spark, "1 / (id - id)")))
    assert isinstance(cause, ArithmeticException)
    assert cause.getSqlState() == "22012"
    assert condition_of(cause) == "DIVIDE_BY_ZERO"

    def fail(number):  # type: ignore[no-untyped-def]  # Spark would ask the types what to do
        raise ValueError("three")

    spark.udf.register("fail_in_python", udf(fail, "int"))
    cause = captured(in_batch(error_of(spark, "fail_in_python(id)")))
    assert isinstance(cause, PythonException)
    assert condition_of(in_batch(cause)) == "PYTHON_EXCEPTION"


def test_without_a_jvm_nothing_is_known_of_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first session, a bad option raises an error that can be asked for its state."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert sql_state_of("DIVIDE_BY_ZERO") is None


def test_an_error_of_python_comes_with_its_text_and_trace_and_without_a_condition(
    spark: SparkSession,
) -> None:
    try:
        raise ValueError("three")
    except ValueError as error:
        cause = captured(in_batch(error))
    assert isinstance(cause, UnknownException)
    assert cause._desc == "ValueError: three"
    assert "test_conditions.py" in cause._stackTrace
    assert condition_of(cause) is None


def test_a_condition_that_was_given_comes_first() -> None:
    error = OptionError("no").like_spark("STREAMING_OUTPUT_MODE.INVALID", outputMode=3)
    assert condition_of(error) == "STREAMING_OUTPUT_MODE.INVALID"
    assert error.spark_condition is not None
    assert error.spark_condition.parameters == {"outputMode": "3"}


def test_spark_itself_is_asked_for_conditions(spark: SparkSession) -> None:
    assert sql_state_of("STREAM_FAILED") == "XXKST"
    assert sql_state_of("NO_SUCH_CONDITION") is None
    interval = condition_of_interval("1 banana")
    assert interval is not None
    assert interval.name == "INVALID_INTERVAL_FORMAT.INVALID_UNIT"
    assert condition_of_interval("1 second") is None
    avro = condition_of_format(spark, "avro")
    assert avro is not None
    assert avro.name == "AVRO_DATA_SOURCE_NOT_ENABLED"
    assert condition_of_format(spark, "json") is None
    ticks = spark.readStream.format("rate").load()
    groups = condition_of_streaming(ticks.groupBy("value").count(), "append")
    assert groups is not None
    assert groups.name == "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
    assert groups.parameters["outputMode"] == "append"
    assert condition_of_streaming(ticks, "append") is None
