"""The errors of queries, which are errors of Tidemill and of PySpark at once.

A program written against PySpark catches ``AnalysisException``, ``IllegalArgumentException`` and
``StreamingQueryException``; it catches these errors with the same ``except`` clauses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    StreamingQueryException,
)

from tidemill.errors import (
    BatchError,
    OptionError,
    QueryError,
    SinkError,
    SourceError,
    TidemillError,
    UsageError,
)


class QueryArgumentError(OptionError, IllegalArgumentException):
    """A reader, a writer or a query manager cannot use a value that the program passed."""

    def __init__(self, message: str, option: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.option = option


class QueryAnalysisError(QueryError, AnalysisException):
    """The query as a whole cannot run as it is written."""

    def __init__(self, message: str, operation: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.operation = operation


class QuerySourceError(SourceError, AnalysisException):
    """A source of the query cannot be read as the program asks."""

    def __init__(self, message: str, source: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.source = source


class QuerySinkError(SinkError, AnalysisException, IllegalArgumentException):
    """The sink cannot write what the query asks. Spark raises the one type or the other; this is both."""

    def __init__(self, message: str, sink: str = "") -> None:
        PySparkException.__init__(self, message=message)
        self.sink = sink


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


@contextmanager
def raised_as_pyspark() -> Iterator[None]:
    """Raise a usage error from below as the class above that has the same culprit."""
    try:
        yield
    except UsageError as error:
        if isinstance(error, PySparkException):
            raise
        message = str(error)
        match error:
            case OptionError():
                raise QueryArgumentError(message, error.option) from None
            case SourceError():
                raise QuerySourceError(message, error.source) from None
            case SinkError():
                raise QuerySinkError(message, error.sink) from None
            case QueryError():
                raise QueryAnalysisError(message, error.operation) from None
        raise


def text_of(error: BaseException) -> str:
    """Return what a user should read first: the frames of their own code and the error, not our frames."""
    if isinstance(error, BatchError):
        return str(error)
    if isinstance(error, TidemillError):
        return f"{type(error).__name__}: {error}"  # it says what to do; a trace would hide that
    from tidemill.spark.session.failures import user_traceback

    return user_traceback(error)


def condition_of(error: BaseException) -> str | None:
    """Return Spark's name for the error's condition, such as ``DIVIDE_BY_ZERO``, or None."""
    inner = error.cause if isinstance(error, (BatchError, QueryFailedError)) else error
    if not isinstance(inner, PySparkException):
        return None
    try:
        return inner.getCondition()
    except Exception:  # the JVM has gone away, and the exception object with it
        return None
