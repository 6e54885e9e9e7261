"""Calls of every public method of ``pyspark.streaming``: with good and with wrong arguments, in every state.

``ssc`` is a context of one second on a clock that stands still, ``s`` a stream of numbers, ``p`` one of
pairs. ``f`` is a function of anything, ``f1`` one of an RDD, ``tmp`` a directory.

A call has to return the same on both engines, or to be refused by both. Where they differ on purpose, the
table says why; an entry that is no longer different fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

DEFINED, STARTED, STOPPED, NEVER_STARTED = "defined", "started", "stopped", "never started"

EARLIER = "Spark takes it and fails in every batch; Tidemill refuses it when it is said"
MORE = "Spark trips over it; here it works"
NO_CHANGE = "Spark takes a directory for a running stream; what it makes of it depends on the batch"
IS_STOPPED = (
    "Spark waits for a context that was stopped before it started; here it counts as stopped"
)


@dataclass(frozen=True)
class Call:
    text: str
    state: str = DEFINED
    different: str = ""
    """Why the engines differ, if they do."""

    def __str__(self) -> str:
        return f"{self.state}: {self.text}"


CONTEXT = {
    DEFINED: (
        "isinstance(ssc, sparks.StreamingContext)",
        "isinstance(s, sparks.DStream)",
        "isinstance(s.transform(f1), sparks.DStream)",
        "isinstance(StreamingListener(), sparks.StreamingListener)",
        "StreamingContext(sc, 1)",
        "StreamingContext(sc, 0.5)",
        "StreamingContext()",
        "StreamingContext(sc)",
        "StreamingContext(None, 1)",
        "StreamingContext(sc, '1')",
        "StreamingContext(sc, float('nan'))",
        "StreamingContext(sc, float('inf'))",
        "StreamingContext.getActive()",
        "StreamingContext.getActiveOrCreate(None, 5)",
        "StreamingContext.getActiveOrCreate(None, lambda: 5)",
        "StreamingContext.getActiveOrCreate(tmp, lambda: ssc) is ssc",
        "StreamingContext.getOrCreate(None, lambda: ssc)",
        "StreamingContext.getOrCreate('', lambda: ssc)",
        "StreamingContext.getOrCreate(5, lambda: ssc)",
        "StreamingContext.getOrCreate(tmp, lambda: ssc) is ssc",
        "StreamingContext.getOrCreate(tmp + '/not/there', lambda: ssc) is ssc",
        "StreamingContext.getOrCreate(tmp, lambda: 5)",
        "StreamingContext.getOrCreate(tmp, lambda: None)",
        "StreamingContext.getOrCreate(tmp, 5)",
        "StreamingContext.getOrCreate(tmp)",
        "ssc.sparkContext is sc",
        "ssc.start()",
        "StreamingContext(sc, 1).start()",
        "ssc.awaitTermination(0.01)",
        "ssc.awaitTerminationOrTimeout(0.01)",
        "ssc.stop(False)",
        "ssc.remember(5)",
        "ssc.remember(0.5)",
        "ssc.remember(None)",
        "ssc.remember('a')",
        "(ssc.remember(5), ssc.remember(6))",
        "ssc.checkpoint(tmp)",
        "ssc.checkpoint(None)",
        "ssc.checkpoint('')",
        "ssc.checkpoint(5)",
        "ssc.addStreamingListener(StreamingListener())",
        "ssc.addStreamingListener(5)",
        "ssc.addStreamingListener(object())",
        "ssc.transform([s], lambda rdds: rdds[0])",
        "ssc.transform((s, p), lambda rdds: rdds[0])",
        "ssc.transform([s], None)",
        "ssc.transform([], f)",
        "ssc.transform(None, f)",
        "ssc.transform(s, f)",
        "ssc.transform([5], f)",
        "ssc.transform([s, s.window(2, 2)], f)",
        "ssc.union()",
        "ssc.union(s) is s",
        "ssc.union(s, s)",
        "ssc.union(s, 5)",
        "ssc.union([s, s])",
        "ssc.union(s, s.window(2, 2))",
    ),
    STARTED: (
        "StreamingContext.getActive() is ssc",
        "StreamingContext.getActiveOrCreate(None, lambda: 5) is ssc",
        "StreamingContext.getActiveOrCreate(tmp, lambda: 5) is ssc",
        "ssc.start()",
        "ssc.awaitTermination(0.01)",
        "ssc.awaitTermination('a')",
        "ssc.awaitTerminationOrTimeout(0)",
        "ssc.awaitTerminationOrTimeout(0.01)",
        "ssc.awaitTerminationOrTimeout(None)",
        "ssc.awaitTerminationOrTimeout('a')",
        "ssc.stop(False)",
        "ssc.stop(stopSparkContext=False, stopGraceFully=False)",
        "ssc.remember(5)",
        "ssc.addStreamingListener(StreamingListener())",
        "StreamingContext(sc, 1)",
        "another().start()",
        "ssc.transform([s], f)",
        "ssc.union(s, s)",
    ),
    STOPPED: (
        "StreamingContext.getActive()",
        "StreamingContext.getActiveOrCreate(None, lambda: 5)",
        "ssc.sparkContext is sc",
        "ssc.start()",
        "ssc.awaitTermination()",
        "ssc.awaitTermination(-1)",
        "ssc.awaitTerminationOrTimeout(5)",
        "ssc.awaitTerminationOrTimeout(-1)",
        "ssc.stop(False)",
        "ssc.stop(False, True)",
        "ssc.remember(5)",
        "ssc.addStreamingListener(StreamingListener())",
        "ssc.union(s, s)",
    ),
    NEVER_STARTED: ("ssc.start()", "ssc.stop(False)"),
}

INPUTS = {
    DEFINED: (
        "ssc.socketTextStream('localhost', 9)",
        "ssc.socketTextStream('localhost', 9, StorageLevel.MEMORY_ONLY)",
        "ssc.socketTextStream('localhost', '9')",
        "ssc.socketTextStream(5, 9)",
        "ssc.socketTextStream('localhost', None)",
        "ssc.socketTextStream('localhost', 9.5)",
        "ssc.socketTextStream('localhost', 9, None)",
        "ssc.socketTextStream('localhost', 9, 'x')",
        "ssc.socketTextStream('localhost')",
        "ssc.textFileStream(tmp)",
        "ssc.textFileStream(tmp + '/not there')",
        "ssc.textFileStream(5)",
        "ssc.binaryRecordsStream(tmp, 5)",
        "ssc.binaryRecordsStream(tmp, None)",
        "ssc.binaryRecordsStream(tmp, 1.5)",
        "ssc.binaryRecordsStream(tmp, '1')",
        "ssc.queueStream(None)",
        "ssc.queueStream(5)",
        "ssc.queueStream([1])",
        "ssc.queueStream([None])",
        "ssc.queueStream([[1], 5])",
        "ssc.queueStream({1: 2})",
        "ssc.queueStream([[]])",
        "ssc.queueStream('ab')",
        "ssc.queueStream(['ab'])",
        "ssc.queueStream([(1, 2), {3: 4}, range(2)])",
        "ssc.queueStream(([1], [2]))",
        "ssc.queueStream([[1]], oneAtATime=False)",
        "ssc.queueStream([[1]], 'no')",
        "ssc.queueStream([[1]], None)",
        "ssc.queueStream([], default=[1])",
        "ssc.queueStream([[1]], default=[2])",
        "ssc.queueStream([[1]], default=[])",
        "ssc.queueStream([[1]], default=sc.parallelize([2]))",
        "ssc.queueStream([[1]], default=5)",
    ),
    STARTED: (
        "ssc.socketTextStream('localhost', 9)",
        "ssc.textFileStream(tmp)",
        "ssc.binaryRecordsStream(tmp, 1)",
        "ssc.queueStream([[1]])",
    ),
    STOPPED: ("ssc.socketTextStream('localhost', 9)", "ssc.textFileStream(tmp)"),
}

STREAMS = {
    DEFINED: (
        "s.context() is ssc",
        "s.is_cached",
        "s.is_checkpointed",
        "s._slideDuration",
        "s.window(2, 2)._slideDuration",
        "type(s.transform(f1)).__name__",
        *(f"s.{each}(None)" for each in ("map", "flatMap", "filter", "mapPartitions")),
        "s.mapPartitionsWithIndex(None)",
        "s.map(f, True)",
        "s.map()",
        "s.map(f, True, 1)",
        "s.reduce(None)",
        "s.count()",
        "s.countByValue()",
        "s.glom()",
        "s.repartition(3)",
        "s.repartition()",
        "p.mapValues(None)",
        "p.flatMapValues(None)",
        "p.reduceByKey(None)",
        "p.reduceByKey(add, 2)",
        "p.combineByKey(None, None, None)",
        "p.partitionBy(None)",
        "p.partitionBy(2, None)",
        "p.groupByKey()",
        "s.foreachRDD(f1)",
        "s.foreachRDD(None)",
        "s.foreachRDD(5)",
        "s.foreachRDD(lambda a, b: None)",
        "s.foreachRDD(lambda a, b=1: None)",
        "s.pprint()",
        "s.pprint(0)",
        "s.pprint(None)",
        "s.cache() is s",
        "s.cache().is_cached",
        "s.persist()",
        "s.persist(StorageLevel.MEMORY_ONLY) is s",
        "s.persist(None)",
        "s.persist('x')",
        "(s.persist(StorageLevel.MEMORY_ONLY), s.persist(StorageLevel.DISK_ONLY))[0] is s",
        "s.checkpoint(2) is s",
        "s.checkpoint(2).is_checkpointed",
        "s.checkpoint(1.5).is_checkpointed",
        "s.checkpoint(None)",
        "s.checkpoint('x')",
        "(sc.setCheckpointDir(None), s.checkpoint(2), s.pprint(), ssc.start())",
        "(sc.setCheckpointDir(tmp), s.checkpoint(2), s.pprint(), ssc.start())",
        "(sc.setCheckpointDir(tmp), s.checkpoint(1.5), s.pprint(), ssc.start())",
        "(sc.setCheckpointDir(tmp), s.checkpoint(0.5), s.pprint(), ssc.start())",
        "s.saveAsTextFiles(tmp + '/x')",
        "s.saveAsTextFiles()",
        "s.transform(lambda rdd: rdd)",
        "s.transform(lambda time, rdd: rdd)",
        "s.transform(lambda a, b, c: a)",
        "s.transform(lambda: None)",
        "s.transform(None)",
        "s.transform(5)",
        "s.transformWith(lambda a, b: a, s)",
        "s.transformWith(lambda a, b: a, s, True)",
        "s.transformWith(lambda a: a, s)",
        "s.transformWith(lambda a, b, c, d: a, s)",
        "s.transformWith(lambda a, b: a, None)",
        "s.transformWith(lambda a, b: a, 5)",
        "s.transformWith(None, s)",
        "s.union(s)",
        "s.union(None)",
        "s.union(5)",
        "s.union(s.window(2, 2))",
        *(
            f"p.{each}({argument})"
            for each in ("cogroup", "join", "leftOuterJoin", "rightOuterJoin", "fullOuterJoin")
            for argument in ("p, 2", "None", "5")
        ),
        "s.slice(0, 1)",
    ),
    STARTED: (
        "s.slice(0, 1)",
        "s.slice(5, 1)",
        "s.slice(None, 1)",
        "s.slice('x', 1)",
        "s.foreachRDD(f1)",
        "s.pprint()",
        "s.saveAsTextFiles(tmp)",
        "s.persist(StorageLevel.MEMORY_ONLY)",
        "s.cache()",
        "s.checkpoint(2)",
        "s.window(2)",
        "s.transformWith(lambda a, b: a, s)",
        "s.union(s)",
        "p.join(p)",
        "p.reduceByKeyAndWindow(add, sub, 2)",
        "p.updateStateByKey(f)",
        *("s.map(f)", "s.filter(f)", "s.glom()", "s.count()", "s.transform(f1)", "p.groupByKey()"),
    ),
    STOPPED: (
        "s.map(f)",
        "s.foreachRDD(f1)",
        "s.cache()",
        "s.checkpoint(2)",
        "s.window(2)",
        "s.slice(0, 1)",
    ),
}

WINDOWS = {
    DEFINED: (
        "s.window(2)",
        "s.window(2, None)",
        "s.window(1, 3)",
        "s.window(1.5)",
        "s.window(2, 1.5)",
        "s.window(2, 2).window(3, 2)",
        "s.window(None)",
        "s.window('2')",
        "s.window(2, '1')",
        "s.reduceByWindow(max, None, 2, 1)",
        "s.reduceByWindow(add, sub, 2, 1)",
        "s.reduceByWindow(None, None, 2, 1)",
        "s.reduceByWindow(max, None, 2, 0.5)",
        "s.reduceByWindow(max, None, None, 1)",
        "s.countByWindow(2, 1)",
        "s.countByWindow(2)",
        "s.countByWindow(1.5, 1)",
        "s.countByValueAndWindow(2, 1)",
        "s.countByValueAndWindow(0.5, 1)",
        "p.groupByKeyAndWindow(2, 1)",
        "p.groupByKeyAndWindow(3, 1.5)",
        "p.reduceByKeyAndWindow(add, None, 2)",
        "p.reduceByKeyAndWindow(None, None, 2, 1)",
        "p.reduceByKeyAndWindow(None, None, 0.1, 0.1)",
        "p.reduceByKeyAndWindow(max, None, 1.5, 1)",
        "p.updateStateByKey(f)",
        "p.updateStateByKey(f, 2, [])",
        "p.updateStateByKey(f, 2, [(1, 2)])",
        "p.updateStateByKey(f, 2, sc.parallelize([(1, 2)]))",
        "p.updateStateByKey(f, 2, 5)",
        "p.updateStateByKey()",
        "(sc.setCheckpointDir(tmp), p.updateStateByKey(f).pprint(), ssc.start())",
        "(sc.setCheckpointDir(None), p.updateStateByKey(f).pprint(), ssc.start())",
    ),
}

DIFFERENT: dict[str, dict[str, tuple[str, ...]]] = {}
DIFFERENT[DEFINED] = {
    EARLIER: (
        *(f"StreamingContext(sc, {each})" for each in (0, -1, 0.0001, True)),
        *(f"ssc.remember({each})" for each in (0, -1)),
        *(f"ssc.socketTextStream('localhost', {port})" for port in (-1, 70_000)),
        *(f"ssc.socketTextStream({host!r}, 9)" for host in (None, "")),
        *(f"ssc.textFileStream({each!r})" for each in (None, "", "nosuchscheme://x/y")),
        *(f"ssc.binaryRecordsStream(tmp, {each})" for each in (0, -1)),
        "ssc.binaryRecordsStream(None, 1)",
        "ssc.addStreamingListener(None)",
        *(f"p.reduceByKey(add, {each!r})" for each in (0, -1, 1.5, "2", True)),
        "p.combineByKey(str, add, add, -1)",
        *(f"p.partitionBy({each})" for each in (0, -2)),
        "p.groupByKey(0)",
        "p.cogroup(p, 0)",
        "p.join(p, -1)",
        *(f"s.repartition({each!r})" for each in (0, -1, None, "x", 1.5)),
        *(f"s.checkpoint({each})" for each in (0, -1)),
        "s.foreachRDD(lambda: None)",
        "s.foreachRDD(lambda a, b, c: None)",
        "s.transformWith(lambda a, b: a, s.window(2, 2))",
        "p.join(p.window(2, 2))",
        *(f"s.window({each})" for each in (0, -1, "-1, 1", "2, 0", "2, -1", 0.0005)),
        *(f"s.countByWindow({each})" for each in ("0, 1", "-2, 1", "2, -1")),
        "s.countByValueAndWindow(2, 1, 0)",
        "p.groupByKeyAndWindow(3, 1, -1)",
        "p.reduceByKeyAndWindow(add, sub, 0, 1)",
        *(f"p.updateStateByKey({each})" for each in ("None", "5", "f, 0", "f, -1", "f, 'x'")),
    ),
    MORE: (
        "ssc.queueStream([])",
        "ssc.queueStream(iter([[1], [2]]))",
        "ssc.queueStream([sc.parallelize([1]), [2]])",
        "ssc.queueStream([[1], sc.parallelize([1])])",
        "ssc.union(s, p)",
        "s.foreachRDD(print)",
        "s.transform(lambda *rdds: rdds[-1])",
        "s.transform(functools.partial(f1))",
    ),
}  # fmt: skip

DIFFERENT[STARTED] = {
    NO_CHANGE: (
        "ssc.checkpoint(tmp)",
        "ssc.checkpoint(None)",
        "StreamingContext.getOrCreate(tmp, lambda: ssc)",
    ),
}
DIFFERENT[NEVER_STARTED] = {IS_STOPPED: ("ssc.awaitTerminationOrTimeout(0.01)",)}


def _calls() -> Iterator[Call]:
    for table in (CONTEXT, INPUTS, STREAMS, WINDOWS):
        for state, texts in table.items():
            yield from (Call(text, state) for text in texts)
    for state, reasons in DIFFERENT.items():
        for why, texts in reasons.items():
            yield from (Call(text, state, why) for text in texts)


CALLS = tuple(_calls())
