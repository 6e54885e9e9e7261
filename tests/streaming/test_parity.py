"""The same program on ``pyspark.streaming`` and on Tidemill gives the same results, batch by batch."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from operator import add, sub
from typing import Any

import pytest
from pyspark import SparkContext

from tidemill.streaming import StreamingContext
from tidemill.streaming.program.graph_pickle import pickle_graph

LINES = [["a b a", "c"], ["b"], ["c c d", "a"], ["x y z"], ["a a a a"]]
BATCHES = len(LINES)

# Pairs whose incremental window drops to zero are left out: pyspark.streaming keeps them as (key, 0)
# for ever, while here a key without values in the window is gone.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda lines, pairs: lines.map(len),
    "flatMap": lambda lines, pairs: lines.flatMap(lambda line: line.split()),
    "filter": lambda lines, pairs: lines.filter(lambda line: "a" in line),
    "mapPartitions": lambda lines, pairs: lines.mapPartitions(lambda it: [w for x in it for w in x]),
    "count": lambda lines, pairs: lines.count(),
    "countByValue": lambda lines, pairs: lines.flatMap(lambda x: x.split()).countByValue(),
    "reduce": lambda lines, pairs: lines.map(len).reduce(add),
    "reduceByKey": lambda lines, pairs: pairs.reduceByKey(add),
    "reduceByKey 3": lambda lines, pairs: pairs.reduceByKey(add, 3),
    "combineByKey": lambda lines, pairs: pairs.combineByKey(str, lambda c, v: f"{c}{v}", add),
    "groupByKey": lambda lines, pairs: pairs.groupByKey().mapValues(sorted),
    "mapValues": lambda lines, pairs: pairs.mapValues(lambda v: v + 1),
    "flatMapValues": lambda lines, pairs: pairs.flatMapValues(lambda v: [v, -v]),
    "union": lambda lines, pairs: lines.union(lines.map(str.upper)),
    "join": lambda lines, pairs: pairs.join(pairs.reduceByKey(add)),
    "leftOuterJoin": lambda lines, pairs: pairs.leftOuterJoin(pairs.filter(lambda p: p[0] > "b")),
    "rightOuterJoin": lambda lines, pairs: pairs.filter(lambda p: p[0] > "b").rightOuterJoin(pairs),
    "fullOuterJoin": lambda lines, pairs: pairs.fullOuterJoin(pairs.map(lambda p: (p[0] * 2, 1))),
    "cogroup": lambda lines, pairs: pairs.cogroup(pairs).mapValues(lambda s: [sorted(x) for x in s]),
    "transform": lambda lines, pairs: lines.transform(lambda rdd: rdd.distinct()),
    "transformWith": lambda lines, pairs: pairs.transformWith(lambda a, b: a.subtract(b), pairs),
    "window": lambda lines, pairs: lines.window(1.5, 1),
    "reduceByKeyAndWindow": lambda lines, pairs: pairs.reduceByKeyAndWindow(add, None, 1.5, 0.5),
    "reduceByKeyAndWindow, inverse": lambda lines, pairs: pairs.reduceByKeyAndWindow(
        add, sub, 1.5, 0.5
    ).filter(lambda pair: pair[1] != 0),
    "reduceByWindow": lambda lines, pairs: lines.map(len).reduceByWindow(add, sub, 1, 0.5),
    "countByWindow": lambda lines, pairs: lines.countByWindow(1, 0.5),
    "countByValueAndWindow": lambda lines, pairs: lines.countByValueAndWindow(1, 0.5),
    "groupByKeyAndWindow": lambda lines, pairs: pairs.groupByKeyAndWindow(1.5, 1)
    .mapValues(sorted)
    .filter(lambda pair: pair[1]),
}  # fmt: skip


def results_of(engine: str, sc: SparkContext, checkpoints: str) -> dict[str, list[list[Any]]]:
    streaming = importlib.import_module(engine)
    ssc = streaming.StreamingContext(sc, 0.5)
    sc.setCheckpointDir(checkpoints)  # pyspark.streaming needs it for inverse functions
    lines = ssc.queueStream(LINES)
    pairs = lines.flatMap(lambda line: line.split()).map(lambda word: (word, 1))
    results: dict[str, list[list[Any]]] = {name: [] for name in OPERATIONS}
    enough = threading.Event()

    def collect_into(batches: list[list[Any]]) -> Callable[[Any], None]:
        def collect(rdd: Any) -> None:
            batches.append(sorted(rdd.collect()))
            if (
                all(len(of_one) >= BATCHES // 2 for of_one in results.values())
                and len(results["map"]) >= BATCHES
            ):
                enough.set()

        return collect

    for name, operation in OPERATIONS.items():
        operation(lines, pairs).foreachRDD(collect_into(results[name]))
    ssc.start()
    assert enough.wait(180), f"{engine} was too slow"
    ssc.stop(stopSparkContext=False, stopGraceFully=False)
    return {name: batches[:BATCHES] for name, batches in results.items()}


@pytest.fixture(scope="module")
def both(
    sc: SparkContext, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, list[list[Any]]], dict[str, list[list[Any]]]]:
    directory = str(tmp_path_factory.mktemp("checkpoints"))
    with pytest.warns(FutureWarning, match="DStream is deprecated"):
        theirs = results_of("pyspark.streaming", sc, directory)
    return theirs, results_of("tidemill.streaming", sc, directory)


@pytest.mark.only_in("test-long")  # tests/streaming/comparison has most of them, in other programs
@pytest.mark.parametrize("name", OPERATIONS)
def test_same_results(both: tuple[Any, Any], name: str) -> None:
    theirs, ours = both
    batches = min(len(theirs[name]), len(ours[name]))
    assert batches >= 2
    assert ours[name][:batches] == theirs[name][:batches]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_can_be_written_into_the_checkpoint(sc: SparkContext, name: str) -> None:
    """None of our own functions holds what cannot be, such as the Spark context."""
    ssc = StreamingContext(sc, 0.5)
    lines = ssc.queueStream([["a b"]])
    operated = OPERATIONS[name](lines, lines.map(lambda line: (line, 1)))
    operated.pprint()
    operated.saveAsTextFiles("never written")
    ssc.union(operated, operated).foreachRDD(lambda rdd: None)
    assert pickle_graph(ssc._graph).data
