"""What the code in ``foreachBatch`` may do with its DataFrame: every row is there, once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from tests.sql.batches import stopped_at_end
from tests.sql.streams import plans
from tidemill.sql.query_errors import QueryFailedError
from tidemill.testing import MemoryStream

KEYS = 12
ROWS = [(number % KEYS, number) for number in range(60)]


@contextmanager
def numbers(keep: bool = True) -> Iterator[MemoryStream]:
    stream = MemoryStream("k int, v int", keep=keep)
    try:
        yield stream
    finally:
        stream.close()


def read(spark: SparkSession, stream: MemoryStream) -> DataFrame:
    return spark.readStream.format(stream.name).load()


def start(df: DataFrame, function: Any, checkpoint: Path, mode: str = "append") -> Any:
    writer = df.writeStream.outputMode(mode).foreachBatch(function)
    return writer.option("checkpointLocation", str(checkpoint)).start()


# -- any use of the rows -----------------------------------------------------------------------------


def written_twice(df: DataFrame, folder: Path) -> list[Any]:
    assert df.count() == KEYS
    for name in ("one", "two"):
        df.write.mode("overwrite").parquet(str(folder / name))
    one, two = (df.sparkSession.read.parquet(str(folder / name)) for name in ("one", "two"))
    assert Counter(one.collect()) == Counter(two.collect())
    return one.collect()


def cached(df: DataFrame, folder: Path) -> list[Any]:
    df.persist(StorageLevel.MEMORY_ONLY)
    some = df.take(2)
    df.unpersist(blocking=True)
    rows = df.coalesce(1).collect()
    assert set(some) <= set(rows)
    return rows


def looked_at(df: DataFrame, folder: Path) -> list[Any]:
    df.show(1)
    assert not df.isEmpty()
    assert df.first() in df.head(KEYS)
    assert len(df.limit(1).collect()) == 1
    return []


def failing_in_between(df: DataFrame, folder: Path) -> list[Any]:
    with pytest.raises(Exception, match="ZeroDivisionError"):
        df.rdd.map(lambda row: 1 // 0).count()
    return df.collect()


def as_pandas(df: DataFrame, folder: Path) -> list[Any]:
    return [Row(k=int(k), n=int(n)) for k, n in df.toPandas().itertuples(index=False)]


def through_pandas(df: DataFrame, folder: Path) -> list[Any]:
    return df.mapInPandas(lambda frames: frames, df.schema).collect()


def in_a_view(df: DataFrame, folder: Path) -> list[Any]:
    df.createOrReplaceTempView("counts")
    return df.sparkSession.sql("select * from counts").collect()


USES: dict[str, Callable[[DataFrame, Path], list[Any]]] = {
    "collected": lambda df, _: df.collect(),
    "nothing": lambda df, _: [],
    "unpersisted and put together": lambda df, _: df.unpersist().coalesce(1).collect(),
    "looked at": looked_at,
    "cached": cached,
    "repartitioned": lambda df, _: df.repartition(5).collect(),
    "put together": lambda df, _: df.coalesce(1).collect(),
    "in a union with itself": lambda df, _: df.unionAll(df).coalesce(2).distinct().collect(),
    "after other rows": lambda df, _: (
        df.sparkSession.range(3).selectExpr("int(id) k", "id n").where("k > 5").unionAll(df)
    ).collect(),
    "joined with itself": lambda df, _: df.join(df.select("k"), "k").collect(),
    "sorted": lambda df, _: df.orderBy(F.desc("n"), "k").collect(),
    "an rdd": lambda df, _: df.rdd.coalesce(1).collect(),
    "a local iterator": lambda df, _: list(df.toLocalIterator()),
    "a sample": lambda df, _: df.sample(0.5, 7).collect() and [],
    "checkpointed": lambda df, _: df.localCheckpoint().coalesce(1).collect(),
    "written twice": written_twice,
    "failing in between": failing_in_between,
    "as pandas": as_pandas,
    "through pandas": through_pandas,
    "in a view": in_a_view,
}


@pytest.mark.parametrize(
    ("parallel", "mode"), [(False, "update"), (True, "update"), (True, "complete")]
)
def test_rows_and_state_are_right_whatever_the_code_does(
    parallel: bool, mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    results: dict[int, list[Any]] = {}
    uses = list(USES.items())

    def use(df: DataFrame, batch_id: int) -> None:
        results[batch_id] = uses[batch_id][1](df, tmp_path)

    with numbers() as stream, plans(lambda batch_id: parallel):
        counts = read(spark, stream).groupBy("k").agg(F.count("*").alias("n"))
        query = start(counts, use, tmp_path / "checkpoint", mode)
        for batch_id, (name, _) in enumerate(uses):
            if batch_id == 2:  # state comes from files
                query.stop()
                query = start(counts, use, tmp_path / "checkpoint", mode)
            stream.add(ROWS)
            query.processAllAvailable()
            expected = Counter((key, 5 * (batch_id + 1)) for key in range(KEYS))
            found = Counter(map(tuple, results[batch_id]))
            assert found in (expected, Counter()), name
        with stopped_at_end(query):
            (operator,) = query.lastProgress.stateOperators
            assert operator.numRowsTotal == KEYS


@pytest.mark.parametrize("parallel", [False, True])
def test_partitions_without_rows_keep_their_state(
    parallel: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """In complete mode a batch with one key gives the rows of all of them, also in one task."""
    results: list[Any] = []

    def use(df: DataFrame, batch_id: int) -> None:
        results[:] = df.coalesce(1).collect()
        assert Counter(df.union(df).collect()) == Counter(results * 2)

    with numbers() as stream, plans(lambda batch_id: parallel):
        counts = read(spark, stream).groupBy("k").agg(F.count("*").alias("n"))
        for rows in (ROWS, [(3, 0)], [(4, 0)]):
            query = start(counts, use, tmp_path / "checkpoint", "complete")
            with stopped_at_end(query):
                stream.add(rows)
                query.processAllAvailable()
    expected = {key: 5 + (key in (3, 4)) for key in range(KEYS)}
    assert sorted(map(tuple, results)) == sorted(expected.items())


# -- later -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
def test_a_kept_dataframe_has_the_rows_of_its_batch(
    stateful: bool, parallel: bool, spark: SparkSession, tmp_path: Path
) -> None:
    kept: list[dict[str, Any]] = []

    def keep(df: DataFrame, batch_id: int) -> None:
        df.createOrReplaceTempView(f"batch_{batch_id}")
        view = df.sparkSession.table(f"batch_{batch_id}")
        kept.append({"df": df, "view": view, "rdd": df.rdd, "cached": df.select("*").cache()})

    with numbers() as stream, plans(lambda batch_id: parallel):
        df = read(spark, stream)
        if stateful:
            df = df.dropDuplicates(["v"])
        query = start(df, keep, tmp_path / "checkpoint")
        fed = [[(batch, 10 * batch + n) for n in range(4)] for batch in range(4)]
        for rows in fed:
            stream.add(rows)
            query.processAllAvailable()
        for _ in range(2):  # while the query runs, and afterwards
            for rows, frames in zip(fed, kept, strict=True):
                for name, frame in frames.items():
                    assert sorted(map(tuple, frame.collect())) == rows, name
            query.stop()


def test_a_kept_dataframe_needs_no_source_that_keeps_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The rows of a memory stream travel with the plan."""
    kept: list[DataFrame] = []
    with numbers(keep=False) as stream:
        query = start(read(spark, stream), lambda df, _: kept.append(df), tmp_path / "checkpoint")
        with stopped_at_end(query):
            for number in range(3):
                stream.add([(number, number)])
                query.processAllAvailable()
            assert [df.collect() for df in kept] == [[Row(k=n, v=n)] for n in range(3)]


