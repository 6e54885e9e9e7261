"""Types and values of Avro, decoded as a task does it."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.kafka.avro.framing import framed, record
from tidemill.errors import OptionError
from tidemill.kafka.avro.decoder import _Decoder
from tidemill.kafka.avro.schemas import WriterSchemas
from tidemill.kafka.avro.types import column_type


def decoded(schema: Any, *values: Any) -> list[Any]:
    decoder = _Decoder(WriterSchemas.load(json.dumps(schema), None), False)
    frames = pa.array([None if value is None else framed(schema, value) for value in values])
    found: list[Any] = decoder(frames.cast(pa.binary())).to_pylist()
    return found


UTC = datetime.UTC
WHEN = datetime.datetime(2026, 3, 1, 12, 30, 15, 123_000)  # noqa: DTZ001, a local time
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
HASH = {"type": "fixed", "name": "Hash", "size": 4}
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}


def logical(type_: str, name: str) -> dict[str, str]:
    return {"type": type_, "logicalType": name}


@pytest.mark.parametrize(
    ("avro", "spark", "written", "read"),
    [
        ("int", IntegerType(), -5, -5),
        ("long", LongType(), 1 << 60, 1 << 60),
        ("string", StringType(), "mühle", "mühle"),
        ("bytes", BinaryType(), b"\0\xff", b"\0\xff"),
        (COLOUR, StringType(), "BLUE", "BLUE"),
        (HASH, BinaryType(), b"abcd", b"abcd"),
        (logical("int", "date"), DateType(), WHEN.date(), WHEN.date()),
        (logical("int", "time-millis"), IntegerType(), datetime.time(0, 0, 1), 1000),
        (logical("long", "time-micros"), LongType(), datetime.time(0, 0, 1), 1_000_000),
        (
            logical("long", "timestamp-millis"),
            TimestampType(),
            WHEN.replace(tzinfo=UTC),
            WHEN.replace(tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"),
            TimestampType(),
            WHEN.replace(tzinfo=UTC),
            WHEN.replace(tzinfo=UTC),
        ),
        (logical("long", "local-timestamp-millis"), TimestampNTZType(), WHEN, WHEN),
        (logical("long", "local-timestamp-micros"), TimestampNTZType(), WHEN, WHEN),
        (logical("string", "uuid"), StringType(), "a-b", "a-b"),
        (DECIMAL, DecimalType(12, 3), Decimal("-12.345"), Decimal("-12.345")),
        (
            {**HASH, "size": 8, "logicalType": "decimal", "precision": 9, "scale": 2},
            DecimalType(9, 2),
            Decimal("1.50"),
            Decimal("1.50"),
        ),
        (["null", "long"], LongType(), None, None),
        (["int", "long"], LongType(), 3, 3),
        (["null", "float", "double"], DoubleType(), 0.5, 0.5),
        (
            {"type": "array", "items": ["null", logical("long", "timestamp-millis")]},
            ArrayType(TimestampType()),
            [WHEN.replace(tzinfo=UTC), None],
            [WHEN.replace(tzinfo=UTC), None],
        ),
        (
            {"type": "map", "values": {"type": "array", "items": DECIMAL}},
            MapType(StringType(), ArrayType(DecimalType(12, 3))),
            {"a": [Decimal("1.000")]},
            [("a", [Decimal("1.000")])],
        ),
        (POINT, StructType([StructField("x", IntegerType())]), {"x": 1}, {"x": 1}),
        (
            ["null", "string", POINT],
            StructType(
                [
                    StructField("member0", StringType()),
                    StructField("member1", StructType([StructField("x", IntegerType())])),
                ]
            ),
            {"x": 4},
            {"member0": None, "member1": {"x": 4}},
        ),
    ],
)
def test_a_type(avro: Any, spark: Any, written: Any, read: Any) -> None:
    schema = record(before="int", it=avro, after="string")
    fields = column_type(json.dumps(schema)).spark
    assert isinstance(fields, StructType)
    assert fields["it"].dataType == spark
    row = {"before": 1, "it": written, "after": "z"}
    assert decoded(schema, row, None) == [{"before": 1, "it": read, "after": "z"}, None]


def test_a_union_of_several_names() -> None:
    other = {**POINT, "name": "Line", "fields": [{"name": "y", "type": DECIMAL}]}
    schema = record(it=[POINT, other, "string", COLOUR])
    values: list[Any] = [
        ("n.s.Point", {"x": 1}),
        ("n.s.Line", {"y": Decimal("2.000")}),
        "text",
        ("n.s.Colour", "RED"),
    ]
    found = decoded(schema, *({"it": value} for value in values))
    assert [[v for v in row["it"].values() if v is not None] for row in found] == [
        [{"x": 1}],
        [{"y": Decimal("2.000")}],
        ["text"],
        ["RED"],
    ]


def test_a_name_that_is_used_again() -> None:
    schema = record(first=POINT, second="Point", third="n.s.Point")
    row = {name: {"x": number} for number, name in enumerate(("first", "second", "third"))}
    assert decoded(schema, row) == [row]


def test_a_schema_that_is_no_record() -> None:
    assert decoded("string", "a", None, "") == ["a", None, ""]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(inner=["null", "n.s.R"]), "n.s.R contains itself"),
        (record(it=["int", "long", "string"]), "cannot be told apart"),
        (record(it=["string", COLOUR]), "union of string, n.s.Colour cannot be told apart"),
        (record(it={**DECIMAL, "precision": 50}), "50 digits"),
    ],
)
def test_what_spark_cannot_have_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        column_type(json.dumps(schema))
