"""Structured queries: ``pyspark.sql.streaming`` on Tidemill's engine.

Call ``tidemill.attach(spark)``; a program needs no import from here. The names below are for type
annotations, and for programs that import them from ``pyspark.sql.streaming``::

    from tidemill.sql import DataStreamReader, StreamingQuery

What you call is in the modules of this folder: ``attach`` puts ``reader``, ``writer`` and ``query_manager``
in the place of PySpark's, ``formats`` finds the source of a format, and ``query`` is the handle of a started
query. ``argument_checks`` and ``writer_checks`` refuse what PySpark refuses, with the errors of
``query_errors``. The rest is in two rooms::

    execution/   runs a query
        query_spec, checked_query                   what the writer asked for, and whether it can run
        micro_batch_execution, stream_execution     its thread and its lifecycle
        triggers                                    when batches run
        query_resources                             everything that a run acquires and releases
        query_sources, query_receivers              what a batch reads
        query_pipeline, query_plans                 what runs on a batch
        operator_states, watermark                  what stays from batch to batch
        batch_progress                              what listeners hear of a batch
        query_shutdown                              how queries stop when the program ends
        checkpoint/                                 where the checkpoint is, and whether it fits the query
    verify/      runs a stream as a batch
        verifier, comparison, report                query.verify()
        batch_reads, snapshot                       df.show() and other actions on a stream
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

_MODULES = {
    "DataStreamReader": "tidemill.sql.reader",
    "DataStreamWriter": "tidemill.sql.writer",
    "StreamingQuery": "tidemill.sql.query",
    "StreamingQueryListener": "pyspark.sql.streaming.listener",
    "StreamingQueryManager": "tidemill.sql.query_manager",
}


def __getattr__(name: str) -> Any:
    # Imported at first use: tasks import parts of this package and need none of these classes.
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'tidemill.sql' has no attribute {name!r}")
