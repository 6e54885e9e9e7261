"""Errors of queries: Tidemill's own, and of PySpark's types as well.

A program that was written against PySpark catches ``AnalysisException``, ``IllegalArgumentException`` and
``StreamingQueryException``, and it goes on catching them.
"""

from __future__ import annotations

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    StreamingQueryException,
)

from tidemill.errors import BatchError, OptionError, QueryError, TidemillError


class QueryArgumentError(OptionError, IllegalArgumentException):
    """A value that a reader, a writer or a query manager was given cannot be used."""

    def __init__(self, message: str, option: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.option = option


class QueryAnalysisError(QueryError, AnalysisException):
    """The query as a whole cannot be run as it is written."""

    def __init__(self, message: str, operation: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.operation = operation


class QueryFailedError(TidemillError, StreamingQueryException):
    """A query has ended with an error. ``str()`` begins with the user's own traceback.

    Attributes:
        query_id, run_id, query_name: which query it was.
        cause: the error as it was raised.
    """

    def __init__(
        self, text: str, *, query_id: str, run_id: str, query_name: str | None, cause: BaseException
    ) -> None:
        named = f"Query {query_name!r}" if query_name else "Query"
        which = f"{named} [id = {query_id}, runId = {run_id}] ended with this error."
        self._text = f"{text.rstrip()}\n\n{which}"
        PySparkException.__init__(self, message=self._text)
        self.query_id = query_id
        self.run_id = run_id
        self.query_name = query_name
        self.cause = cause

    def getCondition(self) -> str:
        return "STREAM_FAILED"

    def __str__(self) -> str:
        return self._text  # PySpark would begin with the condition


def text_of(error: BaseException) -> str:
    """What a user reads first: the frames of their own code, not ours, and the error."""
    if isinstance(error, BatchError):
        return str(error)
    if isinstance(error, TidemillError):
        return f"{type(error).__name__}: {error}"  # it says what to do; a trace would hide that
    from tidemill.spark.session.failures import user_traceback

    return user_traceback(error)


def condition_of(error: BaseException) -> str | None:
    """The error condition that Spark gives an error, such as ``DIVIDE_BY_ZERO``."""
    inner = error.cause if isinstance(error, (BatchError, QueryFailedError)) else error
    if not isinstance(inner, PySparkException):
        return None
    try:
        return inner.getCondition()
    except Exception:  # the JVM has gone away, and with it the exception object
        return None