# -- threads -----------------------------------------------------------------------------------------


def in_executor(functions: list[Callable[[], Any]]) -> None:
    with ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(function) for function in functions]:
            future.result()


def in_pool(functions: list[Callable[[], Any]]) -> None:
    with ThreadPool(len(functions)) as pool:
        pool.map(lambda function: function(), functions)


def in_threads(functions: list[Callable[[], Any]]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("run", [in_executor, in_pool, in_threads])
@pytest.mark.parametrize("stateful", [False, True])
def test_several_threads_write_a_batch_at_the_same_time(
    stateful: bool, run: Callable[[list[Any]], None], spark: SparkSession, tmp_path: Path
) -> None:
    def write(df: DataFrame, batch_id: int) -> None:
        paths = [str(tmp_path / f"out-{number}") for number in range(3)]
        run([lambda path=path: df.write.mode("append").parquet(path) for path in paths])

    with numbers() as stream, plans(lambda batch_id: batch_id == 1):
        df = read(spark, stream)
        if stateful:
            df = df.groupBy("k").agg(F.max("v").alias("v"))
        query = start(df, write, tmp_path / "checkpoint", "update")
        with stopped_at_end(query):
            for batch in range(2):
                stream.add([(batch, number) for number in range(10)])
                query.processAllAvailable()
    expected = [(b, n) for b in range(2) for n in ([9] if stateful else range(10))]
    for number in range(3):
        rows = spark.read.parquet(str(tmp_path / f"out-{number}")).collect()
        assert sorted(map(tuple, rows)) == expected


# -- the session -------------------------------------------------------------------------------------


def test_what_the_code_does_to_its_session_stays_there(spark: SparkSession, tmp_path: Path) -> None:
    """As in Spark: the query has a copy of the user's session, and keeps it from batch to batch."""
    seen: list[Any] = []
    spark.range(3).createOrReplaceTempView("of_the_user")

    def use(df: DataFrame, batch_id: int) -> None:
        own = df.sparkSession
        df.createOrReplaceTempView(f"rows_{batch_id}")
        own.conf.set("spark.sql.shuffle.partitions", "7")
        tables = {table.name for table in own.catalog.listTables()}
        seen.append(
            (
                sorted(table for table in tables if table.startswith("rows_")),
                own.sql("select * from of_the_user cross join rows_0").count(),
                own.streams.get(query.id) is not None,
            )
        )

    records: Any = spark.sparkContext.parallelize([(1,)])
    session_before = records.toDF(["n"]).sparkSession
    with numbers() as stream:
        before = spark.conf.get("spark.sql.shuffle.partitions")
        query = start(read(spark, stream), use, tmp_path / "checkpoint")
        with stopped_at_end(query):
            for _ in range(2):
                stream.add([(1, 1)])
                query.processAllAvailable()
            assert records.toDF(["n"]).sparkSession is session_before
        assert seen == [
            (["rows_0"], 3, True),
            (["rows_0", "rows_1"], 3, True),
        ]
        assert spark.conf.get("spark.sql.shuffle.partitions") == before
        assert not spark.catalog.tableExists("rows_0")
    spark.catalog.dropTempView("of_the_user")


def test_an_error_of_the_code_leaves_the_batch_to_the_next_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows: list[Any] = []

    def fail(df: DataFrame, batch_id: int) -> None:
        df.count()
        raise KeyError("mine")

    with numbers() as stream, plans(lambda batch_id: True):
        counts = read(spark, stream).groupBy("k").agg(F.count("*").alias("n"))
        stream.add(ROWS)
        with pytest.raises(QueryFailedError, match="mine"):
            start(counts, fail, tmp_path / "checkpoint", "update").processAllAvailable()
        query = start(
            counts, lambda df, _: rows.extend(df.collect()), tmp_path / "checkpoint", "update"
        )
        with stopped_at_end(query):
            query.processAllAvailable()
    assert sorted(map(tuple, rows)) == [(key, 5) for key in range(KEYS)]
