"""The process from which Spark forks Python workers in tests: one that has loaded what most tasks use.

The tests start about a thousand workers. Each one would load pyarrow, pandas and our tasks again, and
read the directory of pyspark.zip eighteen times (``importlib.invalidate_caches``): half a second of CPU
time. Programs that tests start as processes of their own have Spark's daemon, as users have it.
"""

from __future__ import annotations

import sys

# The same modules are installed as files. This comes before anything that is imported from the archives.
sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
sys.path_importer_cache.clear()

import numpy  # noqa: E402, F401
import pandas  # noqa: E402, F401
import pyarrow.compute  # noqa: E402
import pyarrow.parquet  # noqa: E402, F401
import pyspark.sql.pandas.serializers  # noqa: E402
import pyspark.worker  # noqa: E402, F401
from pyspark import daemon  # noqa: E402

import tidemill.tasks.worker  # noqa: E402, F401

if __name__ == "__main__":
    daemon.manager()
