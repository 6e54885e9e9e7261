"""What every sink must do, wherever it writes to."""

from __future__ import annotations

import datetime
import json
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from tests.kafka.broker import KafkaBroker
from tests.sinks.kafka.as_json import JsonSink, rows_from_json
from tests.sinks.output import FakeQuery, sorted_rows
from tests.sinks.python_writers import Folder, rows_in
from tests.sinks.sql.server import PASSWORD, Server
from tidemill.batches.sink import Sink
from tidemill.sinks.console import ConsoleSink
from tidemill.sinks.files.file_sink import FileSink
from tidemill.sinks.foreach import ForeachSink
from tidemill.sinks.foreach_batch import ForeachBatchSink
from tidemill.sinks.kafka.sink import kafka_sink
from tidemill.sinks.memory import MemorySink
from tidemill.sinks.noop import NoopSink
from tidemill.sinks.python_data_source import PythonDataSourceSink
from tidemill.sinks.sql.sink import SqlSink
from tidemill.sinks.table import TableSink

SCHEMA = (
    "i int, l long, d decimal(20,5), f double, b boolean, s string, t timestamp, n timestamp_ntz, day date, "
    "raw binary, a array<int>, m map<string,long>, st struct<x:int,y:array<string>>"
)
FULL = (
    1,
    1 << 40,
    Decimal("123456789.12345"),
    0.5,
    True,
    "é",
    datetime.datetime(2026, 3, 1, 12, 0, 0, 123456),  # noqa: DTZ001, as Spark's rows have them
    datetime.datetime(2026, 3, 1, 12, 0, 0, 5),  # noqa: DTZ001
    datetime.date(2026, 3, 1),
    b"\x00\xff",
    [1, None, 3],
    {"k": 7},
    Row(x=1, y=["p", None]),
)
NULLS = (None,) * len(FULL)


@dataclass
class Subject:
    """A sink, made anew after each crash, and the rows that it has written where that can be seen."""

    query: FakeQuery
    make: Callable[[], Sink]
    rows: Callable[[], DataFrame | None]
    survives: bool = True


EXACTLY_ONCE = ["noop", "memory", "parquet", "orc", "table", "kafka once", "sqlite", "postgresql"]
AT_LEAST_ONCE = ["console", "foreach", "foreachBatch", "python", "kafka"]
ALL = EXACTLY_ONCE + AT_LEAST_ONCE
# What was written before the commit is in nobody's sight.
HIDING = [name for name in ALL if name not in ("foreach", "foreachBatch", "kafka", "kafka once")]
# Written rows outlive the driver.
SURVIVING = [name for name in HIDING if name != "memory"]


@pytest.fixture(params=ALL)
def subject(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, postgresql: Server
) -> Any:
    schema = StructType.fromDDL(SCHEMA)
    name = f"contract_{request.param.replace(' ', '_')}"
    query = FakeQuery(spark, tmp_path / "checkpoint", schema, name=name)
    out = str(tmp_path / "out")
    makers: dict[str, Callable[[], Sink]] = {
        "console": ConsoleSink,
        "noop": NoopSink,
        "memory": lambda: MemorySink(name),
        "parquet": lambda: FileSink("parquet", out),
        "orc": lambda: FileSink("orc", out),
        "table": lambda: TableSink(name, path=out),
        "foreach": lambda: ForeachSink(_process),
        "foreachBatch": lambda: ForeachBatchSink(
            lambda df, batch_id: df.write.mode("overwrite").parquet(f"{out}/batch={batch_id}")
        ),
    }
    makers["python"] = lambda: PythonDataSourceSink(Folder, {"path": out})
    in_sqlite = {"url": f"sqlite:///{tmp_path}/rows.db", "dbtable": "rows"}
    makers["sqlite"] = lambda: SqlSink(in_sqlite)
    in_postgresql = {"url": postgresql.url(), "dbtable": tmp_path.name}
    access = {"user": "owner", "password": PASSWORD}
    makers["postgresql"] = lambda: SqlSink({**in_postgresql, **access})
    readers: dict[str, Callable[[], DataFrame | None]] = {
        "memory": lambda: spark.table(name),
        "parquet": lambda: query.sink.table(),  # type: ignore[attr-defined]
        "orc": lambda: query.sink.table(),  # type: ignore[attr-defined]
        "table": lambda: spark.table(name),
        "foreachBatch": lambda: spark.read.schema(schema).parquet(out).drop("batch"),
        "python": lambda: spark.createDataFrame(rows_in(Path(out)), schema),
        "sqlite": lambda: from_sqlite(spark, str(tmp_path / "rows.db"), schema),
        "postgresql": lambda: from_postgresql(spark, postgresql, tmp_path.name, schema),
    }
    if request.param.startswith("kafka"):
        broker: KafkaBroker = request.getfixturevalue("broker")
        topic = broker.create(f"contract-{uuid.uuid4().hex[:8]}")
        options = {"kafka.bootstrap.servers": broker.address, "topic": topic}
        if request.param == "kafka once":
            options |= {"exactlyOnce": "true", "transactionalIdPrefix": topic}
        makers[request.param] = lambda: JsonSink(kafka_sink(options))
        readers[request.param] = lambda: rows_from_json(spark, broker, topic, schema)
    subject = Subject(
        query,
        makers[request.param],
        readers.get(request.param, lambda: None),
        survives=request.param != "memory",
    )
    query.start(subject.make())
    yield subject
    spark.sql(f"DROP TABLE IF EXISTS {name}") if request.param == "table" else None


