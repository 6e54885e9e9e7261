"""Errors of the classes that a program has written for PySpark's ``DataSource``.

They carry the conditions that Spark has for them, and begin with the user's own frames.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException, PySparkNotImplementedError

from tidemill.errors import BatchError, SourceError, TidemillError
from tidemill.spark.errors.failures import has_own_frames, user_traceback

CREATION = "PYTHON_DATA_SOURCE_ERROR"
RUNTIME = "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"


class DataSourceCreationError(SourceError, AnalysisException):
    """A Python data source cannot be made, or does not give its schema, its reader or its writer."""

    def __init__(self, message: str, data_source: str, user_traceback: str = "") -> None:
        self._text = _joined(user_traceback, f"[{CREATION}] {message}")
        PySparkException.__init__(self, message=self._text)
        self.source = data_source

    def getCondition(self) -> str:
        return CREATION

    def __str__(self) -> str:
        return self._text


class DataSourceResultError(SourceError, PySparkException):
    """A method of a Python data source has returned something that cannot be used."""

    def __init__(self, message: str, data_source: str) -> None:
        self._text = f"[{RUNTIME}] {message}"
        PySparkException.__init__(self, message=self._text)
        self.source = data_source

    def getCondition(self) -> str:
        return RUNTIME

    def __str__(self) -> str:
        return self._text


class DataSourceMethodError(BatchError, PySparkException):
    """A method of a reader or a writer has raised, on the driver. ``cause`` is what it raised."""

    def __init__(self, data_source: str, method: str, cause: BaseException) -> None:
        message = f"[{RUNTIME}] {method}() of the Python data source {data_source!r} failed."
        BatchError.__init__(self, _users_view(cause), message, cause=cause)
        self.data_source = data_source
        self.method = method

    def getCondition(self) -> str:
        return RUNTIME

    def __str__(self) -> str:
        return _joined(self.user_traceback, self.what_failed)


@contextmanager
def calling(data_source: str, method: str) -> Iterator[None]:
    """Raise what a method of the user's raises in the block as an error that names it.

    ``method`` is such as ``reader.commit``.
    """
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:
        raise DataSourceMethodError(data_source, method, error) from error


@contextmanager
def creating(data_source: str, what: str, if_missing: str = "") -> Iterator[None]:
    """Raise what the user's class raises in the block as an error that names ``what`` it should give.

    ``if_missing`` says what to do about a method that the class does not have.
    """
    try:
        yield
    except TidemillError:
        raise
    except PySparkNotImplementedError as error:
        if not if_missing:
            raise _creation_error(data_source, what, error) from error
        raise DataSourceCreationError(if_missing, data_source) from None
    except Exception as error:
        raise _creation_error(data_source, what, error) from error


def _creation_error(data_source: str, what: str, error: Exception) -> DataSourceCreationError:
    message = f"{what} of the Python data source {data_source!r} failed."
    return DataSourceCreationError(message, data_source, _users_view(error))


def _users_view(error: BaseException) -> str:
    """Return the error with the user's frames; without any, only what it says."""
    if has_own_frames(error):
        return user_traceback(error)
    return "".join(traceback.format_exception_only(error))


def _joined(user_traceback: str, message: str) -> str:
    return f"{user_traceback.rstrip()}\n\n{message}" if user_traceback else message
