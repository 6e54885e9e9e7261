"""Structured queries: ``pyspark.sql.streaming`` on Tidemill's engine.

Call ``tidemill.attach(spark)``; a program needs no import from here. The names below are for type
annotations, and for programs that import them from ``pyspark.sql.streaming``::

    from tidemill.sql import DataStreamReader, StreamingQuery

What you call is in the modules of this folder: ``attach`` puts ``reader``, ``writer`` and ``query_manager``
in the place of PySpark's, ``formats`` finds the source of a format, and ``query`` is the handle of a started
query. The rest is in two rooms::

    execution/   runs a query: what it is (query_spec, checked_query), its thread (stream_execution,
                 micro_batch_execution), when batches run (triggers), what they read (query_sources,
                 query_receivers), what runs on a batch (query_pipeline, query_plans, operator_states,
                 watermark), all that is taken and given back (query_resources), what is reported
                 (batch_progress), what is in the checkpoint (checkpoint/), and the end of the program
                 (query_shutdown)
    verify/      runs a stream as a batch: query.verify() (verifier, comparison, report), and df.show() on a
                 stream (batch_reads, snapshot)
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
