"""An RDD whose partitions say where they want to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark import RDD
from pyspark.serializers import NoOpSerializer

from tidemill.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark import SparkContext


def located_rdd(
    spark_context: SparkContext, items: Sequence[tuple[bytes, Sequence[str]]]
) -> RDD[bytes]:
    """Return an RDD with one partition for each item, at the locations that the item prefers.

    A location is a host, or ``executor_<host>_<id>``. PySpark's ``parallelize`` takes no locations;
    ``SparkContext.makeRDD`` of the JVM does.
    """
    jvm = java_names(spark_context)
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    pairs = [jvm.scala.Tuple2(bytearray(item), to_seq(list(where))) for item, where in items]
    of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    scala_rdd = spark_context._jsc.sc().makeRDD(to_seq(pairs), of_bytes)
    return RDD(scala_rdd.toJavaRDD(), spark_context, NoOpSerializer())
