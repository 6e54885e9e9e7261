"""The Python data sources that a program has registered with Spark (``spark.dataSource.register``)."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from tidemill.errors import UnsupportedError
from tidemill.spark.java_names import java_names


def python_data_source(spark: SparkSession, name: str) -> type[DataSource] | None:
    """Return the class that is registered under a name, in any case, or None.

    Spark keeps the class as the program pickled it.
    """
    jsession: Any = spark._jsparkSession
    jvm = java_names(spark.sparkContext)
    manager = jsession.sessionState().dataSourceManager()
    if not manager.dataSourceExists(name):
        return None
    function = manager.lookupDataSource(name).dataSourceCls()
    if function.broadcastVars().size():
        raise UnsupportedError(
            f"the Python data source {name!r} takes more than a megabyte of data along with its class: "
            "load the data inside its reader, or define the class in a module that executors have"
        )
    byte = jvm.scala.reflect.ClassTag.Byte()
    # This process itself has given these bytes to the JVM.
    found: type[DataSource] = cloudpickle.loads(bytes(function.command().toArray(byte)))
    return found
