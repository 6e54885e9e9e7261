"""``from_confluent_avro`` in batches and streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from tests.kafka.avro.framing import framed, record
from tidemill.errors import OptionError
from tidemill.kafka import from_confluent_avro
from tidemill.testing import MemoryStream

FIRST = record(id="long", kind="string")
SECOND = record(id="long", kind="string", amount={"type": "int"})
SECOND["fields"][-1]["default"] = -1
TEXT = json.dumps(FIRST)


@pytest.fixture
def schemas(tmp_path: Path) -> str:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "7.avsc").write_text(TEXT)
    (folder / "12.avsc").write_text(json.dumps(SECOND))
    (folder / "README").write_text("not a schema")
    return str(folder)


def messages(spark: SparkSession, *values: bytes | None) -> Any:
    rows = [(number, value) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, "offset long, value binary").coalesce(1)


def read(df: Any, *arguments: Any, **more: Any) -> list[Any]:
    decoded = df.select("offset", from_confluent_avro("value", *arguments, **more).alias("it"))
    return [row.it for row in decoded.orderBy("offset").collect()]


def test_one_schema_for_all(spark: SparkSession) -> None:
    df = messages(spark, framed(FIRST, {"id": 1, "kind": "a"}), None)
    assert read(df, TEXT) == [Row(id=1, kind="a"), None]


def test_a_folder_of_schemas(spark: SparkSession, schemas: str) -> None:
    df = messages(
        spark,
        framed(FIRST, {"id": 1, "kind": "a"}, 7),
        framed(SECOND, {"id": 2, "kind": "b", "amount": 5}, 12),
    )
    assert read(df, schemas) == [Row(id=1, kind="a", amount=-1), Row(id=2, kind="b", amount=5)]
    older = read(df, schemas, reader_schema=TEXT)
    assert older == [Row(id=1, kind="a"), Row(id=2, kind="b")]


def test_executors_need_no_folder(spark: SparkSession, schemas: str) -> None:
    column = from_confluent_avro("value", schemas)
    for file in Path(schemas).iterdir():
        file.unlink()
    df = messages(spark, framed(FIRST, {"id": 1, "kind": "a"}))
    assert df.select(column.alias("it")).first().it.id == 1


GOOD = framed(FIRST, {"id": 1, "kind": "a"})


@pytest.mark.parametrize(
    ("bad", "finding"),
    [
        (b"", "it has 0 bytes"),
        (b"\1" + GOOD[1:], "begins with byte 0x01"),
        (b"\0\0\0\0\x63" + GOOD[5:], "schema 99, and there is no 99.avsc"),
        (GOOD[:-1], "schema 7 does not fit it"),
        (GOOD + b"x", "1 bytes are left over"),
    ],
)
def test_a_bad_message(spark: SparkSession, schemas: str, bad: bytes, finding: str) -> None:
    df = messages(spark, GOOD, bad, GOOD)
    with pytest.raises(Exception, match=f"message at row 1 of the 3 .*: .*{finding}"):
        read(df, schemas)
    with pytest.raises(Exception, match=f"message at 1: .*{finding}"):
        read(df, schemas, at=["offset"])
    found = read(df, schemas, {"mode": "permissive"})
    assert [row and row.id for row in found] == [1, None, 1]


def test_two_schemas_need_a_folder(spark: SparkSession) -> None:
    df = messages(spark, GOOD, framed(SECOND, {"id": 2, "kind": "b", "amount": 5}, 12))
    with pytest.raises(Exception, match="written with schema 12, and others with 7: give a folder"):
        read(df, TEXT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no such folder",), "neither the JSON of a schema nor a folder"),
        (('{"type": "nonsense"}',), "is no Avro schema"),
        (('{"type": ',), "is no Avro schema"),
        ((TEXT, {"mode": "DROPMALFORMED"}), "there are FAILFAST and PERMISSIVE"),
        ((TEXT, {"mod": "FAILFAST"}), "mode"),
    ],
)
def test_mistakes(spark: SparkSession, arguments: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        from_confluent_avro("value", *arguments)


def test_folders_that_are_not_in_order(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no <id>\.avsc file"):
        from_confluent_avro("value", str(tmp_path))
    (tmp_path / "orders.avsc").write_text(TEXT)
    with pytest.raises(OptionError, match=r"orders\.avsc should be named after the id"):
        from_confluent_avro("value", str(tmp_path))
    with pytest.raises(OptionError, match="a reader schema goes with a folder"):
        from_confluent_avro("value", TEXT, reader_schema=TEXT)


def test_a_stream_with_state(spark: SparkSession, schemas: str) -> None:
    source = MemoryStream("value binary")
    it = from_confluent_avro("value", schemas).alias("it")
    counted = (
        spark.readStream.format(source.name)
        .load()
        .select(it)
        .groupBy("it.kind")
        .agg(F.sum("it.id").alias("sum"))
    )
    query = (
        counted.writeStream.outputMode("complete").format("memory").queryName("avro_sums").start()
    )
    try:
        for number in range(3):
            value = {"id": number, "kind": "ab"[number % 2]}
            source.add([(framed(FIRST, value),)])
            query.processAllAvailable()
        assert sorted(map(tuple, spark.table("avro_sums").collect())) == [("a", 2), ("b", 1)]
    finally:
        query.stop()
