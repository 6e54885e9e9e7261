"""Calls that ``pyspark.streaming`` refuses, or takes although they look wrong.

``s`` is a stream of numbers, ``p`` one of pairs, both with a slide of one second.
"""

from __future__ import annotations

CALLS = (
    "s.transform(lambda a, b, c: a)",
    "s.transform(lambda: None)",
    "s.transformWith(lambda a: a, s)",
    "s.transformWith(lambda a, b, c, d: a, s)",
    "ssc.queueStream([1])",
    "ssc.queueStream([None])",
    "ssc.queueStream(['ab'])",
    "ssc.queueStream('ab')",
    "ssc.queueStream([(1, 2), {3: 4}, range(2)])",
    "ssc.union()",
    "ssc.union(s)",
    "ssc.union(s, s.window(2, 2))",
    "s.union(s.window(2, 2))",
    "s.window(1.5)",
    "s.window(2, 1.5)",
    "s.window(2, 2).window(3, 2)",
    "s.window(1, 3)",
    "s.countByWindow(1.5, 1)",
    "s.reduceByWindow(max, None, 2, 0.5)",
    "s.countByValueAndWindow(0.5, 1)",
    "p.groupByKeyAndWindow(3, 1.5)",
    "p.reduceByKeyAndWindow(max, None, 1.5, 1)",
    "StreamingContext.getActiveOrCreate(None, 5)",
    "ssc.start()",
    "StreamingContext(sc, 1).start()",
)
