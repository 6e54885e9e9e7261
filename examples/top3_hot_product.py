"""Find the three most clicked products of each category in the last minute, with Spark SQL on each window."""

from __future__ import annotations

from typing import Any

from pyspark import RDD

import tidemill
from tidemill.streaming import StreamingContext

CLICKS = [
    ["ann atlas books", "kim atlas books", "tom novel books", "tom kite toys"],
    ["ann diary books", "kim comic books", "ann kite toys", "ann comic books"],
]
TOP_3 = """
    SELECT category, product, clicks FROM (
        SELECT *, row_number() OVER (PARTITION BY category ORDER BY clicks DESC, product) AS place
        FROM clicked
    ) WHERE place <= 3 ORDER BY category, place
"""


def main() -> None:
    spark = tidemill.session("top 3", master="local[2]", quiet=True)
    ssc = StreamingContext(spark.sparkContext, 1)

    def show_top_3(rdd: RDD[Any]) -> None:
        if rdd.isEmpty():
            return
        frame = spark.createDataFrame(rdd, "category string, product string, clicks long")
        frame.createOrReplaceTempView("clicked")
        spark.sql(TOP_3).show()

    clicks = ssc.queueStream(CLICKS).map(str.split)
    by_product = clicks.map(lambda click: ((click[2], click[1]), 1)).reduceByKeyAndWindow(
        lambda a, b: a + b, lambda a, b: a - b, 60, 1
    )
    by_product.map(lambda pair: (*pair[0], pair[1])).foreachRDD(show_top_3)
    ssc.start()
    ssc.awaitTermination(len(CLICKS) + 0.5)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()
