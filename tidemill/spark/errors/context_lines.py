"""Keeps PySpark's own line about an error off the terminal where Tidemill tells of that error.

PySpark logs an error that has a place in a query (a division by zero, a column that is not there) before a
program can catch it: as one line of JSON, some kilobytes long, with the whole stack of the JVM.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

_thread = threading.local()


class _HoldBack(logging.Filter):
    """Keeps the records of threads that are inside :func:`told_in_short`."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def filter(self, record: logging.LogRecord) -> bool:
        held: list[tuple[logging.Handler, logging.LogRecord]] | None = _held()
        if held is None:
            return True
        held.append((self._handler, record))
        return False


def hold_back_context_lines() -> None:
    """Let :func:`told_in_short` hold back lines from now on. Idempotent.

    Only the handler that PySpark gives a logger at its birth is told: others are the program's own.
    """
    for name in LOGGERS:
        for handler in PySparkLogger.getLogger(name).handlers[:1]:
            if not any(isinstance(each, _HoldBack) for each in handler.filters):
                handler.addFilter(_HoldBack(handler))


@contextmanager
def told_in_short(always: bool = False) -> Iterator[None]:
    """Hold back the lines of this thread. IF the block raises, its error is told elsewhere, and they are not
    printed. IF the program has handled the error itself, they are, at the end of the block.

    ``always``: the block looks at an error that has been told, and its lines are printed in no case.
    """
    outer = _held()
    held: list[tuple[logging.Handler, logging.LogRecord]] = []
    _thread.held = held
    try:
        yield
    finally:
        _thread.held = outer
    if not always:
        for handler, record in held:
            handler.handle(record)


def _held() -> list[tuple[logging.Handler, logging.LogRecord]] | None:
    return getattr(_thread, "held", None)
