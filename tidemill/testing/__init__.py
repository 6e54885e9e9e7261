"""Helpers for tests of stream programs: a clock that the test moves, and batches that it waits for.

::

    clock = ManualClock()
    ssc = StreamingContext(spark.sparkContext, 1, clock=clock)
    counts = collected(ssc.queueStream([["a", "b", "a"], ["b"]]).countByValue())
    ssc.start()
    BatchDriver(ssc, clock).run(2)
    assert counts == [[("a", 2), ("b", 1)], [("b", 1)]]

A query reads a :class:`MemoryStream` that the test fills::

    words = MemoryStream("word string", keep=True)
    counts = spark.readStream.format(words.name).load().groupBy("word").count()
    query = counts.writeStream.format("memory").queryName("counts").outputMode("complete").start()
    words.add([("a",), ("b",), ("a",)])
    query.processAllAvailable()
    assert query.verify()
"""

from tidemill.common.clock import ManualClock
from tidemill.sources.memory_stream import MemoryStream
from tidemill.testing.batch_driver import BatchDriver, collected

__all__ = ["BatchDriver", "ManualClock", "MemoryStream", "collected"]
