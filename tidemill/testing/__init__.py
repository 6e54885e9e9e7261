"""For tests of stream programs: time that a test moves, and batches that it waits for.

>>> from tidemill.testing import BatchDriver, ManualClock, collected
>>> clock = ManualClock()
>>> ssc = StreamingContext(sc, 1, clock=clock)  # doctest: +SKIP
>>> counts = collected(ssc.queueStream([["a", "b", "a"], ["b"]]).countByValue())  # doctest: +SKIP
>>> ssc.start()  # doctest: +SKIP
>>> BatchDriver(ssc, clock).run(2)  # doctest: +SKIP
>>> counts  # doctest: +SKIP
[[('a', 2), ('b', 1)], [('b', 1)]]
"""

from tidemill.common.clock import ManualClock
from tidemill.testing.batch_driver import BatchDriver, collected

__all__ = ["BatchDriver", "ManualClock", "collected"]
