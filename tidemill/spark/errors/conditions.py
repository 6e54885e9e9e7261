"""What Spark says about an error: its condition, and the error that a program would see in its place."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import (
    CapturedException,
    UnknownException,
    convert_exception,
)

from tidemill.common.output_modes import UPDATE
from tidemill.errors import BatchError, SparkCondition
from tidemill.spark.errors.context_lines import told_in_short
from tidemill.spark.java_names import java_names
from tidemill.spark.session.settings import REAL_TIME_AT_LEAST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SINKS_OF_REAL_TIME = ("console", "foreach", "kafka")


def sql_state_of(condition: str) -> str | None:
    """Return the SQLSTATE of one of Spark's conditions; None without a JVM, or if Spark has none for it."""
    if SparkContext._gateway is None:
        return None
    jvm = java_names(SparkContext)
    try:
        state = jvm.org.apache.spark.SparkThrowableHelper.getSqlState(condition)
    except Exception:  # the JVM has gone away, or does not know the condition
        return None
    return None if state is None else str(state)


def condition_raised_by(call: Callable[[], object]) -> SparkCondition | None:
    """Return the condition of the error that a call of Spark's own raises; None if it raises none."""
    try:
        with told_in_short():
            call()
    except PySparkException as error:
        condition = error.getCondition()
        if condition is not None:
            return SparkCondition(condition, error.getMessageParameters() or {})
    except Exception:
        return None
    return None


def condition_of_streaming(df: DataFrame, output_mode: str) -> SparkCondition | None:
    """Return the condition with which Spark refuses to stream a DataFrame; None if it would not."""
    jvm = java_names(df.sparkSession.sparkContext)
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    plan = df._jdf.queryExecution().analyzed()
    return condition_raised_by(lambda: checker.checkForStreaming(plan, mode))


def condition_of_interval(text: str) -> SparkCondition | None:
    """Return the condition with which Spark refuses the interval of a trigger; None if it would not."""
    jvm = java_names(SparkContext)
    return condition_raised_by(
        lambda: jvm.org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)
    )


def condition_of_real_time(
    spark: SparkSession, batch_ms: int, output_mode: str, sink: str
) -> SparkCondition:
    """Return the condition with which Spark refuses the real-time mode to a query like this one."""
    least_ms = int(spark.conf.get(REAL_TIME_AT_LEAST, "5000"))  # type: ignore[arg-type]
    if batch_ms < least_ms and sink in _SINKS_OF_REAL_TIME:
        return SparkCondition(
            "INVALID_STREAMING_REAL_TIME_MODE_TRIGGER_INTERVAL",
            {"interval": str(batch_ms), "minBatchDuration": str(least_ms)},
        )
    if sink not in _SINKS_OF_REAL_TIME:
        return SparkCondition(
            "STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST",
            {"errorType": "sink", "message": f"{sink} is"},
        )
    if output_mode != UPDATE:
        return SparkCondition(
            "STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPPORTED",
            {"outputMode": output_mode.capitalize()},
        )
    return SparkCondition(
        "STREAMING_REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED", {"className": "Tidemill's sources"}
    )


def condition_of_format(spark: SparkSession, format_name: str) -> SparkCondition | None:
    """Return the condition with which Spark says that it has no such format; None if it has."""
    jvm = java_names(spark.sparkContext)
    source = jvm.org.apache.spark.sql.execution.datasources.DataSource
    conf = spark._jsparkSession.sessionState().conf()
    return condition_raised_by(lambda: source.lookupDataSource(format_name, conf))


def parse_schema(text: str) -> None:
    """Raise Spark's own error if a text is no schema."""
    jvm = java_names(SparkContext)
    jvm.org.apache.spark.sql.types.StructType.fromDDL(text)


def captured(error: BaseException) -> CapturedException:
    """Return the error that Spark's own engine would name as the cause of a query's end.

    Spark leaves out what only says that a job or a task has failed, and begins with what went wrong in it.
    An error of Python's own comes to Spark as one that has no condition.
    """
    with told_in_short(always=True):
        return _captured(error)


def _captured(error: BaseException) -> CapturedException:
    inner = error.cause if isinstance(error, BatchError) else error
    if isinstance(inner, Py4JJavaError):
        inner = convert_exception(inner.java_exception)
    if not isinstance(inner, CapturedException):
        text = "".join(traceback.format_exception_only(inner)).strip()
        return UnknownException(
            desc=text, stackTrace="".join(traceback.format_exception(inner)).rstrip()
        )
    found: Any = inner
    while found is not None and found.getCondition() is None:
        found = found._cause
    return inner if found is None else found


def condition_of(error: BaseException) -> str | None:
    """Return Spark's name for what ended a query, such as ``DIVIDE_BY_ZERO``; None if it has none."""
    named = getattr(error, "spark_condition", None)
    if named is not None:
        return str(named.name)
    try:
        is_named = isinstance(error, BatchError) and isinstance(error, PySparkException)
        return error.getCondition() if is_named else captured(error).getCondition()  # type: ignore[attr-defined]
    except Exception:  # the JVM has gone away, and the exception object with it
        return None