def from_sqlite(spark: SparkSession, path: str, schema: StructType) -> DataFrame:
    """What a reader of the file finds, as Spark's own casts understand it."""
    with sqlite3.connect(path) as connection:
        return as_columns(spark, connection.execute("SELECT * FROM rows").fetchall(), schema)


def from_postgresql(
    spark: SparkSession, server: Server, table: str, schema: StructType
) -> DataFrame:
    found = server.execute(f'SELECT * FROM "{table}"')
    return as_columns(spark, [tuple(map(_plain, row)) for row in found], schema)


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def as_columns(spark: SparkSession, found: list[Any], schema: StructType) -> DataFrame:
    """Return rows whose values a database may have given as text, in the types of ``schema``."""
    texts = [
        tuple(v if v is None or isinstance(v, bytes) else str(v) for v in row) for row in found
    ]
    read = ", ".join(f"`{f.name}` {'binary' if f.name == 'raw' else 'string'}" for f in schema)
    return spark.createDataFrame(texts, read).select(*map(_cast, schema))


def _cast(field: StructField) -> Any:
    column = F.col(field.name)
    if isinstance(field.dataType, ArrayType | MapType | StructType):
        return F.from_json(column, field.dataType).alias(field.name)
    return column.cast(field.dataType).alias(field.name)


def _process(row: Row) -> None:
    assert row.asDict() in (
        dict(zip(row.__fields__, values, strict=True)) for values in (FULL, NULLS)
    )


def check(subject: Subject, expected: list[tuple[Any, ...]]) -> None:
    rows = subject.rows()
    if rows is not None:
        assert sorted_rows(rows) == sorted(expected, key=repr)


def test_all_types_come_through(subject: Subject) -> None:
    subject.query.write(0, [FULL, NULLS])
    subject.query.write(1, [FULL])
    check(subject, [FULL, NULLS, FULL])


def test_an_empty_batch(subject: Subject) -> None:
    subject.query.write(0, [])
    check(subject, [])
    subject.query.write(1, [FULL])
    subject.query.write(2, [])
    check(subject, [FULL])


def test_a_sink_says_whether_it_writes_exactly_once(
    subject: Subject, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["subject"]
    assert subject.query.sink.exactly_once == (name in EXACTLY_ONCE)


@pytest.mark.parametrize("subject", EXACTLY_ONCE, indirect=True)
def test_the_same_batch_again_changes_nothing(subject: Subject) -> None:
    subject.query.write(0, [FULL])
    subject.query.write(0, [FULL])
    check(subject, [FULL])
    if subject.survives:
        subject.query.sink.stop()
        subject.query.start(subject.make())
        subject.query.write(0, [FULL])
        check(subject, [FULL])
    subject.query.write(1, [NULLS])
    check(subject, [FULL, NULLS])


# What a function of the user's leaves is up to the function.
@pytest.mark.parametrize("subject", [name for name in ALL if name != "foreachBatch"], indirect=True)
def test_a_failing_batch_leaves_nothing(subject: Subject) -> None:
    query = subject.query
    query.write(0, [FULL])
    rows = query.spark.createDataFrame([FULL] * 8, query.schema).repartition(2)
    poison = F.when(F.rand() < 2, F.raise_error(F.lit("poison"))).otherwise(F.lit(True))
    with pytest.raises(Exception, match="poison"):
        query.write(1, rows.where(poison))
    check(subject, [FULL])
    query.write(1, [NULLS])
    check(subject, [FULL, NULLS])


@pytest.mark.parametrize("subject", HIDING, indirect=True)
def test_nothing_is_seen_before_the_commit(subject: Subject) -> None:
    query = subject.query
    query.write(0, [FULL])
    query.stage(1, [NULLS])
    check(subject, [FULL])
    query.sink.commit(1)
    check(subject, [FULL, NULLS])


@pytest.mark.parametrize("subject", HIDING, indirect=True)
def test_a_batch_that_was_staged_and_given_up_is_staged_again(subject: Subject) -> None:
    query = subject.query
    query.stage(0, [FULL, FULL])
    query.stage(0, [NULLS])
    query.sink.commit(0)
    check(subject, [NULLS])
    query.write(1, [FULL])
    check(subject, [NULLS, FULL])


def test_a_commit_may_be_repeated(subject: Subject) -> None:
    query = subject.query
    query.write(0, [FULL])
    if query.sink.exactly_once and not isinstance(query.sink, NoopSink):
        assert query.sink.has_batch(0)
    assert not query.sink.has_batch(1)
    query.sink.commit(0)
    check(subject, [FULL])
    query.write(1, [NULLS])
    query.sink.commit(1)
    check(subject, [FULL, NULLS])


@pytest.mark.parametrize("subject", SURVIVING, indirect=True)
def test_what_was_staged_before_a_crash_is_never_seen(subject: Subject) -> None:
    query = subject.query
    query.write(0, [FULL])
    query.stage(1, [FULL, FULL])
    query.start(subject.make())  # nobody has stopped the first one
    query.write(1, [NULLS])
    check(subject, [FULL, NULLS])


def test_stop_is_idempotent(subject: Subject) -> None:
    subject.query.write(0, [FULL])
    subject.query.sink.stop()
    subject.query.sink.stop()
    check(subject, [FULL])


def test_a_sink_that_never_started_can_be_stopped(subject: Subject) -> None:
    sink = subject.make()
    assert sink.description()
    sink.stop()
