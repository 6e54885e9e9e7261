"""Stream processing in Python, on Spark.

Change ``from pyspark.streaming import StreamingContext`` to ``from tidemill.streaming import
StreamingContext`` and a DStream program runs on Tidemill's engine. :func:`session` makes a Spark
session with the settings that streams want.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "session"]

if TYPE_CHECKING:
    from tidemill.spark.session import session


def __getattr__(name: str) -> Any:
    # Loading PySpark takes a second: `tidemill doctor` and executors do without.
    if name == "session":
        from tidemill.spark.session import session

        return session
    raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
