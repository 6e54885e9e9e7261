"""The errors of queries, which are errors of Tidemill and of PySpark at once.

A program written against PySpark catches ``AnalysisException``, ``IllegalArgumentException`` and
``StreamingQueryException``; it catches these errors with the same ``except`` clauses, and asks them the same
questions: ``getCondition()``, ``getMessageParameters()``, ``getSqlState()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    NumberFormatException,
    PySparkException,
    StreamingQueryException,
    UnsupportedOperationException,
)

from tidemill.errors import (
    BatchError,
    FailureReport,
    OptionError,
    QueryError,
    SinkError,
    SourceError,
    SparkCondition,
    TidemillError,
    UnsupportedError,
    UsageError,
)


class _ConditionedError(TidemillError, PySparkException):
    """Answers a caller of PySpark's methods with Spark's condition, if the error has one."""

    def _say(self, message: str) -> None:
        PySparkException.__init__(self, message=message)

    def getCondition(self) -> str | None:
        return None if self.spark_condition is None else self.spark_condition.name

    def getMessageParameters(self) -> dict[str, str] | None:
        return None if self.spark_condition is None else dict(self.spark_condition.parameters)

    def getSqlState(self) -> str | None:
        from tidemill.spark.errors.conditions import sql_state_of

        condition = self.getCondition()
        return None if condition is None else sql_state_of(condition)

    def __str__(self) -> str:
        return self._message  # what to do comes first: PySpark would begin with the condition


class QueryArgumentError(_ConditionedError, OptionError, IllegalArgumentException):
    """A reader, a writer or a query manager cannot use a value that the program passed."""

    def __init__(self, message: str, option: str = "") -> None:
        self._say(message)
        self.option = option


class QueryOptionError(QueryArgumentError, NumberFormatException, AnalysisException):
    """An option of a source is missing, or cannot be used. What Spark raises differs by source and option;
    this is all of it.
    """


class QueryAnalysisError(_ConditionedError, QueryError, AnalysisException):
    """The query as a whole cannot run as it is written."""

    def __init__(self, message: str, operation: str = "") -> None:
        self._say(message)
        self.operation = operation


class QuerySourceError(
    _ConditionedError, SourceError, AnalysisException, UnsupportedOperationException
):
    """A source of the query cannot be read as the program asks. Spark raises the one type or the other."""

    def __init__(self, message: str, source: str = "") -> None:
        self._say(message)
        self.source = source


class QuerySinkError(_ConditionedError, SinkError, AnalysisException, IllegalArgumentException):
    """The sink cannot write what the query asks. Spark raises the one type or the other; this is both."""

    def __init__(self, message: str, sink: str = "") -> None:
        self._say(message)
        self.sink = sink


class QueryFormatError(QueryArgumentError, AnalysisException, UnsupportedOperationException):
    """There is no format of that name. What Spark raises depends on why it has none; this is all of it."""


class QueryUnsupportedError(
    _ConditionedError, UnsupportedError, AnalysisException, UnsupportedOperationException
):
    """Spark's engine may be able to do it, Tidemill's is not: to a program, an operation that a stream
    does not support.
    """

    def __init__(self, message: str) -> None:
        self._say(message)


class QueryTriggerError(QueryUnsupportedError, IllegalArgumentException):
    """The trigger asks for a mode of execution that this query, or Tidemill, does not have."""


class QueryFailedError(_ConditionedError, StreamingQueryException, FailureReport):
    """A query has ended with an error. ``str()`` begins with the user's own traceback.

    It is raised without ``__cause__``: a printed chain of causes would repeat the same error, in a hundred
    lines of Spark's and ours.

    Attributes:
        query_id, run_id, query_name: which query it was.
        cause: the error as it was raised. ``_cause`` is what Spark's own engine would name in its place.
    """

    def __init__(
        self,
        text: str,
        *,
        query_id: str,
        run_id: str,
        query_name: str | None,
        cause: BaseException,
        closing: str = "",
    ) -> None:
        named = f"Query {query_name!r}" if query_name else "Query"
        conditions = ", ".join(["STREAM_FAILED", *filter(None, [_condition_of(cause)])])
        which = f"{named} [id = {query_id}, runId = {run_id}] ended with this error ({conditions})."
        # After the sentence about the batch comes that about the query.
        between = "\n" if "\n\n" in text else "\n\n"
        self._say(f"{text.rstrip()}{between}{which}\n{closing}".rstrip())
        self.query_id = query_id
        self.run_id = run_id
        self.query_name = query_name
        self.cause = cause
        self.like_spark("STREAM_FAILED", id=query_id, runId=run_id, message=text.rstrip())
        # What programs read in PySpark's own exception, as if Spark's engine had raised it.
        self._desc = (
            f"[STREAM_FAILED] Query [id = {query_id}, runId = {run_id}] terminated with exception: "
            f"{text.rstrip()}"
        )
        self._origin = None

    @property
    def _stackTrace(self) -> str:
        return str(self._cause._stackTrace)

    @property
    def _cause(self) -> Any:
        from tidemill.spark.errors.conditions import captured

        return captured(self.cause)


def _condition_of(cause: BaseException) -> str | None:
    from tidemill.spark.errors.conditions import condition_of

    return condition_of(cause)


@contextmanager
def raised_as_pyspark(
    sparks_condition: Callable[[], SparkCondition | None] = lambda: None,
) -> Iterator[None]:
    """Raise a usage error from below as the class above that has the same culprit.

    ``sparks_condition`` is asked for Spark's name of the error if nobody has given it one.
    """
    try:
        yield
    except (UsageError, UnsupportedError) as error:
        if isinstance(error, PySparkException):
            raise
        raised = _as_pyspark(error)
        raised.spark_condition = error.spark_condition
        may_be_sparks = isinstance(error, (QueryError, SinkError, UnsupportedError))
        if error.spark_condition is None and may_be_sparks:
            raised.spark_condition = sparks_condition()
        raise raised from None


def _as_pyspark(error: TidemillError) -> TidemillError:
    message = str(error)
    match error:
        case OptionError():
            return QueryArgumentError(message, error.option)
        case SourceError():
            return QuerySourceError(message, error.source)
        case SinkError():
            return QuerySinkError(message, error.sink)
        case QueryError():
            return QueryAnalysisError(message, error.operation)
        case UnsupportedError():
            return QueryUnsupportedError(message)
    return error


def text_of(error: BaseException, failed_in: str = "") -> str:
    """Return what a user should read first: the frames of their own code and the error, not our frames.

    ``failed_in`` is a sentence about the batch, for an error that does not name it.
    """
    if isinstance(error, BatchError):
        names_batch = error.batch_time_ms is not None
        return str(error) if names_batch or not failed_in else f"{str(error).rstrip()}\n{failed_in}"
    if isinstance(error, TidemillError):
        text = f"{type(error).__name__}: {error}"  # it says what to do; a trace would hide that
    else:
        from tidemill.spark.errors.failures import user_traceback

        text = user_traceback(error)
    return f"{text.rstrip()}\n\n{failed_in}" if failed_in else text
