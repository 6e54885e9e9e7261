"""The steps in the tasks of a real Spark: local properties reach the tasks, and reports reach the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tests.tasks.number_source import Numbers
from tidemill.checkpoint.local_storage import LocalStorage
from tidemill.state.operators import StateOperators
from tidemill.state.partition_state import OperatorState
from tidemill.state.reports import ReportsParam, take_state_reports
from tidemill.tasks.aggregate_steps import AggregateRestoreStep, AggregateSaveStep
from tidemill.tasks.batch_context import BatchContext, batch_property, splits_property
from tidemill.tasks.deduplicate_step import DeduplicateStep
from tidemill.tasks.event_time import EventTimeColumn
from tidemill.tasks.fetch_step import FetchStep, rows_accumulator, take_rows

RUN = "run-7"
PARTITIONS = 2
MINUTE_US = 60_000_000


class World:
    """A query made by hand: the same functions for every batch, which learn of it by local properties."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.sc: SparkContext = spark.sparkContext
        self.reports: Any = self.sc.accumulator({}, ReportsParam())
        self.rows: Any = rows_accumulator(self.sc)
        self.operators = StateOperators(LocalStorage(str(folder)), "query", {"op": True}, {-1: {}})
        self.batch_id = 0

    @property
    def state(self) -> OperatorState:
        return self.operators.state_of("op")

    def run(self, query: DataFrame, tasks: int = PARTITIONS, **fields: Any) -> list[Any]:
        context = BatchContext(
            self.batch_id,
            0,
            base={"op": self.operators.base("op", self.batch_id, PARTITIONS)},
            splits={"numbers": [[(self.batch_id, task)] for task in range(tasks)]},
            **fields,
        )
        context.publish(self.sc, RUN)
        # select("*") plans anew: Spark would not run stages again whose output it has.
        return sorted(map(tuple, query.select("*").collect()), key=repr)

    def commit(self) -> Any:
        reports = take_state_reports(self.reports.value, "op", self.batch_id, PARTITIONS)
        self.operators.written("op", self.batch_id, reports)
        self.operators.committed(self.batch_id)
        self.batch_id += 1
        return reports


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    made = World(spark, tmp_path)
    # A state partition is a task: Spark must not put several into one.
    adaptive = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield made
    spark.conf.set("spark.sql.adaptive.enabled", str(adaptive))
    for name in (batch_property(RUN), splits_property(RUN)):
        made.sc.setLocalProperty(name, None)  # type: ignore[arg-type]


class Minutes(Numbers):
    """Gives ten rows ``(k, t)`` in each split: two keys, one window for each batch."""

    def __init__(self) -> None:
        super().__init__("k string, t timestamp", {})

    def split_reader(self) -> Any:
        def read(split: Any) -> Iterator[pa.RecordBatch]:
            batch_id, _ = split
            times = pa.array([batch_id * MINUTE_US + 1] * 10, pa.timestamp("us", "UTC"))
            yield pa.record_batch({"k": pa.array(["a", "b"] * 5), "t": times})

        return read


def stream(world: World, tasks: int = PARTITIONS) -> DataFrame:
    fetch = FetchStep(RUN, "numbers", Minutes(), world.rows)
    return world.spark.range(0, tasks, 1, tasks).mapInArrow(fetch, "k string, t timestamp")


def place_of(*keys: str) -> Column:
    """Return the state partition of a row, which an exchange by these keys sends it to."""
    return F.pmod(F.hash(*keys), F.lit(PARTITIONS)).cast("int").alias("p")


def counted(world: World, mode: str, single: bool) -> DataFrame:
    """Return a plan like the compiler's, with Spark's own functions around the steps."""
    tasks = 1 if single else PARTITIONS
    keyed = (
        stream(world, tasks)
        .select(F.window("t", "1 minute").alias("w"), "k", F.lit(1).cast("long").alias("n"))
        .groupBy("w", "k")
        .agg(F.sum("n").alias("n"))
    )
    names = list(keyed.columns)
    schema = to_arrow_schema(keyed.schema, timezone="UTC")
    ddl = "w struct<start: timestamp, end: timestamp>, k string, n long"
    time = EventTimeColumn(0, of_window=True)
    restore = AggregateRestoreStep(RUN, world.state, schema, 2, PARTITIONS, time, world.reports)
    save = AggregateSaveStep(RUN, world.state, schema, 2, PARTITIONS, mode, time, world.reports)
    place = place_of("w", "k")
    if not single:
        exchanged = keyed.repartition(PARTITIONS, "w", "k").select(*names, place)
        merged = exchanged.mapInArrow(restore, ddl).groupBy("w", "k").agg(F.sum("n").alias("n"))
        exchanged = merged.repartition(PARTITIONS, "w", "k").select(*names, place)
        return exchanged.mapInArrow(save, ddl)
    placed = keyed.select(*names, place).coalesce(1).mapInArrow(restore, f"{ddl}, p int")
    merged = placed.drop("p").groupBy("w", "k").agg(F.sum("n").alias("n"))
    return merged.select(*names, place).coalesce(1).mapInArrow(save, ddl)


