"""What a writer checks before a query starts: triggers, columns, functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.spark.errors.conditions import condition_of_interval, condition_of_real_time
from tidemill.sql.argument_checks import require_str
from tidemill.sql.execution.triggers import Continuous, RealTime, interval_ms
from tidemill.sql.query_errors import QueryAnalysisError, QueryArgumentError, QueryTriggerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def trigger_interval_ms(text: str) -> int:
    """Return the milliseconds of a trigger's interval; an error has the condition that Spark gives it."""
    try:
        return interval_ms(text)
    except QueryArgumentError as error:
        error.spark_condition = condition_of_interval(text)
        raise


def refused_trigger(
    spark: SparkSession, trigger: Continuous | RealTime, output_mode: str, sink: str
) -> QueryTriggerError:
    """Return the error about a trigger of one of Spark's other engines, which Tidemill lacks so far."""
    name = "continuous" if isinstance(trigger, Continuous) else "realTime"
    error = QueryTriggerError(
        f"trigger({name}=...) is not supported: queries run in batches here. Use "
        "trigger(processingTime='100 milliseconds'), or no trigger at all, which starts a batch as soon as "
        "there are rows and is done with it within tens of milliseconds"
    )
    if isinstance(trigger, RealTime):
        error.spark_condition = condition_of_real_time(spark, trigger.batch_ms, output_mode, sink)
    return error


def require_columns(
    df: DataFrame, operation: str, names: Sequence[str], is_table: bool = False
) -> None:
    """Refuse the name of a column that is not there, or is there twice."""
    columns = {name.lower() for name in df.columns}
    for name in names:
        if name.lower() not in columns:
            error = QueryAnalysisError(
                f"{operation}({name!r}): there is no such column; there are {', '.join(df.columns)}",
                operation=operation,
            )
            if is_table:  # Spark has a name for it only where it makes a table
                error.like_spark("COLUMN_NOT_DEFINED_IN_TABLE", colName=f"`{name}`")
            raise error
        if [each.lower() for each in names].count(name.lower()) > 1:
            raise QueryAnalysisError(
                f"{operation} has the column {name!r} twice", operation=operation
            ).like_spark("COLUMN_ALREADY_EXISTS", columnName=f"`{name.lower()}`")


def require_two_parameters(func: Callable[..., Any]) -> None:
    """Refuse now a function that the first batch could not call."""
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # a function not written in Python may have no signature
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        name = getattr(func, "__name__", type(func).__name__)
        raise QueryArgumentError(
            f"foreachBatch calls its function with a DataFrame and a batch id, and {name}{signature} cannot "
            f"be called so: {error}",
            option="foreachBatch",
        ) from None


def column_names(cols: Sequence[Any]) -> list[str]:
    """Return the column names in ``cols``, which are several strings or one list."""
    names = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else list(cols)
    for name in names:
        require_str("cols", name)
    return names
