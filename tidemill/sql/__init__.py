"""Structured queries: ``pyspark.sql.streaming`` on Tidemill's engine.

A program gets them with ``tidemill.attach(spark)`` and needs no import from here. The names are for type
annotations, and for programs that import them from ``pyspark.sql.streaming``::

    from tidemill.sql import DataStreamReader, StreamingQuery
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "DataStreamReader",
    "DataStreamWriter",
    "StreamingQuery",
    "StreamingQueryListener",
    "StreamingQueryManager",
]

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from tidemill.sql.query import StreamingQuery
    from tidemill.sql.query_manager import StreamingQueryManager
    from tidemill.sql.reader import DataStreamReader
    from tidemill.sql.writer import DataStreamWriter

_WHERE = {
    "DataStreamReader": "tidemill.sql.reader",
    "DataStreamWriter": "tidemill.sql.writer",
    "StreamingQuery": "tidemill.sql.query",
    "StreamingQueryListener": "pyspark.sql.streaming.listener",
    "StreamingQueryManager": "tidemill.sql.query_manager",
}


def __getattr__(name: str) -> Any:
    # Tasks import parts of this package, and need none of these.
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tidemill.sql' has no attribute {name!r}")
