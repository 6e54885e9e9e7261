"""Every operation on one batch at a time, on real Spark."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import partial
from operator import add
from typing import Any

import pytest
from pyspark import SparkContext, StorageLevel
from pyspark.sql import SparkSession

from tests.manual_stream import Stream
from tidemill.common.times import to_datetime
from tidemill.errors import BatchError, OptionError, UsageError
from tidemill.streaming import DStream, StateSpec
from tidemill.streaming.dstream import TransformedDStream
from tidemill.testing import collected

Run = Callable[..., list[list[Any]]]
PAIRS = [[("a", 1), ("b", 2), ("a", 3)], [("b", 4)]]


@pytest.mark.parametrize(
    ("operation", "batches", "expected"),
    [
        (lambda s: s.map(lambda x: x * 2), [[1, 2], [3]], [[2, 4], [6]]),
        (lambda s: s.flatMap(range), [[1, 3], []], [[0, 0, 1, 2], []]),
        (lambda s: s.filter(lambda x: x % 2), [[1, 2, 3]], [[1, 3]]),
        (lambda s: s.mapPartitions(lambda it: [sum(it)]), [[1, 2, 3]], [[6]]),
        (lambda s: s.mapPartitionsWithIndex(lambda i, it: [(i, list(it))]), [[7, 8]], [[(0, [7, 8])]]),
        (lambda s: s.glom(), [[1, 2, 3]], [[[1, 2, 3]]]),
        (lambda s: s.repartition(3).glom().map(len).count(), [[1, 2, 3, 4]], [[3]]),
        (lambda s: s.count(), [[5, 5, 5], []], [[3], [0]]),
        (lambda s: s.countByValue(), [["x", "y", "x"], []], [[("x", 2), ("y", 1)], []]),
        (lambda s: s.reduce(add), [[1, 2, 3], [], [4]], [[6], [], [4]]),
        (lambda s: s.reduceByKey(add), PAIRS, [[("a", 4), ("b", 2)], [("b", 4)]]),
        (lambda s: s.reduceByKey(add, 3), PAIRS, [[("a", 4), ("b", 2)], [("b", 4)]]),
        (
            lambda s: s.combineByKey(lambda v: [v], lambda c, v: [*c, v], add),
            PAIRS,
            [[("a", [1, 3]), ("b", [2])], [("b", [4])]],
        ),
        (lambda s: s.groupByKey().mapValues(sorted), PAIRS, [[("a", [1, 3]), ("b", [2])], [("b", [4])]]),
        (lambda s: s.groupByKey(2).mapValues(sorted), PAIRS, [[("a", [1, 3]), ("b", [2])], [("b", [4])]]),
        (lambda s: s.mapValues(str), PAIRS, [[("a", "1"), ("a", "3"), ("b", "2")], [("b", "4")]]),
        (lambda s: s.flatMapValues(range), [[("a", 2), ("b", 0)]], [[("a", 0), ("a", 1)]]),
        (lambda s: s.partitionBy(2).glom().count(), PAIRS, [[2], [2]]),
        (lambda s: s.partitionBy(2, lambda k: 0).glom().map(len), [[(1, 1), (2, 2)]], [[0, 2]]),
        (lambda s: s.cache().union(s).count(), [[1, 2]], [[4]]),
        (lambda s: s.persist(StorageLevel.DISK_ONLY).map(str), [[1]], [["1"]]),
    ],
)  # fmt: skip
def test_operation(
    run_operation: Run,
    operation: Callable[[DStream[Any]], DStream[Any]],
    batches: list[list[Any]],
    expected: list[list[Any]],
) -> None:
    assert [sorted(batch) for batch in run_operation(batches, operation)] == expected


def test_transform_is_any_function_of_the_rdd(run_operation: Run) -> None:
    descending = run_operation([[1, 3, 2]], lambda s: s.transform(lambda r: r.sortBy(lambda x: -x)))
    assert descending == [[3, 2, 1]]


LEFT, RIGHT = [[("a", 1), ("b", 2)], []], [[("a", "x"), ("c", "y")], [("d", "z")]]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("join", [[("a", (1, "x"))], []]),
        ("leftOuterJoin", [[("a", (1, "x")), ("b", (2, None))], []]),
        ("rightOuterJoin", [[("a", (1, "x")), ("c", (None, "y"))], [("d", (None, "z"))]]),
        (
            "fullOuterJoin",
            [[("a", (1, "x")), ("b", (2, None)), ("c", (None, "y"))], [("d", (None, "z"))]],
        ),
        ("cogroup", [[("a", ([1], ["x"])), ("b", ([2], [])), ("c", ([], ["y"]))], [("d", ([], ["z"]))]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("partitions", [None, 2])
def test_joins(stream: Stream, method: str, partitions: int | None, expected: Any) -> None:
    left, right = stream.ssc.queueStream(LEFT), stream.ssc.queueStream(RIGHT)
    joined = getattr(left, method)(right, partitions)
    if method == "cogroup":
        joined = joined.mapValues(lambda sides: tuple(list(side) for side in sides))
    results = collected(joined)
    stream.start_and_run(2)
    assert [sorted(batch) for batch in results] == expected


def test_a_join_of_two_empty_batches_is_empty(stream: Stream) -> None:
    nothing = stream.ssc.queueStream([])
    results = collected(nothing.join(stream.ssc.queueStream([])))
    stream.start_and_run(1)
    assert results == [[]]


def test_functions_may_ask_for_the_time(stream: Stream) -> None:
    times: list[datetime] = []
    numbers = stream.ssc.queueStream([[1], [2]])
    numbers.foreachRDD(lambda time, rdd: times.append(time))
    stamped = collected(numbers.transform(lambda time, rdd: rdd.map(lambda x: (x, time))))
    with_other = collected(
        numbers.transformWith(lambda t, a, b: a.zip(b).map(lambda p: (p, t)), numbers)
    )
    stream.start_and_run(2)
    first, second = to_datetime(1000), to_datetime(2000)
    assert times == [first, second]
    assert stamped == [[(1, first)], [(2, second)]]
    assert with_other == [[((1, 1), first)], [((2, 2), second)]]


def test_functions_of_all_kinds_are_accepted(stream: Stream) -> None:
    class Sink:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def without_time(self, rdd: Any) -> None:
            self.seen.append(("method", rdd.collect()))

        def with_time(self, time: datetime, rdd: Any) -> None:
            self.seen.append((time.second, rdd.collect()))

        def __call__(self, *args: Any) -> None:
            self.seen.append(len(args))

    def tagged(tag: str, rdd: Any) -> None:
        sink.seen.append((tag, rdd.collect()))

    sink = Sink()
    numbers = stream.ssc.queueStream([[1]])
    for function in (sink.without_time, sink.with_time, sink, partial(tagged, "partial")):
        numbers.foreachRDD(function)
    stream.start_and_run(1)
    assert sink.seen == [("method", [1]), (1, [1]), 2, ("partial", [1])]


@pytest.mark.parametrize("function", [lambda: None, lambda a, b, c: None, 5])
def test_a_function_that_cannot_be_called_is_refused_at_the_call(
    stream: Stream, function: Any
) -> None:
    with pytest.raises(UsageError, match="foreachRDD needs a function"):
        stream.ssc.queueStream([[1]]).foreachRDD(function)


def test_an_argument_with_a_default_may_follow_the_time_and_the_rdd(stream: Stream) -> None:
    """As in PySpark: programs bind the variable of a loop like that."""
    seen: list[Any] = []
    numbers = stream.ssc.queueStream([[1], [2]])
    for name in ("a", "b"):

        def note(time: Any, rdd: Any, name: str = name) -> None:
            seen.append((name, rdd.collect()))

        numbers.foreachRDD(note)
    stream.start_and_run(2)
    assert seen == [("a", [1]), ("b", [1]), ("a", [2]), ("b", [2])]


def test_the_wrong_arity_of_a_function_is_the_error_that_pyspark_raises(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1]])
    with pytest.raises(AssertionError, match="transform needs a function of one RDD"):
        numbers.transform(lambda a, b, c: a)
    with pytest.raises(AssertionError, match="transformWith needs a function of 2 RDDs"):
        numbers.transformWith(lambda a: a, numbers)


def test_a_transform_that_returns_nothing_makes_a_batch_without_jobs(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1], [2]])
    odd_seconds = numbers.transform(lambda t, rdd: rdd if t.second % 2 else None)
    results = collected(odd_seconds)
    stream.start_and_run(2)
    assert results == [[1]]


def test_several_streams_at_once(stream: Stream) -> None:
    a, b, c = (stream.ssc.queueStream([[n]]) for n in (1, 2, 3))
    union = collected(stream.ssc.union(a, b, c))
    joined = collected(stream.ssc.transform([a, b], lambda rdds: rdds[0].zip(rdds[1])))
    assert stream.ssc.union(a) is a
    stream.start_and_run(1)
    assert sorted(union[0]) == [1, 2, 3]
    assert joined == [[(1, 2)]]


def test_streams_that_do_not_fit_together_are_refused(
    stream: Stream, new_stream: Callable[..., Stream]
) -> None:
    a = stream.ssc.queueStream([[1]])
    slow = a.window(2, 2)
    with pytest.raises(ValueError, match="slide duration"):
        a.union(slow)
    with pytest.raises(ValueError, match="slide duration"):
        stream.ssc.union(a, slow)
    with pytest.raises(ValueError, match="different slide durations, 1000 ms and 2000 ms"):
        a.join(slow)
    with pytest.raises(ValueError, match="different StreamingContexts"):
        a.join(new_stream().ssc.queueStream([[1]]))
    other = new_stream().ssc
    for combine in (stream.ssc.union, other.union, lambda *two: other.transform([two[0]], None)):
        with pytest.raises(ValueError, match="different StreamingContexts"):
            combine(a, other.queueStream([[2]]))
    with pytest.raises(ValueError, match="at least one DStream"):
        stream.ssc.union()
    with pytest.raises(ValueError, match="at least one DStream"):
        stream.ssc.transform([], lambda rdds: rdds[0])


def test_stop_iteration_in_a_function_is_an_error_and_loses_nothing_silently(
    stream: Stream,
) -> None:
    def stop(x: int) -> int:
        if x == 2:
            raise StopIteration
        return x

    collected(stream.ssc.queueStream([[1, 2, 3]]).map(stop))
    stream.ssc.start()
    with pytest.raises(BatchError, match="StopIteration"):
        stream.driver.run(1)


def test_queue_of_rdds_and_lists_and_a_default(sc: SparkContext, stream: Stream) -> None:
    queue = [sc.parallelize([1, 2], 2), [3], range(4, 6), sc.parallelize(["x"], 1)]
    results = collected(stream.ssc.queueStream(queue, default=[0]))
    stream.start_and_run(6)
    assert results == [[1, 2], [3], [4, 5], ["x"], [0], [0]]


def test_queue_all_at_once_with_a_default_rdd(sc: SparkContext, stream: Stream) -> None:
    numbers = stream.ssc.queueStream(
        [sc.parallelize([1]), [2, 3]], oneAtATime=False, default=sc.parallelize([9])
    )
    results = collected(numbers)
    stream.start_and_run(3)
    assert results == [[1, 2, 3], [9], [9]]


def test_an_empty_queue_is_a_stream_of_empty_batches(stream: Stream) -> None:
    results = collected(stream.ssc.queueStream([]).map(str))
    stream.start_and_run(2)
    assert results == [[], []]


def test_a_queue_that_is_used_up_gives_batches_of_no_records(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1, 2]])
    counts, lists = collected(numbers.count()), collected(numbers.glom())
    stream.start_and_run(3)
    assert counts == [[2], [0], [0]]
    assert lists == [[[1, 2]], [[]], [[]]]


def test_a_text_in_a_queue_is_a_list_of_characters(stream: Stream) -> None:
    results = collected(stream.ssc.queueStream(["ab", b"c"]))
    stream.start_and_run(2)
    assert results == [["a", "b"], [99]]


@pytest.mark.parametrize("bad", [[1], [None], [[1], 2]])
def test_a_queue_of_something_else_is_refused_at_the_call(stream: Stream, bad: list[Any]) -> None:
    what = "of the queue must be an RDD or a list of records"
    with pytest.raises(TypeError, match=what) as error:
        stream.ssc.queueStream(bad)
    assert isinstance(error.value, UsageError)


def test_spark_sql_inside_a_stream(spark: SparkSession, stream: Stream) -> None:
    """Finds the three hottest products of each category by SQL: transform ranks, foreachRDD reads."""
    clicks = stream.ssc.queueStream(
        [
            [("books", "atlas"), ("books", "atlas"), ("books", "novel"), ("toys", "kite")],
            [("toys", "ball")],
        ]
    )

    def ranked(rdd: Any) -> Any:
        if rdd.isEmpty():
            return rdd
        frame = spark.createDataFrame(rdd, "category string, product string")
        frame.createOrReplaceTempView("clicks")
        query = """
            SELECT category, product, count(*) AS clicks,
                   row_number() OVER (PARTITION BY category ORDER BY count(*) DESC) AS place
            FROM clicks GROUP BY category, product"""
        return spark.sql(query).where("place <= 3").rdd

    tables: list[list[tuple[Any, ...]]] = []

    def save(rdd: Any) -> None:
        frame = spark.createDataFrame(
            rdd, "category string, product string, clicks long, place int"
        )
        tables.append(sorted(map(tuple, frame.collect())))

    clicks.transform(ranked).foreachRDD(save)
    stream.start_and_run(2)
    assert tables == [
        [("books", "atlas", 2, 1), ("books", "novel", 1, 2), ("toys", "kite", 1, 1)],
        [("toys", "ball", 1, 1)],
    ]


def test_a_transformed_stream_knows_its_parent_and_its_function(stream: Stream) -> None:
    numbers = stream.ssc.queueStream([[1]])
    doubled = numbers.transform(lambda rdd: rdd.map(lambda x: x * 2))
    assert isinstance(doubled, TransformedDStream)
    assert doubled.prev is numbers
    assert doubled.context() is stream.ssc


def test_large_batches_are_spread_and_small_ones_are_not(sc: SparkContext, stream: Stream) -> None:
    numbers = stream.ssc.queueStream([range(100), range(100_000)])
    partitions: list[int] = []
    totals = collected(numbers.map(lambda x: (x % 10, 1)).reduceByKey(add))
    numbers.foreachRDD(lambda rdd: partitions.append(rdd.getNumPartitions()))
    stream.start_and_run(2)
    assert partitions == [1, sc.defaultParallelism]
    assert sorted(totals[0]) == [(key, 10) for key in range(10)]
    assert sorted(totals[1]) == [(key, 10_000) for key in range(10)]


def test_partitions_of_a_reduced_batch_are_iterators(run_operation: Run) -> None:
    first = run_operation(PAIRS, lambda s: s.reduceByKey(add).mapPartitions(lambda it: [next(it)]))
    assert first == [[("a", 4)], [("b", 4)]]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_numbers_of_partitions_that_make_no_sense_are_refused_at_the_call(
    stream: Stream, number: Any
) -> None:
    pairs = stream.ssc.queueStream([[("a", 1)]])
    operations: list[Callable[[], Any]] = [
        lambda: pairs.repartition(number),
        lambda: pairs.partitionBy(number),
        lambda: pairs.reduceByKey(add, number),
        lambda: pairs.groupByKey(number),
        lambda: pairs.combineByKey(str, add, add, number),
        lambda: pairs.cogroup(pairs, number),
        lambda: pairs.join(pairs, number),
        lambda: pairs.leftOuterJoin(pairs, number),
        lambda: pairs.rightOuterJoin(pairs, number),
        lambda: pairs.fullOuterJoin(pairs, number),
        lambda: pairs.countByValueAndWindow(1, 1, number),
        lambda: pairs.groupByKeyAndWindow(1, 1, number),
        lambda: pairs.reduceByKeyAndWindow(add, None, 1, 1, number),
        lambda: pairs.updateStateByKey(lambda new, old: old, number),
        lambda: StateSpec.function(lambda k, v, s: v).numPartitions(number),
    ]
    for operation in operations:
        with pytest.raises(OptionError, match="numPartitions must be at least 1") as caught:
            operation()
        assert caught.value.option == "numPartitions"


def test_every_operation_with_a_number_of_partitions_is_refused_above() -> None:
    source = inspect.getsource(
        test_numbers_of_partitions_that_make_no_sense_are_refused_at_the_call
    )
    takers = [
        name
        for name, method in inspect.getmembers(DStream, inspect.isfunction)
        if not name.startswith("_") and "numPartitions" in inspect.signature(method).parameters
    ]
    assert len(takers) == 14
    assert [name for name in takers if f".{name}(" not in source] == []