def totals(rows: list[Any]) -> list[Any]:
    return [(w["end"].minute, k, n) for w, k, n in rows]


@pytest.mark.parametrize("single", [False, True])
def test_an_aggregation_batch_by_batch(world: World, single: bool) -> None:
    query = counted(world, "append", single)
    tasks = 1 if single else PARTITIONS
    each = 5 * tasks
    assert world.run(query, tasks, single=single) == []
    assert take_rows(world.rows, "numbers", 0) == 2 * each
    reports = world.commit()
    assert sum(report.keys_total for report in reports) == 2
    # The batch runs twice; the first report counts.
    for _ in range(2):
        rows = world.run(query, tasks, single=single, evict_ms=60_000)
        assert totals(rows) == [(1, "a", each), (1, "b", each)]
    assert take_rows(world.rows, "numbers", 1) == 2 * each
    reports = world.commit()
    assert sum(report.keys_total for report in reports) == 2
    assert sum(report.rows_removed for report in reports) == 2
    rows = world.run(query, tasks, single=single, late_ms=180_000, evict_ms=180_000)
    assert totals(rows) == [(2, "a", each), (2, "b", each)]
    reports = world.commit()
    assert sum(report.rows_dropped_late for report in reports) == 2
    assert sum(report.keys_total for report in reports) == 0


def test_duplicates(world: World) -> None:
    arrow = to_arrow_schema(stream(world).schema, timezone="UTC")
    step = DeduplicateStep(
        RUN, world.state, arrow, [0, 1], PARTITIONS, EventTimeColumn(1), None, world.reports
    )
    exchanged = stream(world).repartition(PARTITIONS, "k", "t").select("*", place_of("k", "t"))
    query = exchanged.mapInArrow(step, "k string, t timestamp")
    assert [k for k, _ in world.run(query)] == ["a", "b"]
    world.commit()
    assert [k for k, _ in world.run(query)] == ["a", "b"]
    assert sum(report.keys_total for report in world.commit()) == 4


def test_each_branch_of_a_union_reads_its_own_splits(world: World) -> None:
    both = stream(world).union(stream(world)).coalesce(1)
    assert len(world.run(both)) == 40
    assert take_rows(world.rows, "numbers", 0) == 20  # of one source, read twice


def test_rows_find_their_state_in_any_task(world: World) -> None:
    """``a`` is of state partition 0 and ``b`` of 1, whatever the numbers of the tasks are."""
    arrow = to_arrow_schema(stream(world).schema, timezone="UTC")
    step = DeduplicateStep(RUN, world.state, arrow, [0], PARTITIONS, None, None, world.reports)
    columns = "k string, t timestamp"
    rows = stream(world).select("*", place_of("k"))
    states = rows.repartition(PARTITIONS, "k").mapInArrow(step, columns)
    nothing = stream(world).filter("k = 'none'")
    assert [k for k, _ in world.run(nothing.union(states))] == ["a", "b"]
    assert [k for k, _ in world.run(states.coalesce(1))] == ["a", "b"]
    assert sum(report.keys_total for report in world.commit()) == 2
    assert world.run(nothing.union(states)) == []
    # A task without rows has only its number, and here that is none of the state.
    only_a = rows.filter("k = 'a'").repartition(PARTITIONS, "k").mapInArrow(step, columns)
    with pytest.raises(PythonException, match="has shifted the tasks"):
        world.run(nothing.union(only_a))
    with pytest.raises(PythonException, match="rows of the state partitions 0, 1"):
        world.run(rows.coalesce(1).mapInArrow(step, columns))


def test_rows_are_of_batches_only(world: World) -> None:
    with pytest.raises(PythonException, match="no batch of the query with run id"):
        stream(world).collect()
