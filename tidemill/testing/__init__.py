"""Helpers for tests of stream programs: a clock that the test moves, and batches that it waits for.

::

    def test_words_are_counted(spark):  # the fixture of tidemill.testing.plugin
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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.common.clock import ManualClock
    from tidemill.sources.memory_stream import MemoryStream
    from tidemill.testing.batch_driver import BatchDriver, collected

__all__ = ["BatchDriver", "ManualClock", "MemoryStream", "collected"]

# Every run of pytest loads the plugin beside this module: PySpark is loaded only for tests that use it.
_WHERE = {
    "BatchDriver": "tidemill.testing.batch_driver",
    "ManualClock": "tidemill.common.clock",
    "MemoryStream": "tidemill.sources.memory_stream",
    "collected": "tidemill.testing.batch_driver",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'tidemill.testing' has no attribute {name!r}")
