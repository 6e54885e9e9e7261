"""Stream processing in Python, on Spark.

Change ``from pyspark.streaming import StreamingContext`` to ``from tidemill.streaming import
StreamingContext`` and a DStream program runs on Tidemill's engine. One line, ``tidemill.attach(spark)``, and
the streaming queries of a session (``spark.readStream``, ``df.writeStream``) do. :func:`session` makes a
Spark session that is attached, with the settings that streams want.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "attach", "detach", "register_source", "session"]

if TYPE_CHECKING:
    from tidemill.sources.registry import register_source
    from tidemill.sql.attach import attach, detach, session

# Loading PySpark takes a second: `tidemill doctor` and executors do without.
_WHERE = {
    "attach": "tidemill.sql.attach",
    "detach": "tidemill.sql.attach",
    "register_source": "tidemill.sources.registry",
    "session": "tidemill.sql.attach",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
