"""For tests of stream programs: time that a test moves, and batches that it waits for.

::

    clock = ManualClock()
    ssc = StreamingContext(spark.sparkContext, 1, clock=clock)
    counts = collected(ssc.queueStream([["a", "b", "a"], ["b"]]).countByValue())
    ssc.start()
    BatchDriver(ssc, clock).run(2)
    assert counts == [[("a", 2), ("b", 1)], [("b", 1)]]
"""

from tidemill.common.clock import ManualClock
from tidemill.testing.batch_driver import BatchDriver, collected

__all__ = ["BatchDriver", "ManualClock", "collected"]
